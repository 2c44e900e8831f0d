# cython: language_level=3
"""Of what types `path.py` is where it is compiled."""

cimport cython

from polymq.broker.messages.kernels.record_run cimport RecordRun
from polymq.broker.kernels.routes cimport RouteEnd, RouterEnd
from polymq.core_log.kernels.index_end cimport IndexEnd
from polymq.core_log.kernels.log_end cimport LogEnd, Span

cdef Py_ssize_t JOINED_COUNT_MAX
cdef int SHOWN_AT_ONCE, QUEUE_COST, QUEUES_MANY, LIVE_COST, LIVE_BYTES_SHIFT, ANSWER_COST


cdef class Committed(RecordRun):
    cdef public list spans
    cdef public list parts
    @cython.locals(span=Span, part=Span)
    cdef fill(self, meta, list spans)
    @cython.locals(last=RecordRun)
    cpdef bint join(self, Span span) except -1
    @cython.locals(span=Span)
    cpdef list slice(self, first, count)


cdef class QueueEnd:
    cdef public long long number
    cdef public IndexEnd index
    cdef public object reader
    cdef public long long visible
    cdef public long long flushed
    cdef public long long blocked_until
    cdef public object read_point
    cdef public object on_grown
    cpdef show_to(self, long long end)
    @cython.locals(first=cython.longlong)
    cpdef commit(self, Committed run)


cdef class Waiting(Committed):
    cdef public PlainTemplate template
    cdef public tuple live
    cdef public tuple queues
    cdef public object durability
    cdef public long long position
    cdef public bint own
    cdef public object on_shown
    cdef public Py_ssize_t shown
    cdef public tuple groups
    cdef public Py_ssize_t inside
    cdef public long long first
    @cython.locals(route=RouteEnd)
    cdef wait_for(self, PlainTemplate template, durability, long long position)
    cpdef bint takes(self, PlainTemplate template, list spans, long long written) except -1
    @cython.locals(queue=QueueEnd)
    cpdef release(self, set unflushed)
    @cython.locals(own=QueueEnd)
    cpdef release_to_readers(self, set unflushed)
    @cython.locals(queue=QueueEnd, cost=cython.longlong)
    cpdef long long release_to_queues(self, long long room) except? -1
    @cython.locals(queue=QueueEnd, cost=cython.longlong)
    cdef long long cost(self) except -1


cdef class CommitPoints:
    cdef public list points
    cdef public list reached
    cdef public object urgent
    cdef public bint holding
    cdef public bint failed
    cdef public set unflushed
    cdef public object sample
    cdef public list _waiting
    cdef object _later
    cdef bint _going_on
    cpdef bint committed(self, position, durability) except -1
    cpdef wait_for(self, position, durability, callback, tuple args, bint urgent)
    cpdef show_when_committed(self, Waiting run)
    cpdef advance(self, int durability, long long position)
    @cython.locals(
        entry=tuple, end=cython.longlong, run=Waiting, count=Py_ssize_t, weaker=Py_ssize_t
    )
    cdef _let_go(self, int durability, long long position)
    @cython.locals(
        entry=tuple, end=cython.longlong, run=Waiting, count=Py_ssize_t, room=cython.longlong
    )
    cdef Py_ssize_t _fitting(self, waiting, long long position) except -2
    @cython.locals(entry=tuple, run=Waiting)
    cdef _let_some_go(self, int durability, Py_ssize_t count)


cdef class CoreEnd:
    cdef public object clock_ms
    cdef public LogEnd log
    cdef public CommitPoints commits
    cdef public object scheduler
    cdef public object disk
    cdef public object failure
    cdef public bint full
    cdef public bint end_scheduled
    cdef public long long iteration_ms
    cdef public object on_written
    cdef public double _lazy_flush_seconds
    cdef public long long _lazy_flush_bytes
    cdef public long long _flush_requested
    cdef public bint _lazy_scheduled
    cpdef appended(self)
    @cython.locals(log=LogEnd, written=cython.longlong, urgent=cython.longlong)
    cpdef end_iteration(self)
    cpdef bint committed(self, position, durability) except -1


cdef class PlainTemplate:
    cdef public RouteEnd route
    cdef public QueueEnd queue
    cdef public object record
    cdef public object meta
    cdef public object durability
    cdef public tuple derived_from
    cdef public tuple queues
    cdef public bint plain


cdef class Publisher:
    cdef public CoreEnd core
    cdef public RouterEnd router
    cdef public LogEnd log
    cdef public CommitPoints commits
    cdef public Waiting _last
    @cython.locals(
        core=CoreEnd, route=RouteEnd, queue=QueueEnd, index=IndexEnd, log=LogEnd, span=Span,
        now=cython.longlong,
    )
    cpdef publish_run(self, PlainTemplate template, batch, Py_ssize_t first, Py_ssize_t last)
    @cython.locals(last=Waiting, run=Waiting, queue=QueueEnd)
    cpdef wait(self, PlainTemplate template, list spans, long long position)
