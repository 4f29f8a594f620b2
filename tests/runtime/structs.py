"""What the C API and the recorder write, as ctypes has it; tests/runtime/recorder.cc has the second."""

from __future__ import annotations

import ctypes


class Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("strides", ctypes.c_int64 * 2))


class GateTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 3), ("strides", ctypes.c_int64 * 3))


class GateStack(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 4), ("strides", ctypes.c_int64 * 4))


class Vector(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 1))


class StridedVector(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 1), ("strides", ctypes.c_int64 * 1))


class RightOperand(ctypes.Union):
    """A, B or D: its fields are a matrix's; with a gate, and of a batch, `parts` is it; of groups, the stacks."""

    _fields_ = (("matrix", Tensor), ("parts", GateTensor), ("stack", GateTensor), ("stack_of_parts", GateStack))
    _anonymous_ = ("matrix",)


class Bias(ctypes.Union):
    """A bias: its fields are those of a vector; with a gate, `parts` is it."""

    _fields_ = (("vector", Vector), ("parts", Tensor), ("stack", Tensor), ("stack_of_parts", GateTensor))
    _anonymous_ = ("vector",)


class Factors(ctypes.Union):
    _fields_ = (("vector", StridedVector), ("matrix", Tensor), ("stack", GateTensor))


class FakeLaunch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kernel", "num_arguments", "device", "workspace_floats", "reads_early")),
        ("a", RightOperand),
        ("b", RightOperand),
        ("d", RightOperand),
        ("bias", Bias),
        ("workspace", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("scale_a", Factors),
        ("scale_b", Factors),
        ("residual", Tensor),
        ("scale_d", Vector),
        ("offsets", Vector),
        ("index", Vector),
        ("b_of_groups", Vector),
        ("places", Vector),
        ("scale_b_of_groups", Vector),
        ("scale_b_places", Vector),
        ("parts", ctypes.c_int64 * 8 * 4),
        ("own_d", Vector),
        ("factors_d", Vector),
    )


class RealLaunch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("num_attributes", ctypes.c_int32),
        ("attribute_ids", ctypes.c_int32 * 4),
        ("attribute_values", ctypes.c_int32 * 3 * 4),
        ("parameters", ctypes.c_ubyte * 4096),
    )


class Order(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_void_p), ("num_launches", ctypes.c_int64))


class Clear(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("num_bytes", ctypes.c_uint64), ("stream", ctypes.c_void_p))


class MemoryStruct(ctypes.Structure):
    """`aot_gemm_memory_t` of aot_gemm_memory.h."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("num_objects", "object_bytes", "num_loaded", "loaded_bytes")),
    )
