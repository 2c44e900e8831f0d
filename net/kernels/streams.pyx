# cython: boundscheck=False, wraparound=False, cdivision=True
"""What a loop iteration gathers, and the bytes of one connection: the twin of `streams.py`.

A read costs one Python call (`consume`), and a write of one bytes object none but the transport's.
Everything public is described in the twin.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from collections import deque

BUFFER_BYTES = 256 * 1024
WRITERS_AT_ONCE = 128

cdef enum:
    SHARED = 256 * 1024
    AT_ONCE = 128
    LEFT_PARTS = 16


def clock_ms():
    """See `streams.clock_ms`."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <long long> now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef class Wire:
    """A transport that takes bytes without a call of Python."""

    cdef int put(self, bytes data) except -1:
        """What `write` of a transport does."""
        raise NotImplementedError


cdef class Shortcut:
    """See `streams.Shortcut`. Who inherits from it is called without Python."""

    cpdef bint take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1:
        """See `streams.Shortcut`."""
        return False


cdef class Iteration:
    """See `streams.Iteration`."""

    def __init__(self, loop):
        self.loop = loop
        self.buffer = bytearray(SHARED)
        self.view = memoryview(self.buffer)
        self.soon = []
        self.writers = []
        self.left = deque()
        self.heard = []
        self.begun = False
        self.scheduled = False

    def call_soon(self, callback):
        """See `streams.Iteration`."""
        self.soon.append(callback)
        if not self.begun and not self.scheduled:
            self.schedule()

    def write_later(self, Stream stream not None):
        """See `streams.Iteration`."""
        self.writers.append(stream)
        if not self.begun and not self.scheduled:
            self.schedule()

    def within(self, callback):
        """See `streams.Iteration`."""
        self.begun = True
        try:
            callback()
        finally:
            self.finish()

    def end(self):
        """See `streams.Iteration`."""
        self.finish()

    def report(self, message, error):
        """See `streams.Iteration`."""
        self.loop.call_exception_handler({"message": message, "exception": error})

    def _end_scheduled(self):
        self.scheduled = False
        self.finish()

    cdef int schedule(self) except -1:
        self.scheduled = True
        self.loop.call_soon(self._end_scheduled)
        return 0

    cdef int date(self) except -1:
        """Tell those that were heard when. One reading of the clock is enough for all, and nothing
        that leaves waits for it."""
        cdef double now = self.loop.time()
        cdef list heard = self.heard
        cdef object stream
        for stream in heard:
            (<Stream> stream).heard_at = now
        heard.clear()
        return 0

    cdef int finish(self) except -1:
        cdef list soon
        self.begun = True
        if self.soon:
            soon = self.soon
            self.soon = []
            for callback in soon:
                try:
                    callback()
                except Exception as error:
                    self.report(f"exception in callback {callback!r}", error)
        self.begun = False
        if self.soon and not self.scheduled:
            self.schedule()
        if self.writers or self.left:
            self.write_gathered()
        if self.heard:
            self.date()
        return 0

    cdef int write_gathered(self) except -1:
        """See `streams.Iteration._write_gathered`."""
        cdef list writers = self.writers
        cdef Py_ssize_t between = len(writers) - AT_ONCE
        cdef Py_ssize_t count
        self.writers = []
        if between <= 0 and not self.left:
            self.hand_over(writers)
            return 0
        if between > 0:
            self.left.extend(writers[AT_ONCE // 2:AT_ONCE // 2 + between])
            del writers[AT_ONCE // 2:AT_ONCE // 2 + between]
        self.hand_over(writers)
        count = len(self.left)
        count = min(count, max(AT_ONCE, count // LEFT_PARTS))
        self.hand_over([self.left.popleft() for _ in range(count)])
        if self.left and not self.scheduled:
            self.schedule()
        return 0

    cdef int hand_over(self, list writers) except -1:
        cdef object stream
        for stream in writers:
            try:
                (<Stream> stream).hand_over()
            except Exception as error:
                self.report(f"exception in writing to {stream!r}", error)
        return 0


cdef class Stream:
    """See `streams.Stream`."""

    def __init__(self, Iteration context not None):
        self.context = context
        self.transport = None
        self.rest = b""

    def consume(self, buffer, start, end):
        """See `streams.Stream`."""
        raise NotImplementedError

    def drained(self):
        """See `streams.Stream`."""

    def fed(self):
        """See `streams.Stream`."""

    # --- out --------------------------------------------------------------------------------

    def write(self, data):
        """See `streams.Stream`."""
        cdef Iteration context
        cdef Py_ssize_t size = len(data)
        if self.closing or self.transport is None:
            return
        if self.first is None:
            self.first = data
            context = self.context
            context.writers.append(self)
            if not context.begun and not context.scheduled:
                context.schedule()
        elif self.gathered is None:
            self.gathered = [data]
        else:
            self.gathered.append(data)
        self.turn_bytes += size
        self.written_bytes += size

    def write_gathered(self):
        """See `streams.Stream`."""
        self.hand_over()

    cdef int hand_over(self) except -1:
        cdef object data = self.first
        cdef object transport = self.transport
        if data is not None and transport is not None:
            self.first = None
            if self.gathered is not None:
                data = b"".join([data, *self.gathered])
                self.gathered = None
            if type(data) is bytes and isinstance(transport, Wire):
                (<Wire> transport).put(<bytes> data)
            else:
                transport.write(data)
        self.turn_bytes = 0
        if self.starved and not self.paused and not self.closing:
            self.starved = False
            self.fed()
        return 0

    def pause_writing(self):
        """See `streams.Stream`."""
        self.paused = True

    def resume_writing(self):
        """See `streams.Stream`."""
        self.paused = False
        if not self.closing:
            self.drained()

    # --- in ---------------------------------------------------------------------------------

    def get_buffer(self, sizehint):
        """See `streams.Stream`."""
        cdef Py_ssize_t size
        if self.own_view is not None:  # `room` may have to make it longer
            self.own_view.release()
            self.own_view = None
        self.room(&size)
        if self.own is None:
            return self.context.view[SHARED - size:] if self.rest else self.context.view
        self.own_view = memoryview(self.own)
        return self.own_view[self.filled:]

    def buffer_updated(self, Py_ssize_t count):
        """See `streams.Stream`."""
        self.received(count)

    cdef char* room(self, Py_ssize_t *size) except NULL:
        """Where the next bytes have to go, and how many may come."""
        cdef Py_ssize_t rest_size
        cdef char* shared
        if self.own is None:
            shared = PyByteArray_AS_STRING(self.context.buffer)
            rest_size = PyBytes_GET_SIZE(self.rest)
            if rest_size <= SHARED // 2:
                if rest_size:
                    memcpy(shared, PyBytes_AS_STRING(self.rest), rest_size)
                size[0] = SHARED - rest_size
                return shared + rest_size
            self.own = bytearray(4 * rest_size)
            memcpy(PyByteArray_AS_STRING(self.own), PyBytes_AS_STRING(self.rest), rest_size)
            self.filled = rest_size
            self.rest = b""
        else:
            rest_size = PyByteArray_GET_SIZE(self.own)
            if rest_size - self.filled < SHARED // 4:
                PyByteArray_Resize(self.own, 2 * rest_size)
                memset(PyByteArray_AS_STRING(self.own) + rest_size, 0, rest_size)
        size[0] = PyByteArray_GET_SIZE(self.own) - self.filled
        return PyByteArray_AS_STRING(self.own) + self.filled

    cdef int received(self, Py_ssize_t count) except -1:
        """So many bytes are where `room` said."""
        cdef Py_ssize_t rest_size, end, used
        if self.closing:
            return 0
        if self.own is not None:
            self.filled += count
            return self.consume_own()
        rest_size = PyBytes_GET_SIZE(self.rest)
        end = rest_size + count
        if self.shortcut is not None and self.took_shortcut(end):
            if rest_size:
                self.rest = b""
            return 0
        used = self.consume(self.context.buffer, 0, end)
        if used < 0:
            raise ValueError(f"consume used {used} bytes")
        if used < end:
            self.rest = PyBytes_FromStringAndSize(
                PyByteArray_AS_STRING(self.context.buffer) + used, end - used
            )
        elif rest_size:
            self.rest = b""
        return 0

    cdef bint took_shortcut(self, Py_ssize_t end) except -1:
        cdef object shortcut = self.shortcut
        cdef Iteration context = self.context
        cdef bint taken
        if isinstance(shortcut, Shortcut):
            taken = (<Shortcut> shortcut).take(context.buffer, 0, end)
        else:
            taken = shortcut.take(context.buffer, 0, end)
        if taken:
            context.heard.append(self)
            if not context.begun:
                context.date()
        return taken

    def consume_again(self):
        """See `streams.Stream`."""
        cdef bytes rest
        cdef Py_ssize_t end
        if self.closing:
            return
        if self.own is not None:
            self.consume_own()
            return
        rest = self.rest
        end = PyBytes_GET_SIZE(rest)
        if end > SHARED // 2:
            self.own = bytearray(rest)
            self.filled = end
            self.rest = b""
            self.consume_own()
            return
        memcpy(PyByteArray_AS_STRING(self.context.buffer), PyBytes_AS_STRING(rest), end)
        self.rest = rest[<Py_ssize_t> self.consume(self.context.buffer, 0, end):]

    cdef int consume_own(self) except -1:
        cdef Py_ssize_t used = self.consume(self.own, 0, self.filled)
        if used == 0 or self.own is None:
            return 0
        self.rest = bytes(memoryview(self.own)[used:self.filled])
        self.own = None
        self.own_view = None
        self.filled = 0
        return 0

    def forget(self):
        """See `streams.Stream`."""
        self.closing = True
        self.transport = None
        self.shortcut = None
        self.rest = b""
        self.own = None
        self.own_view = None
        self.first = None
        self.gathered = None
