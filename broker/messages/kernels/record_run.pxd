# cython: language_level=3
"""Of what types `record_run.py` is where it is compiled."""


cdef class RecordRun:
    cdef public object meta
    cdef public object memory
    cdef public Py_ssize_t start
    cdef public Py_ssize_t end
    cdef public Py_ssize_t count
    cdef public dict encoded
