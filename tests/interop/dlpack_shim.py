"""Our local tensors in Python, by ctypes: what DLPack's Python protocol asks of a producer and a consumer.

  shim = Shim("bazel-bin/tests/interop/dlpack_shim.so")
  ours = shim.from_dlpack(array)   # the same memory
  numpy.from_dlpack(ours)          # and back
"""

import ctypes

def _capsule(name, result, *arguments):
    """A function on capsules: of Python's objects, and of addresses, while an object is being destroyed."""
    return [ctypes.PYFUNCTYPE(result, first, *arguments)((f"PyCapsule_{name}", ctypes.pythonapi))
            for first in (ctypes.py_object, ctypes.c_void_p)]


_is_valid, _is_valid_at = _capsule("IsValid", ctypes.c_int, ctypes.c_char_p)
_pointer, _pointer_at = _capsule("GetPointer", ctypes.c_void_p, ctypes.c_char_p)
_set_name, _ = _capsule("SetName", ctypes.c_int, ctypes.c_char_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))

# By whether it has a version. A capsule keeps the pointer to its name, so these are never freed.
_NAMES = {True: b"dltensor_versioned", False: b"dltensor"}
_USED = {True: b"used_dltensor_versioned", False: b"used_dltensor"}

_FUNCTIONS = {  # name: (result, arguments)
    "error": (ctypes.c_char_p, []),
    "tensors": (ctypes.c_int64, []),
    "import": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_bool]),
    "export": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_bool]),
    "delete": (None, [ctypes.c_void_p, ctypes.c_bool]),
    "transpose": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "before_write": (ctypes.c_bool, [ctypes.c_void_p]),
    "data": (ctypes.c_void_p, [ctypes.c_void_p]),
    "print": (ctypes.c_char_p, [ctypes.c_void_p]),
    "free": (None, [ctypes.c_void_p]),
}


class Shim:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = library[f"shim_{name}"]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        # For capsules that nobody consumed; their name says so.
        self._destructors = {v: self._destructor(v) for v in _NAMES}

    def _destructor(self, versioned):
        def destroy(capsule):
            if _is_valid_at(capsule, _NAMES[versioned]):
                self.delete(_pointer_at(capsule, _NAMES[versioned]), versioned)

        return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(destroy)

    def from_dlpack(self, other, version=(1, 1)):
        """The memory of an array of another library. Raises ValueError with our message."""
        try:
            capsule = other.__dlpack__(max_version=version) if version else other.__dlpack__()
        except TypeError:  # it is older than versions
            capsule = other.__dlpack__()
        versioned = bool(_is_valid(capsule, _NAMES[True]))
        managed = _pointer(capsule, _NAMES[versioned])
        _set_name(capsule, _USED[versioned])
        return self._ours(getattr(self, "import")(managed, versioned))

    def capsule(self, handle, versioned):
        managed = self.export(handle, versioned)
        if not managed:
            raise ValueError(self.error().decode())
        return _new(managed, _NAMES[versioned],
                    ctypes.cast(self._destructors[versioned], ctypes.c_void_p))

    def _ours(self, handle):
        if not handle:
            raise ValueError(self.error().decode())
        return Ours(self, handle)


class Ours:
    """A tensor of ours; its handle is freed with it."""

    def __init__(self, shim, handle):
        self.shim, self.handle = shim, handle

    def __del__(self):
        self.shim.free(self.handle)

    def __str__(self):
        return self.shim.print(self.handle).decode()

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, max_version=None, **_):
        return self.shim.capsule(self.handle, max_version is not None and max_version >= (1, 0))

    def transpose(self, dim0, dim1):
        return self.shim._ours(self.shim.transpose(self.handle, dim0, dim1))

    def before_write(self):
        return self.shim.before_write(self.handle)

    def data(self):
        return self.shim.data(self.handle)
