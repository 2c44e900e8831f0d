"""What the socket plane uses of `streams.pyx` without a Python call."""


cdef class Wire:
    cdef int put(self, bytes data) except -1


cdef class Shortcut:
    cpdef bint take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Iteration:
    cdef readonly object loop
    cdef readonly bytearray buffer
    cdef readonly object view
    cdef list soon          # to be called at the end of this iteration
    cdef list writers       # streams with gathered bytes
    cdef object left        # those of former iterations, a deque
    cdef bint begun         # whoever began it will end it
    cdef bint scheduled     # the loop will end it
    cdef list heard         # streams that took a read by their shortcut in this iteration
    cdef int date(self) except -1
    cdef int finish(self) except -1
    cdef int write_gathered(self) except -1
    cdef int hand_over(self, list writers) except -1
    cdef int schedule(self) except -1


cdef class Stream:
    cdef readonly Iteration context
    cdef public object transport
    cdef public bint paused
    cdef public bint closing
    cdef public bint starved
    cdef readonly Py_ssize_t turn_bytes
    cdef readonly Py_ssize_t written_bytes
    cdef readonly bytes rest
    cdef public object shortcut
    cdef public double heard_at
    cdef bytearray own      # buffer of a frame that outgrew the shared one
    cdef object own_view
    cdef Py_ssize_t filled  # bytes used in `own`
    cdef object first       # of what is gathered: most often all of it
    cdef list gathered      # what came behind it, or None
    cdef int hand_over(self) except -1
    cdef char* room(self, Py_ssize_t *size) except NULL
    cdef int received(self, Py_ssize_t count) except -1
    cdef bint took_shortcut(self, Py_ssize_t end) except -1
    cdef int consume_own(self) except -1
