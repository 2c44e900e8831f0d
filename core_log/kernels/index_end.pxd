# cython: language_level=3
"""Of what types `index_end.py` is where it is compiled."""

cimport cython

cdef Py_ssize_t BLOCK_BYTES


cdef class TailEnd:
    cdef public bytearray _block
    cdef public long long _first
    cdef public list _before
    cdef public bint _open
    cdef public long long end
    cdef public Py_ssize_t entry_size
    @cython.locals(block=bytearray)
    cpdef append(self, bytes entries, long long count)


cdef class IndexEnd:
    cdef public object number
    cdef public Py_ssize_t entry_size
    cdef public long long first_offset
    cdef public long long end_offset
    cdef public TailEnd _tail
    cpdef TailEnd begin_tail(self)
    @cython.locals(count=Py_ssize_t, tail=TailEnd)
    cpdef append(self, bytes entries)


@cython.locals(index=IndexEnd)
cpdef list targets_of(tuple indexes)
@cython.locals(index=IndexEnd)
cpdef append_to_all(tuple indexes, bytes entries)
