"""A framework whose tensors speak DLPack's C exchange API and claim to be in GPU memory, with no GPU, by ctypes."""

from __future__ import annotations

import ctypes

from tests.runtime.tensors import DLTensor, FakeTensor, compact, type_of

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class ManagedTensor(ctypes.Structure):
    """`DLManagedTensorVersioned` of dlpack.h."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, SET_ERROR
)
EXPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
IMPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
VIEW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeAPI(ctypes.Structure):
    """`DLPackExchangeAPI` of dlpack.h."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("older", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("export", EXPORT),
        ("take", IMPORT),
        ("view", VIEW),
        ("stream", STREAM),
    )


def capsule_of(address, name):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, name, None)


class Framework:
    """The framework: its `Tensor` type, what it allocated and what it was told to delete, in order."""

    def __init__(self, *, views=True, major=1, older=None, stream=0x5550):
        self.current_stream, self.error, self.device = stream, None, None
        self.exported, self.allocated, self.deleted = [], [], []
        self._alive = {}
        self._deleter = DELETER(self.deleted.append)
        view = VIEW(self._view) if views else VIEW()
        self.api = ExchangeAPI(
            (ctypes.c_uint32 * 2)(major, 0),
            None if older is None else ctypes.addressof(older.api),
            ALLOCATE(self._allocate),
            EXPORT(self._export),
            IMPORT(self._take),
            view,
            STREAM(self._stream),
        )
        capsule = capsule_of(ctypes.addressof(self.api), b"dlpack_exchange_api")
        self.Tensor = type("Tensor", (FakeTensor,), {"__dlpack_c_exchange_api__": capsule, "__module__": "framework"})

    def _manage(self, tensor):
        """Make what DLPack hands about of a tensor; gives its address, by which it is told to be deleted."""
        count = len(tensor.shape)
        shape, strides = (ctypes.c_int64 * count)(*tensor.shape), (ctypes.c_int64 * count)(*tensor.strides)
        device = (ctypes.c_int32 * 2)(*tensor.device)
        view = DLTensor(tensor.address, device, count, *type_of(tensor.dtype), shape, strides, tensor.offset)
        managed = ManagedTensor((ctypes.c_uint32 * 2)(1, 0), None, self._deleter, 0, view)
        self._alive[ctypes.addressof(managed)] = (managed, shape, strides, tensor)
        return ctypes.addressof(managed)

    def _view(self, tensor, out):
        if self.error == "view":
            return -1
        managed = self._alive[self._manage(tensor)][0]
        ctypes.memmove(out, ctypes.byref(managed.tensor), ctypes.sizeof(DLTensor))
        return 0

    def _export(self, tensor, out):
        out[0] = self._manage(tensor)
        self.exported.append(out[0])
        return 0

    def _allocate(self, prototype, out, context, set_error):
        if self.error is not None:
            set_error(context, *self.error)
            return -1
        asked = prototype.contents
        shape = tuple(asked.shape[i] for i in range(asked.ndim))
        tensor = self.Tensor(shape, (asked.code, asked.bits), compact(shape), device=tuple(asked.device))
        out[0] = self._manage(tensor)
        self.allocated.append((out[0], tensor))
        return 0

    def _take(self, address, out):
        tensor = self._alive[address][3]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        out[0] = id(tensor)
        return 0

    def _stream(self, kind, ordinal, out):
        self.device = (kind, ordinal)
        out[0] = self.current_stream
        return 0
