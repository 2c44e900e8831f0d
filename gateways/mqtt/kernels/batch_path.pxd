# cython: language_level=3
"""Of what types `batch_path.py` is where it is compiled."""

cimport cython

from polymq.gateways.mqtt.kernels.fast_path cimport FastPath, SharedPaths

cdef int EXACTLY_ONCE, DOLLAR, FLAG_QOS, FLAG_PROPERTIES, ALIAS_SHIFT
cdef long long FLAGS_PLAIN, FLAGS_OF_KIND
cdef Py_ssize_t RUNS_AT_ONCE, MANY_QUEUES, ACKS_AT_ONCE, RECORD_COST, ACK_COLUMNS, ACK_TYPE
cdef Py_ssize_t COLUMNS, TOPIC_START, TOPIC_SIZE, FLAGS
cdef long long ASK_BYTES


cdef class BatchPath:
    cdef public SharedPaths shared
    cdef public object inbox
    cdef public object batch
    cdef long long[::1] rows
    cdef public object runs
    cdef public object acks
    @cython.locals(run_count=Py_ssize_t, ack_count=Py_ssize_t)
    cpdef take(self, FastPath path, bytearray buffer, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(at=Py_ssize_t, run_count=Py_ssize_t, ack_count=Py_ssize_t)
    cpdef bint take_whole(
        self, FastPath path, bytearray buffer, Py_ssize_t start, Py_ssize_t end
    ) except -1
    @cython.locals(room=Py_ssize_t, index=Py_ssize_t, at=Py_ssize_t)
    cdef bint are_few_acks(self, Py_ssize_t ack_count) except -1
    cpdef take_acks(self, FastPath path, Py_ssize_t ack_count)
    @cython.locals(
        count=Py_ssize_t, index=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t, at=Py_ssize_t,
        start=Py_ssize_t, flags=cython.longlong, topic=bytes, key=bytes,
    )
    cdef bint is_one_turn(
        self, FastPath path, Py_ssize_t run_count, Py_ssize_t ack_count
    ) except -1
    @cython.locals(
        begin=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t,
        at=Py_ssize_t, start=Py_ssize_t, flags=cython.longlong, topic=bytes, key=bytes,
        stored=cython.longlong, waits_for=cython.longlong, ends_at=cython.longlong,
        shared=SharedPaths, pubacks=Py_ssize_t, pubrecs=Py_ssize_t, answer=bytes,
    )
    cpdef take_publishes(
        self, FastPath path, Py_ssize_t first_run, Py_ssize_t last_run, Py_ssize_t run_count
    )
