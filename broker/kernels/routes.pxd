# cython: language_level=3
"""Of what types `routes.py` is where it is compiled."""


cdef class RouteEnd:
    cdef public long long version
    cdef public bint evicted
    cdef public tuple live
    cdef public tuple queues


cdef class RouterEnd:
    cdef public long long version
