# cython: language_level=3
"""Of what types `unacked.py` is where it is compiled."""

cimport cython


cdef class UnackedRuns:
    cdef public long long next_tag
    cdef public long long count
    cdef public list _first
    cdef public list _runs
    cdef public list _starts
    cdef public list _blocks
    @cython.locals(
        first_tag=cython.longlong, last_count=cython.longlong, last_offset=cython.longlong,
        first=list, runs=list,
    )
    cpdef add(self, holder, long long first_offset, long long count)
    cpdef long long oldest(self) except -1
    @cython.locals(run_count=cython.longlong, offset=cython.longlong)
    cpdef bint settle_unheld(self, long long first_tag, long long count) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef list holders(self, long long first_tag, long long last_tag)
    @cython.locals(taken=cython.longlong)
    cpdef settle(self, first_tag, last_tag)
    @cython.locals(taken=cython.longlong)
    cpdef settle_present(self, long long first_tag, long long last_tag)
    @cython.locals(run_count=cython.longlong, offset=cython.longlong)
    cdef _settle_first(self, long long taken)
    cdef _remove_first(self)
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, first=list, runs=list,
                   tag=cython.longlong, low=cython.longlong, high=cython.longlong,
                   count=cython.longlong, offset=cython.longlong)
    cdef _cut_block(self, Py_ssize_t block, long long first_tag, long long last_tag, list settled)
    @cython.locals(block=Py_ssize_t, left=Py_ssize_t, first=list)
    cdef _cut(self, long long first_tag, long long last_tag)
    cdef Py_ssize_t _block_of(self, tag) except -1
    cdef tuple _block(self, Py_ssize_t number)
    cdef Py_ssize_t _split(self, Py_ssize_t number) except -1
    cdef _remove_block(self, Py_ssize_t number)
