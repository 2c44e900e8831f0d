# cython: language_level=3
"""Of what types `log_end.py` is where it is compiled."""

cimport cython

from polymq.core_log.kernels.writing cimport Appender

cdef class Span:
    cdef public bytearray memory
    cdef public Py_ssize_t start
    cdef public Py_ssize_t end
    cdef public long long position
    cdef public bytes entries
    cdef public Py_ssize_t count


cdef class Chunk:
    cdef public bytearray memory
    cdef public long long position
    cdef public Py_ssize_t used


cdef class ChunksEnd:
    cdef public Chunk last


cdef class LogEnd:
    cdef public Appender _appender
    cdef public object _files
    cdef public ChunksEnd _tail
    cdef public object _failure
    cdef public long long _message_bytes_max
    cdef public long long _ready_below
    cdef public long long _whole_bytes_max
    cdef public bytes host
    cdef public object _full
    cdef public object _barred
    cdef public int _handle
    cdef public long long _segment_start
    cdef public long long _flushed
    cdef public long long _records_end
    cdef public long long appended
    cdef public long long written
    cdef public long long keyed_end
    cdef public long long runs
    cdef public long long records

    @cython.locals(
        chunk=Chunk, memory=bytearray, start=Py_ssize_t, position=cython.longlong,
        limit=Py_ssize_t, end=Py_ssize_t, count=Py_ssize_t, appender=Appender, span=Span,
    )
    cpdef append_plain(
        self, template, batch, Py_ssize_t first, Py_ssize_t last, targets, long long number,
        long long offset, long long born_ms, long long store_ms
    )
    @cython.locals(chunk=Chunk, memory=bytearray, start=cython.longlong, file_at=cython.longlong)
    cpdef write(self)
