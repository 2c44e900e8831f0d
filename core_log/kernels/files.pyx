# cython: language_level=3
"""To write the end of the log without more Python than a call: the twin of `files.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, EIO, errno
from libc.string cimport strerror
from posix.unistd cimport pwrite


def write_part(
    int handle, bytearray memory not None, Py_ssize_t start, Py_ssize_t end, long long position
):
    cdef Py_buffer view
    if not 0 <= start <= end <= len(memory):
        raise ValueError(f"no part of {len(memory)} bytes: {start} to {end}")
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)  # so it stays where it is
    try:
        write_all(handle, <char *> view.buf + start, end - start, position)
    finally:
        PyBuffer_Release(&view)


cdef int write_all(int handle, const char *memory, Py_ssize_t size, long long position) except -1:
    cdef Py_ssize_t written
    while size:  # bounded: every turn writes at least a byte, or raises, or a signal came
        with nogil:
            written = pwrite(handle, memory, size, position)
        if written > 0:
            memory += written
            position += written
            size -= written
        elif written == 0:
            raise OSError(EIO, "a write made no progress")
        elif errno == EINTR:
            PyErr_CheckSignals()
        else:
            raise OSError(errno, strerror(errno).decode("utf-8", "replace"))
    return 0
