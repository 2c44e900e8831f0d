# cython: language_level=3
"""Of what types `files_end.py` is where it is compiled, as `fast_files_end`."""

cimport cython


cdef class FilesEnd:
    @cython.locals(written=Py_ssize_t, total=Py_ssize_t, step=Py_ssize_t)
    cpdef pwritev(self, handle, buffers, position)
