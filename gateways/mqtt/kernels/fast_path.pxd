# cython: language_level=3
"""Of what types `fast_path.py` is where it is compiled."""

cimport cython

from polymq.gateways.mqtt.kernels.frames cimport PacketReader
from polymq.net.kernels.streams cimport Shortcut, Stream

cdef int PUBLISH, PUBACK, PUBREC, PUBREL, DOLLAR, PACKET_READ, SUBSCRIPTION_IDENTIFIER
cdef int TOPIC_ALIAS, SHARED_ALIAS_MAX
cdef long long FLAG_PROPERTIES, FLAGS_PLAIN, PACKET_MAX
cdef long long ASK_BYTES
cdef Py_ssize_t COLUMNS, TOPIC_START, BODY_START, BODY_SIZE


cdef class Answers:
    cdef public object port
    cdef public object durability
    cdef public list waiting
    cdef public bint asked
    cpdef add(self, position, FastPath path, bytes data)
    @cython.locals(
        waiting=list, leaving=list, count=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t,
        slow=bint, path=FastPath,
    )
    cpdef release(self)


cdef class SharedPaths:
    cdef public object port
    cdef readonly PacketReader packet
    cdef readonly object batch
    cdef bytearray buffer
    cdef long long[::1] rows
    cdef public object counters
    cdef public Py_ssize_t packet_bytes_max
    cdef public long long topic_aliases_max
    cdef public long long delivery_bytes_max
    cdef public object batch_path
    cdef public list answers
    cdef public long long ask_at
    cdef public long long received
    cdef public long long sent
    cdef public long long received_bytes
    cdef public long long sent_bytes
    cdef public long long others_received
    cdef public long long others_sent
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=cython.longlong)
    cdef took(self, Py_ssize_t first, Py_ssize_t last, long long[::1] rows)
    cdef public long long pubacks_received
    cdef public long long pubacks_sent
    cdef public long long pubrecs_sent
    cdef public list refusals
    cdef public bint checks_payloads
    cdef fill_row(self, PacketReader packet)


cdef class FastPath(Shortcut):
    cdef public SharedPaths shared
    cdef public Stream connection
    cdef public object port
    cdef public object mapping
    cdef public object session
    cdef public object publish
    cdef public object write
    cdef public bint five
    cdef public object takes_apart
    cdef public dict aliases
    cdef public object aliases_out
    cdef Py_ssize_t dropped
    cdef public long long sent_bytes_max
    cdef int last_flags
    cdef bytes last_name
    cdef object last_template
    cdef object last_class
    cdef bint last_in_sync
    cdef public object last_meta
    cdef public bytes more
    cdef bytes last_topic
    cdef public bint asks_always
    cdef public bint asks
    cdef public object quota
    cdef public bint leaving
    cdef public long long waiting
    cdef public long long slow_waiting
    cdef public object slowest
    cdef public long long message_bytes
    @cython.locals(packet=PacketReader)
    cdef bint take_packet(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    cpdef bint take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(
        flags=int, topic=Py_ssize_t, topic_end=Py_ssize_t, packet_id=int,
        shared=SharedPaths, position=cython.longlong,
    )
    cdef bint take_publish(self, bytearray buffer, PacketReader packet) except -1
    @cython.locals(name=bytes, size=Py_ssize_t, index=Py_ssize_t)
    cdef bint is_last_name(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    cdef look_at_disk(self, long long position)
    @cython.locals(answers=Answers)
    cpdef answer_when(self, position, bytes data, durability)
    cdef answered(self, bytes data, bint slow)
    @cython.locals(connection=Stream, room=cython.longlong)
    cpdef credit(self)
    @cython.locals(count=Py_ssize_t, size=Py_ssize_t, topic=bytes, data=bytes, connection=Stream)
    cdef send_run(self, run, int first_byte, long long first_packet_id, tuple identifiers)
    @cython.locals(
        is_shared=bint, data=bytes, more=bytes, head=bytes, again=bytes, alias_property=bytes,
        alias=int, offered=int,
    )
    cdef bytes encode_5(
        self, run, bytes topic, int first_byte, long long first_packet_id, tuple identifiers
    )
    @cython.locals(data=bytes)
    cdef bytes encode_run(
        self, run, bytes topic, bytes again, int first_byte, long long first_packet_id, bytes more
    )
