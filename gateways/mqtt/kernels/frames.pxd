# cython: language_level=3
"""What other kernels use of `frames.pyx` without a Python call."""


cdef class PacketReader:
    cdef readonly int first
    cdef readonly int packet_id
    cdef readonly long long flags
    cdef readonly Py_ssize_t topic_start
    cdef readonly Py_ssize_t topic_end
    cdef readonly Py_ssize_t properties
    cdef readonly Py_ssize_t body
    cdef readonly Py_ssize_t end
    cpdef int read(
        self, bytearray buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t packet_bytes_max,
        bint five=*,
    ) except? -2
