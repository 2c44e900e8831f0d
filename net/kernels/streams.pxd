# cython: language_level=3
"""Of what types `streams.py` is where it is compiled, and what the socket plane uses of it."""

cimport cython

cdef Py_ssize_t SHARED, AT_ONCE, LEFT_PARTS


cdef class Wire:
    cdef int put(self, bytes data) except -1


cdef class Shortcut:
    cpdef bint take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Traffic:
    cdef public long long received
    cdef public long long sent


cdef class Iteration:
    cdef readonly object loop
    cdef readonly bytearray buffer
    cdef readonly object view
    cdef list _soon
    cdef list _writers
    cdef object _left
    cdef list _heard
    cdef public Traffic traffic
    cdef bint begun
    cdef bint _scheduled
    cpdef write_later(self, Stream stream)
    cpdef end(self)
    @cython.locals(now=double, stream=Stream)
    cdef date_heard(self)
    @cython.locals(writers=list, between=Py_ssize_t, count=Py_ssize_t)
    cdef _write_gathered(self)
    @cython.locals(stream=Stream)
    cdef _hand_over(self, list writers)
    cdef _schedule(self)


cdef class Stream:
    cdef readonly Iteration context
    cdef public Traffic traffic
    cdef public object transport
    cdef public bint paused
    cdef public bint closing
    cdef public bint starved
    cdef readonly Py_ssize_t turn_bytes
    cdef readonly Py_ssize_t written_bytes
    cdef readonly bytes rest
    cdef public object shortcut
    cdef public double heard_at
    cdef public object layer
    cdef bytearray own
    cdef object _own_view
    cdef Py_ssize_t _filled
    cdef object _first
    cdef list _gathered
    @cython.locals(size=Py_ssize_t)
    cpdef write(self, data)
    @cython.locals(data=object, wire=Wire)
    cdef hand_over(self)
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t make_room(self) except -1
    cdef received(self, Py_ssize_t count)
    @cython.locals(at=Py_ssize_t, buffer=bytearray)
    cdef _receive_through(self, Py_ssize_t count)
    @cython.locals(end=Py_ssize_t, used=Py_ssize_t)
    cdef _present(self, Py_ssize_t count)
    @cython.locals(typed=Shortcut, taken=bint)
    cdef bint _take_shortcut(self, Py_ssize_t end) except -1
    @cython.locals(own=bytearray, used=Py_ssize_t)
    cdef _consume_own(self)
