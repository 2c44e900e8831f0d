# cython: language_level=3
"""Of what types `delivery.py` is where it is compiled."""

cimport cython

from polymq.broker.kernels.path cimport Committed
from polymq.broker.messages.kernels.record_run cimport RecordRun
from polymq.broker.messages.kernels.unacked cimport UnackedRuns

cdef long long PACKET_IDS


cdef class SessionEnd:
    cdef public long long number
    cdef public long long window
    cdef public object link
    cdef public object takes_apart
    cdef public UnackedRuns unacked
    cdef public dict releasing
    cdef public bint _starved
    cdef object _last_meta
    cdef int _last_qos
    @cython.locals(
        window=cython.longlong, ids=cython.longlong, credit=cython.longlong, unacked=UnackedRuns
    )
    cpdef long long credit(self) except -1
    cpdef long long room(self) except -1
    @cython.locals(qos=int)
    cpdef int sent_qos(self, RecordRun run, int qos_max) except -1
    @cython.locals(packet=cython.longlong)
    cpdef send_live(self, RecordRun run, int qos, bint retain=*, tuple identifiers=*)
    @cython.locals(
        tag=cython.longlong, known=cython.longlong, oldest=cython.longlong, unacked=UnackedRuns
    )
    cpdef acknowledged(self, long long first_packet_id, long long count, bint more=*)
    cpdef long long _oldest_tag(self) except -1
    @cython.locals(oldest=cython.longlong)
    cpdef long long _tag(self, long long packet) except -1
    cpdef long long _count_before_oldest(self, long long tag) except -1


cdef class LiveEnd:
    cdef public object session
    cdef public int qos
    cdef public object queue
    cdef public bint special
    @cython.locals(session=SessionEnd, plain=cython.bint, qos=int, room=cython.longlong)
    cpdef offer(self, Committed run)
