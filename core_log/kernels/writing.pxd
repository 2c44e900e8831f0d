"""What the end of the log uses of `writing.pyx` without a Python call."""

from libc.stdint cimport int64_t


cdef class Appender:
    cdef public Py_ssize_t end
    cdef public bytes entries
    cpdef Py_ssize_t append(
        self, bytearray memory, Py_ssize_t start, Py_ssize_t limit, int64_t position, tuple form,
        bytes hosts, targets, int64_t number, int64_t offset, batch, Py_ssize_t first,
        Py_ssize_t last, int64_t born_ms, int64_t store_ms,
    ) except -1
    cdef Py_ssize_t write(
        self, bytearray memory, Py_ssize_t start, Py_ssize_t limit, int64_t position, tuple form,
        bytes hosts, bytes suffix, targets, int64_t number, int64_t offset, int64_t base, batch,
        Py_ssize_t first, Py_ssize_t last, int64_t born_ms, int64_t store_ms,
    ) except -1
