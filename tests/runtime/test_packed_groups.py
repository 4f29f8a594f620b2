"""Groups of rows by packed weights: what the C API takes, what kernels get, Python's calls, and torch's operator."""

from __future__ import annotations

import ctypes
from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from aot.core.weight_format import PackedLayout
from aot.measure.call_structs import GroupStrides, ProblemStruct, TensorStruct
from tests.runtime import host, torch_reference
from tests.runtime.exchange import Framework
from tests.runtime.stating import PACKED_GROUPS
from tests.runtime.tensors import BFLOAT16, FLOAT16, FLOAT32, INT32, UINT8
from tests.runtime.torch_reference import random_tensor

M, N, K, GROUPS, ROWS_OF_A = 48, 72, 256, 5, 19
X, B, D, SCALE, BIAS, OFFSETS, INDEX, WORKSPACE = (i << 44 for i in range(1, 9))
GATHERED = next(x for x in PACKED_GROUPS if x.tag.endswith("gathered"))


@pytest.fixture
def library(packed_package):
    library = host.Library(packed_package._library.LIBRARY)
    library.c.recorder_reset()
    return library


def weight_shape(operation, n=N):
    return PackedLayout(operation.b.weight).shape(n, K)


def launch(library, operation, *, n=N, k=K, b=B, step=None, apart=(), flags=0, d=D):
    """Launch groups, of a stack, or with weights `apart` at addresses of their own; strides of B are not looked at."""
    rows, row_bytes = weight_shape(operation, n)
    number = library.c.aot_gemm_operation(operation.call.encode())
    tensors = TensorStruct(X, (k, 1)), TensorStruct(None if apart else b, (-3, 7)), TensorStruct(d, (n, 1))
    problem = ProblemStruct(ctypes.sizeof(ProblemStruct), number, -1, M, n, k, *tensors, flags)
    problem.num_groups, problem.offsets = GROUPS, TensorStruct(OFFSETS, (1, 1))
    problem.bias = TensorStruct(BIAS, (0, 1))
    if operation.types.scale_b is not None:
        problem.scale_b = TensorStruct(SCALE, (1, 0))
    if operation is GATHERED:
        problem.index, problem.rows_of_a = TensorStruct(INDEX, (1, 1)), ROWS_OF_A
    of_b = 0 if apart else rows * row_bytes if step is None else step
    problem.group_strides = GroupStrides(b=of_b, bias=n, scale_b=n)
    if apart:
        problem.b_of_groups = (ctypes.c_void_p * len(apart))(*apart)
    status = library.c.aot_gemm_launch(
        ctypes.byref(problem), ctypes.c_void_p(WORKSPACE), ctypes.c_size_t(1 << 40), None
    )
    return library.c.aot_gemm_last_error().decode() if status else ""


@pytest.mark.parametrize("operation", PACKED_GROUPS, ids=lambda x: x.tag)
def test_a_kernel_gets_a_stack_of_bytes(library, operation):
    for n in (N, N - 1):  # the second is the fallback's
        assert launch(library, operation, n=n) == ""
        (got,) = library.fake_launches()
        rows, row_bytes = weight_shape(operation, n)
        b = got.b.stack
        assert (b.data, tuple(b.shape), tuple(b.strides)[:2]) == (
            B,
            (GROUPS, rows, row_bytes),
            (rows * row_bytes, row_bytes),
        )
        assert (got.bias.stack.data, tuple(got.bias.stack.shape), got.bias.stack.strides[0]) == (BIAS, (GROUPS, n), n)
        assert (got.offsets.data, got.offsets.shape[0]) == (OFFSETS, GROUPS)
        assert tuple(got.a.matrix.shape) == (ROWS_OF_A if operation is GATHERED else M, K)
        if operation.types.scale_b is not None:
            factors = got.scale_b.matrix
            assert (factors.data, tuple(factors.shape), tuple(factors.strides)) == (SCALE, (GROUPS, n), (n, 1))
        library.c.recorder_reset()


def test_weights_apart_are_places_of_a_stack(library):
    apart = [B + (i * 7 % GROUPS << 20) for i in range(GROUPS)]
    assert launch(library, PACKED_GROUPS[0], apart=apart) == ""
    (got,) = library.fake_launches()
    assert (got.b.stack.data, got.b.stack.strides[0], got.b_of_groups.shape[0]) == (min(apart), 1 << 20, GROUPS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 24}, "group_strides.b is 24, the bytes from a packed weight to the next; expected a multiple of 16"),
        ({"b": B + 8}, f"B is at address {hex(B + 8)}; expected a multiple of 16, which packed weights begin at"),
        ({"apart": [B, B + 8, B, B, B]}, f"B of a group is at address {hex(B + 8)}; expected a multiple of 16"),
        ({"k": K - 8}, "k is 248; expected a multiple of 32, of which weights of mxfp4 are packed"),
        ({"d": B + 64}, f"D at address {hex(B + 64)} reaches into the memory of B"),
        ({"step": -16}, "group_strides.b is -16; expected 0 or more"),
    ],
)
def test_what_no_such_groups_are_is_refused(library, changes, message):
    assert launch(library, PACKED_GROUPS[0], **changes)[: len(message)] == message
    assert library.fake_launches() == []


# Python.


def call(package, framework, operation, **changes):
    dtype = FLOAT16 if operation.a.element.value == "float16" else BFLOAT16
    given = {
        "x": framework.Tensor((ROWS_OF_A if operation is GATHERED else M, K), dtype),
        "weight": framework.Tensor((GROUPS, *weight_shape(operation)), UINT8),
        "offsets": framework.Tensor((GROUPS,), INT32),
        "index": framework.Tensor((M,), INT32) if operation is GATHERED else None,
        "scale_w": framework.Tensor((GROUPS,), FLOAT32) if operation.types.scale_b else None,
        "weight_format": operation.b.weight.name,
        "columns": N,
    }
    return package.packed_grouped_linear(**given | changes)


@pytest.mark.parametrize("operation", PACKED_GROUPS, ids=lambda x: x.tag)
def test_a_call_is_launched(packed_package, packed_manifest, library, operation):
    framework = Framework()
    out = call(packed_package, framework, operation, offsets=framework.Tensor((GROUPS + 1,), INT32))
    (got,) = library.fake_launches()
    assert packed_manifest.kernels[got.kernel].operation == operation
    assert (tuple(out.shape), got.d.data, got.offsets.shape[0]) == ((M, N), out.address, GROUPS + 1)
    rows, row_bytes = weight_shape(operation)
    assert tuple(got.b.stack.shape) == (GROUPS, rows, row_bytes)
    if operation.types.scale_b:
        assert tuple(got.scale_b.matrix.strides) == (1, 0)
    library.c.recorder_reset()
    each = [framework.Tensor((rows, row_bytes), UINT8) for _ in range(GROUPS)]
    call(packed_package, framework, operation, weight=each)
    (got,) = library.fake_launches()
    assert got.b.stack.data == min(x.address for x in each)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"weight": (GROUPS, 3, 64)},
            "ShapeError",
            "grouped_linear: packed weight has shape (5, 3, 64); expected (5, 5, 2176)",
        ),
        (
            {"weight": (5, 2176)},
            "ShapeError",
            "grouped_linear: got x (48, 256) and packed weight (5, 2176); expected x (rows, k)",
        ),
        (
            {"offsets": (GROUPS + 2,)},
            "ShapeError",
            "grouped_linear: offsets has shape (7,), weight (5, 5, 2176); expected (5,)",
        ),
        (
            {"scale_w": (GROUPS,)},
            "OperandError",
            "grouped_linear: got scale_w; expected none, as weights of mxfp4 have",
        ),
        ({"bias": (N,)}, "ShapeError", "grouped_linear: bias has shape (72,); expected (5, 72)"),
        ({"out": (M, N + 1)}, "ShapeError", "grouped_linear: out has shape (48, 73); expected (48, 72)"),
        ({"columns": -1}, "ShapeError", "packed_grouped_linear: columns is -1; expected the rows of the weight"),
        (
            {"weight_format": "int3"},
            "UnsupportedError",
            "packed_grouped_linear: weight_format is 'int3'; expected one of",
        ),
        (
            {"weight_format": "int4g32"},
            "UnsupportedError",
            "grouped_linear: this wheel has no kernels for bf16xint4g32_bf16",
        ),
        (
            {"weight": []},
            "ShapeError",
            "packed_grouped_linear: got no weights; expected the bytes of one for each group",
        ),
    ],
)
def test_what_the_package_refuses(packed_package, library, changes, error, message):
    framework = Framework()
    types = {"weight": UINT8, "offsets": INT32, "scale_w": FLOAT32}
    made = {x: framework.Tensor(y, types.get(x, BFLOAT16)) if isinstance(y, tuple) else y for x, y in changes.items()}
    if changes.get("weight_format") == "int4g32":
        made["weight"] = framework.Tensor((GROUPS, 5, 2 * 1152), UINT8)
    with pytest.raises(getattr(packed_package, error)) as refused:
        call(packed_package, framework, PACKED_GROUPS[0], **made)
    assert str(refused.value)[: len(message)] == message
    assert library.fake_launches() == []


def test_a_plan_names_the_operation(packed_package):
    plan = packed_package.plan(M, N, K, weight_dtype="mxfp4", groups=GROUPS)
    assert (plan.operation, plan.expected) == ("bf16xmxfp4_bf16_grouped", 10)


# torch.


@pytest.fixture(scope="module")
def gemm(packed_package):
    return import_module(f"{packed_package.__name__}.torch")


@pytest.fixture
def launched(packed_package, monkeypatch):
    return torch_reference.stand_in(packed_package, monkeypatch)


def experts(gemm, name, count=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256 if name == "int8" else 16, (count, N, K), dtype=torch.uint8, generator=rng)
    group = {"mxfp4": 32, "nvfp4": 16, "int8": K, "nvfp4rows": 16}[name]
    factors = torch.randint(60, 70, (count, N, K // group), dtype=torch.uint8, generator=rng)
    factors = None if name == "int8" else factors + 60 if name == "mxfp4" else factors - 30
    scale = None if name == "mxfp4" else torch.rand(count, N if name == "int8" else 1, generator=rng) * 1e-2
    return gemm.pack(codes, factors, format=name, scale=scale), (codes, factors, scale)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8", "nvfp4rows"])
def test_a_stack_is_packed_and_taken_apart(gemm, name):
    packed, (codes, factors, scale) = experts(gemm, name)
    parts = gemm.unpack(packed)
    assert torch.equal(parts.codes, codes)
    assert factors is None or torch.equal(parts.factors.view(torch.uint8), factors)
    assert scale is None or torch.equal(packed.scale, scale if name == "int8" else scale[:, 0])
    again = gemm.stack(list(packed))
    assert torch.equal(again.data, packed.data)
    assert (packed.shape, len(packed), packed[1].shape, packed[1].data_is_shared if False else True) == (
        (3, N, K),
        3,
        (N, K),
        True,
    )
    assert packed[1].data.data_ptr() == packed.data[1].data_ptr()
    wide = gemm.dequantize(packed, dtype=torch.float32)
    assert torch.equal(wide, torch.stack([gemm.dequantize(x, dtype=torch.float32) for x in packed]))


@pytest.mark.parametrize("operation", PACKED_GROUPS, ids=lambda x: x.tag)
def test_experts_are_multiplied(gemm, launched, packed_package, operation):
    packed, _ = experts(gemm, operation.b.weight.name)
    dtype = torch.float16 if operation.a.element.value == "float16" else torch.bfloat16
    is_gathered = operation is GATHERED
    x, bias = random_tensor(4 if is_gathered else 9, K, dtype=dtype), random_tensor(3, N, dtype=dtype)
    index = torch.tensor([3, 0, 1, 1, 2, 3, 0, 2, 1], dtype=torch.int32) if is_gathered else None
    offsets = torch.tensor([4, 4, 9], dtype=torch.int32)
    rows = x if index is None else x[index.long()]
    wide = gemm.dequantize(packed, dtype=torch.float32)
    expected = torch.cat([rows[:4].float() @ wide[0].t() + bias[0], rows[4:].float() @ wide[2].t() + bias[2]])
    compiled = torch.compile(gemm.grouped_linear, backend="eager", fullgraph=True)
    for function in (gemm.grouped_linear, compiled):
        found = function(x, packed, offsets, bias, index=index)
        assert torch.allclose(found.float(), expected, 0.02, 0.02)
        out = torch.empty_like(found)
        function(x, packed, offsets, bias, index=index, out=out)
        assert torch.equal(out, found)
    assert set(launched) == {"packed_grouped_linear"}


def test_the_operator_is_whole(gemm, launched, packed_package):
    packed, _ = experts(gemm, "mxfp4")
    operator = getattr(torch.ops, packed_package.__name__).packed_grouped_linear
    operands = random_tensor(6, K), packed.data, torch.tensor([2, 4, 6], dtype=torch.int32)
    options = {"weight_format": "mxfp4", "columns": N}
    opcheck(operator.default, operands, options, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        fake = gemm.grouped_linear(
            mode.from_tensor(operands[0]), fake_experts(gemm, mode, packed), mode.from_tensor(operands[2])
        )
    assert (tuple(fake.shape), fake.dtype) == ((6, N), torch.bfloat16)


def fake_experts(gemm, mode, packed):
    return gemm.PackedExperts(mode.from_tensor(packed.data), None, packed.format, packed.shape)


def test_what_torch_is_refused(gemm, launched, packed_package):
    packed, _ = experts(gemm, "mxfp4")
    x, offsets = random_tensor(6, K), torch.tensor([2, 4, 6], dtype=torch.int32)
    with pytest.raises(packed_package.UnsupportedError, match="got gate beside packed weights; expected out_dtype"):
        gemm.grouped_linear(x, packed, offsets, gate="silu")
    with pytest.raises(packed_package.GradientError, match="packed_grouped_linear: an operand requires a gradient"):
        gemm.grouped_linear(x.clone().requires_grad_(), packed, offsets)
    held = gemm.PackedExperts(packed.data, None, packed.format, packed.shape, torch.float16)
    with pytest.raises(packed_package.DtypeError, match=r"the packed weights have factors of torch\.float16"):
        gemm.grouped_linear(x, held, offsets)
    for wrong, error in ((packed.data, "FormatError"), ([packed[0], packed.data], "OperandError")):
        with pytest.raises(getattr(packed_package, error)):
            gemm.stack(wrong) if isinstance(wrong, list) else gemm.PackedExperts(
                wrong[:, 1:], None, "mxfp4", packed.shape
            )
    with pytest.raises(packed_package.FormatError, match="expected the same of all"):
        gemm.stack([packed[0], experts(gemm, "nvfp4")[0][0]])
    assert launched == []


def test_gpt_oss_experts_are_read(gemm, packed_package):
    packed, (codes, factors, _) = experts(gemm, "mxfp4")
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(3, N, K // 32, 16)
    read = gemm.load_packed({"blocks": blocks, "scales": factors})
    assert torch.equal(read.data, packed.data)
    with pytest.raises(packed_package.FormatError, match="blocks are of 3 experts, and scales of 2"):
        gemm.load_packed({"blocks": blocks, "scales": factors[:2]})
