# cython: language_level=3
"""Of what types `fast_path.py` is where it is compiled."""

cimport cython

cdef int METHOD, HEADER, BODY, FRAME_END, BASIC, ACK, ACK_BYTES, ADDRESS_AT
cdef long long ASK_BYTES, KINDS_MAX


cdef class Kind:
    cdef public object channel
    cdef public object template
    cdef public bytes properties
    cdef public long long found
    cdef public long long flags
    cdef public object confirming


cdef class FastPath:
    cdef public object client
    cdef public object batch
    cdef long long[::1] rows
    cdef public object core
    cdef public dict states
    cdef public dict channels
    cdef public dict kinds
    cdef public long long body_bytes_max
    cdef public long long answers_bytes_max
    cdef public long long ask_at
    cpdef learn(self, bytes method, Kind kind)
    @cython.locals(size=Py_ssize_t, method_end=Py_ssize_t, kind=Kind)
    cpdef bint take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(number=int, tag=cython.longlong)
    cdef bint take_ack(self, bytearray buffer, Py_ssize_t at) except -1
    @cython.locals(
        properties=Py_ssize_t, header_end=Py_ssize_t, body_size=cython.longlong, body=Py_ssize_t,
        frame_max=cython.longlong,
    )
    cdef bint take_publish(
        self, bytearray buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t header, Kind kind
    ) except -1
    @cython.locals(position=cython.longlong)
    cdef bint publish(self, object channel, object template) except -1
