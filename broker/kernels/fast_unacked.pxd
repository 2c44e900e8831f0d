# cython: language_level=3
"""Of what types `unacked.py` is where it is compiled, as `fast_unacked`."""

cimport cython


cdef class UnackedRuns:
    cdef public long long next_tag
    cdef public long long count
    cdef public list _first
    cdef public list _runs
    @cython.locals(
        first_tag=cython.longlong, last_count=cython.longlong, last_offset=cython.longlong,
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
