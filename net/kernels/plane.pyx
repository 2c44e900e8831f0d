# cython: boundscheck=False, wraparound=False, cdivision=True
"""The socket plane: plain TCP sockets of one loop in an epoll set of their own.

Theory. The loop watches one descriptor for all of these sockets: that of the epoll set. When it is
readable the loop calls `turn`, once per iteration: ask which sockets are ready, read each once into
the shared buffer and straight into its stream's `consume`, then end the iteration. So a read costs
one call of Python and a write none, where a loop's own transport needs two and one, a handle for
each, and a further turn of the loop for what is to happen at its end.

Rules:

* To a stream a `PlaneTransport` is an asyncio transport: the same methods, the same order of calls.
  `connection_lost` is called once, never from within a call of the stream's.
* Fair: a socket is read once per turn, at most one buffer; a turn takes EVENTS_MAX events, and
  stops after TURN_NANOSECONDS. What is left of its events comes first in the next turn, so that the
  first sockets of a batch do not starve its last ones.
* After a turn that had to stop, PASSED_COUNT iterations of the loop pass without one. A request
  over HTTP takes several iterations, and would wait for a turn in each.
* An event says descriptor and generation. A socket that was closed by another one's callback in the
  same turn is out of the table; one that got its descriptor anew has another generation.
* Nothing is asked of epoll that would come again and again without being answered: a socket that is
  neither read nor written is not in the set, so that a peer's reset there costs no turns.
* The GIL stays held: each call is a few microseconds and never blocks.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport (
    EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, EPROTO, errno
)
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset, strerror
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close

from polymq.net.kernels.streams cimport Iteration, Stream, Wire

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int count, int timeout)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <sys/socket.h>
    """
    enum:
        AF_INET
        AF_INET6
        INET6_ADDRSTRLEN
        IPPROTO_TCP
        MSG_NOSIGNAL
        SOCK_CLOEXEC
        SOCK_NONBLOCK
        SOL_SOCKET
        SO_ERROR
        TCP_NODELAY
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    struct in_addr:
        pass
    struct in6_addr:
        pass
    struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_family
        unsigned short sin6_port
        uint32_t sin6_flowinfo
        in6_addr sin6_addr
        uint32_t sin6_scope_id
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags) nogil
    int getpeername(int fd, sockaddr *address, socklen_t *size) nogil
    int getsockname(int fd, sockaddr *address, socklen_t *size) nogil
    int getsockopt(int fd, int level, int name, void *value, socklen_t *size) nogil
    int setsockopt(int fd, int level, int name, const void *value, socklen_t size) nogil
    Py_ssize_t recv(int fd, void *memory, size_t size, int flags) nogil
    Py_ssize_t send(int fd, const void *data, size_t size, int flags) nogil
    Py_ssize_t sendmsg(int fd, const msghdr *message, int flags) nogil
    const char *inet_ntop(int family, const void *address, char *text, socklen_t size) nogil
    uint32_t ntohl(uint32_t value) nogil
    unsigned short ntohs(unsigned short value) nogil

cdef enum:
    EVENTS_MAX = 256                # sockets that are asked for at once
    TURN_NANOSECONDS = 2_000_000    # no further socket is served then
    PASSED_COUNT = 4                # with nothing to do they take 0.02 ms
    ACCEPTS_MAX = 64                # new connections in a turn and listener
    PIECES_MAX = 64                 # writes that leave together once the peer reads again
    HIGH_WATER = 64 * 1024          # as asyncio has it, until the stream says otherwise


cdef object os_error(int code):
    return OSError(code, strerror(code).decode("utf-8", "replace"))


cdef class Watched(Wire):
    """A descriptor in the epoll set; -1 when it has left."""

    cdef Plane plane
    cdef int fd
    cdef uint32_t generation
    cdef uint32_t interest  # what epoll is asked for; 0: it is not in the set

    def __cinit__(self):
        self.fd = -1

    cdef int ready(self, uint32_t events) except -1:
        """epoll has something to say."""
        raise NotImplementedError

    cdef int failed(self, error) except -1:
        """`ready` raised this."""
        self.plane.iteration.report(f"exception in {self!r}", error)
        return 0

    cdef int ask(self, uint32_t interest) except -1:
        """Tell epoll what is wanted from now on. Raises OSError."""
        cdef epoll_event event
        cdef int operation = EPOLL_CTL_MOD
        if interest == self.interest or self.fd < 0:
            return 0
        if self.interest == 0:
            operation = EPOLL_CTL_ADD
        elif interest == 0:
            operation = EPOLL_CTL_DEL
        event.events = interest
        event.data.u64 = <uint64_t> self.generation << 32 | <uint32_t> self.fd
        if epoll_ctl(self.plane.epoll, operation, self.fd, &event) < 0:
            raise os_error(errno)
        self.interest = interest
        return 0

    cdef int enter(self, Plane plane, int fd) except -1:
        """Take the descriptor's memory in the table."""
        cdef list table = plane.table
        self.plane = plane
        self.fd = fd
        plane.generation += 1
        self.generation = plane.generation
        while fd >= len(table):
            table.append(None)
        table[fd] = self
        return 0

    cdef int leave(self) except -1:
        """Out of the set and the table. The descriptor stays open."""
        if self.fd < 0:
            return 0
        if self.plane.epoll >= 0 and self.interest:
            epoll_ctl(self.plane.epoll, EPOLL_CTL_DEL, self.fd, NULL)
        self.interest = 0
        self.plane.table[self.fd] = None
        self.fd = -1
        return 0


cdef class Watcher(Watched):
    """A callback for a descriptor that is not a connection's."""

    cdef object callback

    cdef int ready(self, uint32_t events) except -1:
        self.callback()
        return 0


cdef class Acceptor(Watched):
    """A listening socket. It belongs to who made it.

    Attributes:
        paused: the system gave no descriptor or memory for the next connection; `resume` goes on.
    """

    cdef object factory
    cdef object exhausted
    cdef readonly bint paused

    def close(self):
        """Accept no more."""
        self.leave()

    def resume(self):
        """Accept again."""
        self.paused = False
        self.ask(EPOLLIN)

    cdef int ready(self, uint32_t events) except -1:
        cdef int fd, count, code, yes = 1
        cdef sockaddr_in6 peer
        cdef socklen_t size
        for count in range(ACCEPTS_MAX):
            if self.fd < 0:
                return 0
            size = sizeof(peer)
            memset(&peer, 0, sizeof(peer))
            fd = accept4(self.fd, <sockaddr *> &peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                code = errno
                if code in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    self.paused = True
                    self.ask(0)
                    self.exhausted(os_error(code))
                    return 0
                if code == EAGAIN:
                    return 0
                if code in (EINTR, ECONNABORTED, EPROTO, EPERM):
                    continue  # that one connection is gone
                raise os_error(code)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes))
            self.connect(fd, peer)
        return 0

    cdef int connect(self, int fd, sockaddr_in6 peer) except -1:
        cdef PlaneTransport transport = PlaneTransport.__new__(PlaneTransport)
        transport.address = peer
        transport.begin(self.plane, fd)
        try:
            transport.stream = self.factory(host_of(&transport.address))
            transport.ask(EPOLLIN)
            transport.stream.connection_made(transport)
        except Exception as error:
            transport.failed(error)
        return 0


cdef class PlaneTransport(Watched):
    """An accepted socket, as asyncio's transports are."""

    cdef Stream stream          # None once it was told that the socket is gone
    cdef bint reading           # the stream wants to be read
    cdef bint closing           # nothing more is read, or taken to be written
    cdef bint paused            # the stream was told to pause writing
    cdef bint lost              # `connection_lost` is to be called
    cdef list unsent            # what `send` did not take
    cdef Py_ssize_t sent        # of the first of them
    cdef Py_ssize_t unsent_bytes
    cdef Py_ssize_t high
    cdef Py_ssize_t low
    cdef object error           # why the socket was lost
    cdef sockaddr_in6 address   # of the peer

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    cdef int begin(self, Plane plane, int fd) except -1:
        """From here on it closes the descriptor."""
        self.reading = True
        self.high = HIGH_WATER
        self.low = HIGH_WATER // 4
        return self.enter(plane, fd)

    # --- what epoll says ----------------------------------------------------------------------

    cdef int ready(self, uint32_t events) except -1:
        if events & EPOLLOUT and self.unsent_bytes:
            self.drain()
        if events & (EPOLLIN | EPOLLHUP | EPOLLERR):
            if self.interest & EPOLLIN:
                self.read()
            elif events & (EPOLLHUP | EPOLLERR) and self.fd >= 0:
                self.fail(self.socket_error())
        return 0

    cdef int failed(self, error) except -1:
        """The stream raised this. The socket goes, as asyncio's transports have it."""
        context = {
            "message": "Fatal error: a protocol call failed.",
            "exception": error,
            "transport": self,
            "protocol": self.stream,
        }
        self.plane.iteration.loop.call_exception_handler(context)
        self.shut(error)
        return 0

    cdef int read(self) except -1:
        cdef Stream stream = self.stream
        cdef Py_ssize_t at = stream.make_room()
        cdef bytearray buffer = stream.context.buffer if stream.own is None else stream.own
        cdef Py_ssize_t count = recv(
            self.fd, PyByteArray_AS_STRING(buffer) + at, PyByteArray_GET_SIZE(buffer) - at, 0
        )
        if count > 0:
            stream.received(count)
            return 0
        if count == 0:
            self.reading = False
            if not stream.eof_received():
                return self.finish()
            self.want()
        elif errno not in (EAGAIN, EINTR):
            self.fail(errno)
        return 0

    cdef int drain(self) except -1:
        """Send what is unsent, as much as the socket takes."""
        cdef iovec pieces[PIECES_MAX]
        cdef msghdr message
        cdef Py_ssize_t index, count, asked, size, sent
        cdef bytes piece
        while self.unsent_bytes:
            count = min(len(self.unsent), <Py_ssize_t> PIECES_MAX)
            asked = 0
            for index in range(count):
                piece = <bytes> self.unsent[index]
                size = PyBytes_GET_SIZE(piece)
                pieces[index].iov_base = PyBytes_AS_STRING(piece)
                if index == 0:
                    pieces[index].iov_base = PyBytes_AS_STRING(piece) + self.sent
                    size -= self.sent
                pieces[index].iov_len = size
                asked += size
            memset(&message, 0, sizeof(message))
            message.msg_iov = pieces
            message.msg_iovlen = count
            sent = sendmsg(self.fd, &message, MSG_NOSIGNAL)
            if sent < 0:
                if errno in (EAGAIN, EINTR, ENOBUFS):
                    break
                return self.fail(errno)
            self.unsent_bytes -= sent
            size = sent + self.sent
            index = 0
            while index < count and size >= PyBytes_GET_SIZE(<bytes> self.unsent[index]):
                size -= PyBytes_GET_SIZE(<bytes> self.unsent[index])
                index += 1
            del self.unsent[:index]
            self.sent = size
            if sent < asked:
                break
        if self.unsent_bytes == 0:
            if self.closing:
                return self.shut(None)
            self.unsent = None
            self.want()
        if self.paused and self.unsent_bytes <= self.low:
            self.paused = False
            self.stream.resume_writing()
        return 0

    # --- states -------------------------------------------------------------------------------

    cdef int want(self) except -1:
        """Ask epoll for what this socket waits for."""
        cdef uint32_t interest = 0
        if self.reading and not self.closing:
            interest = EPOLLIN
        if self.unsent_bytes:
            interest |= EPOLLOUT
        return self.ask(interest)

    cdef int socket_error(self) except -1:
        cdef int code = 0
        cdef socklen_t size = sizeof(code)
        getsockopt(self.fd, SOL_SOCKET, SO_ERROR, &code, &size)
        return code

    cdef int fail(self, int code) except -1:
        """The socket is gone; 0: without an error."""
        return self.shut(os_error(code) if code else None)

    cdef int finish(self) except -1:
        """Close once all is sent."""
        if self.closing:
            return 0
        self.closing = True
        if self.unsent_bytes:
            return self.want()
        return self.shut(None)

    cdef int shut(self, error) except -1:
        """Close now; the stream learns it at the end of this iteration, or of the next."""
        cdef int fd = self.fd
        self.closing = True
        if fd < 0:
            return 0
        self.unsent = None
        self.unsent_bytes = 0
        self.error = error
        self.leave()
        close(fd)
        if self.stream is not None:
            self.plane.iteration.call_soon(self._tell)
        return 0

    def _tell(self):
        cdef Stream stream = self.stream
        self.stream = None
        if stream is not None:
            stream.connection_lost(self.error)

    # --- asyncio.Transport ----------------------------------------------------------------------

    def write(self, data):
        """Send, or keep what the socket does not take."""
        self.put(data if type(data) is bytes else bytes(data))

    cdef int put(self, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t sent = 0
        if self.closing or size == 0:
            return 0
        if self.unsent_bytes == 0:
            sent = send(self.fd, PyBytes_AS_STRING(data), size, MSG_NOSIGNAL)
            if sent == size:
                return 0
            if sent < 0:
                if errno not in (EAGAIN, EINTR, ENOBUFS):
                    return self.fail(errno)
                sent = 0
            self.sent = sent
            self.unsent = []
        self.unsent.append(data)
        self.unsent_bytes += size - sent
        self.want()
        return self.maybe_pause()

    cdef int maybe_pause(self) except -1:
        if self.unsent_bytes > self.high and not self.paused:
            self.paused = True
            self.stream.pause_writing()
        return 0

    def writelines(self, pieces):
        """As one write."""
        self.write(b"".join(pieces))

    def close(self):
        """Send what is unsent, then close. Nothing more is read."""
        self.finish()

    def abort(self):
        """Close without sending what is unsent."""
        self.shut(None)

    def is_closing(self):
        """Whether it was closed, by whomever."""
        return self.closing

    def is_reading(self):
        """Whether the stream is read."""
        return self.reading and not self.closing

    def pause_reading(self):
        """Leave what comes in the kernel's buffers."""
        self.reading = False
        self.want()

    def resume_reading(self):
        """Undo `pause_reading`."""
        self.reading = True
        self.want()

    def set_write_buffer_limits(self, high=None, low=None):
        """Unsent bytes above which the stream is told to pause, and at which to go on."""
        self.high = high if high is not None else 4 * low if low is not None else HIGH_WATER
        self.low = low if low is not None else self.high // 4
        if not self.high >= self.low >= 0:
            raise ValueError(f"high ({self.high}) has to be at least low ({self.low}), that 0")
        self.maybe_pause()

    def get_write_buffer_size(self):
        """Unsent bytes."""
        return self.unsent_bytes

    def get_protocol(self):
        """The stream, until it knows that the socket is gone."""
        return self.stream

    def can_write_eof(self):
        """No protocol here says its end with half a socket."""
        return False

    def get_extra_info(self, name, default=None):
        """`peername` (also when the socket is gone) and `sockname`, as tuples."""
        cdef sockaddr_in6 own
        cdef socklen_t size = sizeof(own)
        if name == "peername":
            return address_of(&self.address)
        if name == "sockname" and self.fd >= 0:
            if getsockname(self.fd, <sockaddr *> &own, &size) == 0:
                return address_of(&own)
        return default

    def __repr__(self):
        state = "closed" if self.fd < 0 else "closing" if self.closing else "open"
        return f"<PlaneTransport {state} peer={address_of(&self.address)}>"


cdef str host_of(sockaddr_in6 *address):
    """The address without its port; empty for what has no such address."""
    cdef char text[64]
    if address.sin6_family == AF_INET:
        inet_ntop(AF_INET, &(<sockaddr_in *> address).sin_addr, text, sizeof(text))
        return text.decode("ascii")
    if address.sin6_family == AF_INET6:
        inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text))
        return text.decode("ascii")
    return ""


cdef object address_of(sockaddr_in6 *address):
    """As Python's sockets say it; None for what has no such address."""
    if address.sin6_family == AF_INET:
        return (host_of(address), <int> ntohs((<sockaddr_in *> address).sin_port))
    if address.sin6_family == AF_INET6:
        return (
            host_of(address),
            <int> ntohs(address.sin6_port),
            <long> ntohl(address.sin6_flowinfo),
            <long> address.sin6_scope_id,
        )
    return None


cdef inline long long nanoseconds() noexcept:
    """Of a clock that does not go back."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long> now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef class Plane:
    """The epoll set of one loop. Not for use from other threads.

    Args:
        iteration: the shared buffer, and what happens at the end of an iteration.

    Raises:
        OSError: the system gives no epoll descriptor.
    """

    cdef readonly Iteration iteration
    cdef int epoll
    cdef epoll_event events[EVENTS_MAX]
    cdef int at             # the next event to be looked at
    cdef int count          # events of the last `epoll_wait`
    cdef int to_pass        # iterations without a turn
    cdef list table         # descriptor -> Watched or None
    cdef uint32_t generation

    def __cinit__(self):
        self.epoll = -1

    def __init__(self, Iteration iteration not None):
        self.iteration = iteration
        self.table = []
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise os_error(errno)
        iteration.loop.add_reader(self.epoll, self.turn)

    def __dealloc__(self):
        if self.epoll >= 0:
            close(self.epoll)

    def accept(self, int fd, factory, exhausted):
        """Accept connections of a listening socket.

        Args:
            fd: of a socket that listens and does not block; it stays the caller's.
            factory: makes the stream of a new connection, whose remote address it is given.
            exhausted: called with the OSError when the system has no room for a connection;
                nothing is accepted until the acceptor's `resume`.
        """
        cdef Acceptor acceptor = Acceptor.__new__(Acceptor)
        acceptor.factory = factory
        acceptor.exhausted = exhausted
        acceptor.enter(self, fd)
        acceptor.ask(EPOLLIN)
        return acceptor

    def adopt(self, int fd, Stream stream not None):
        """Take over a connected socket that does not block: the descriptor is the plane's."""
        cdef int yes = 1
        cdef PlaneTransport transport = PlaneTransport.__new__(PlaneTransport)
        cdef socklen_t size = sizeof(transport.address)
        memset(&transport.address, 0, size)
        getpeername(fd, <sockaddr *> &transport.address, &size)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes))
        transport.begin(self, fd)
        try:
            transport.stream = stream
            transport.ask(EPOLLIN)
            stream.connection_made(transport)
        except Exception as error:
            transport.failed(error)

    def add_reader(self, int fd, callback):
        """Call back within a turn while the descriptor is readable."""
        cdef Watcher watcher = Watcher.__new__(Watcher)
        watcher.callback = callback
        watcher.enter(self, fd)
        watcher.ask(EPOLLIN)

    def remove_reader(self, int fd):
        """Undo `add_reader`."""
        if 0 <= fd < len(self.table) and isinstance(self.table[fd], Watcher):
            (<Watcher> self.table[fd]).leave()

    def turn(self):
        """Serve what is ready, then end the iteration. Called by the loop."""
        cdef Iteration iteration = self.iteration
        cdef Watched watched
        cdef uint32_t fd
        cdef epoll_event *event
        cdef long long end
        if self.to_pass:
            self.to_pass -= 1
            return
        end = nanoseconds() + TURN_NANOSECONDS
        if self.at >= self.count:
            self.at = 0
            self.count = epoll_wait(self.epoll, self.events, EVENTS_MAX, 0)
        iteration.begun = True
        try:
            while self.at < self.count and self.epoll >= 0:
                event = &self.events[self.at]
                self.at += 1
                fd = <uint32_t> event.data.u64
                if self.table[fd] is None:
                    continue
                watched = <Watched> self.table[fd]
                if watched.generation != <uint32_t> (event.data.u64 >> 32):
                    continue
                try:
                    watched.ready(event.events)
                except Exception as error:
                    watched.failed(error)
                if nanoseconds() >= end:
                    self.to_pass = PASSED_COUNT
                    break
        finally:
            iteration.end()

    def close(self):
        """Stop. Connections that are still there are aborted."""
        cdef Watched watched
        if self.epoll < 0:
            return
        self.iteration.loop.remove_reader(self.epoll)
        for watched in self.table:
            if isinstance(watched, PlaneTransport):
                (<PlaneTransport> watched).shut(None)
            elif watched is not None:
                watched.leave()
        close(self.epoll)
        self.epoll = -1
