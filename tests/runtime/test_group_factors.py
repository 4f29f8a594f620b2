"""Factors in atoms that are a tensor for each group's weight: what the kernels are called with, and what is refused."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aot.core.operation import Operation
from aot.measure.call_structs import TensorStruct
from tests.runtime import host
from tests.runtime.tensors import E4M3, E8M0, FLOAT32, INT32, UINT8
from tests.runtime.test_groups import ARGUMENT, GROUPS, MIB, STREAM, STRIDE, WORKSPACE, launched, listed, state
from tests.runtime.test_python_groups import FACTOR_TYPES, TYPE_OF, K, N, arguments, row_of_atoms
from tests.runtime.test_python_groups import GROUPS as COUNT
from tests.runtime.ways import IN_EXCHANGE

NVFP4, MXFP8 = Operation.NVFP4_BF16_KK_GROUPED, Operation.MXFP8_BF16_KK_GROUPED
IN_ATOMS = (NVFP4, Operation.NVFP4_BF16_KK_GROUPED_SWIGLU, MXFP8, Operation.MXFP8_BF16_KK_GROUPED_SWIGLU)
OTHERS = (Operation.BF16_KK_GROUPED, Operation.E4M3_BF16_KK_GROUPED)
FACTORS = 3 << 45
"""An address where no operand of `state` lies."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    manifest = replace(host.random_manifest(7, (*IN_ATOMS, *OTHERS)), package="group-factors")
    return host.compile_package(manifest, tmp_path_factory.mktemp("group_factors"))


@pytest.fixture
def library(package):
    library = host.Library(package._library.LIBRARY)
    library.c.recorder_reset()
    return library


# The C API.


def with_factors(stated, addresses):
    """State atoms of factors that have an address each."""
    stated.scale_b = TensorStruct()
    stated.group_strides.scale_b = 0
    stated.scale_b_of_groups = (ctypes.c_void_p * len(addresses))(*addresses)
    return stated


def read_addresses(vector):
    """Give the addresses that a kernel's entry is told."""
    return list((ctypes.c_uint64 * vector.shape[0]).from_address(vector.data)) if vector.shape[0] else []


@pytest.mark.parametrize("operation", IN_ATOMS, ids=lambda x: x.tag)
def test_factors_and_b_that_lie_apart_have_a_table_of_places_each(library, operation):
    of_kernel = library.workspace_bytes(state(library, operation))
    of_b = [(1 << 45) + x * MIB for x in (7, 3, 1, 19, 3)]
    of_factors = [FACTORS + x * 512 for x in (9, 1, 4, 0, 16)]
    stated = with_factors(listed(library, operation, of_b), of_factors)
    assert library.workspace_bytes(stated) == of_kernel + 64  # twice five int32, each to 16 bytes
    launch = launched(library, stated)
    assert (read_addresses(launch.b_of_groups), read_addresses(launch.scale_b_of_groups)) == (of_b, of_factors)
    atoms = launch.scale_b.vector
    assert (atoms.data, atoms.shape[0]) == (FACTORS, 512)  # as many bytes as lie between places
    tables = launch.places, launch.scale_b_places
    assert [(x.data, x.shape[0]) for x in tables] == [(WORKSPACE + of_kernel + i * 32, GROUPS) for i in range(2)]


def test_factors_that_lie_apart_beside_a_stack_have_the_only_table(library):
    of_kernel = library.workspace_bytes(state(library, NVFP4))
    stated = with_factors(state(library, NVFP4), [FACTORS + 48 * x for x in (1, 0, 2, 3, 4)])
    assert library.workspace_bytes(stated) == of_kernel + 32
    launch = launched(library, stated)
    assert (launch.b.stack.shape[0], launch.places.shape[0]) == (GROUPS, 0)
    assert (launch.scale_b.vector.data, launch.scale_b.vector.shape[0]) == (FACTORS, 16)
    assert (launch.scale_b_places.data, launch.scale_b_places.shape[0]) == (WORKSPACE + of_kernel, GROUPS)


def test_atoms_one_behind_the_other_are_one_run_without_places(library):
    stack = state(library, NVFP4)
    step = stack.group_strides.scale_b
    stated = with_factors(stack, [FACTORS + i * step for i in range(GROUPS)])
    assert library.workspace_bytes(stated) == library.workspace_bytes(state(library, NVFP4))
    launch = launched(library, stated)
    assert (launch.scale_b.vector.data, launch.scale_b.vector.shape[0]) == (FACTORS, GROUPS * step)
    assert (launch.scale_b_of_groups.shape[0], launch.scale_b_places.shape[0]) == (0, 0)


@pytest.mark.parametrize("step", [0, 4096 * 3])
def test_atoms_at_one_step_that_is_not_their_size_have_places(library, step):
    """As the factors have in one allocation with the elements of their weight, or where all groups share them."""
    launch = launched(library, with_factors(state(library, MXFP8), [FACTORS + i * step for i in range(GROUPS)]))
    assert launch.scale_b_places.shape[0] == GROUPS
    assert (launch.scale_b.vector.data, launch.scale_b.vector.shape[0]) == (FACTORS, 4096 if step else 2**30)


@pytest.mark.parametrize(
    ("operation", "addresses", "status", "text"),
    [
        (NVFP4, [512, 0, 1024, 2048, 4096], ARGUMENT, "`scale_b_of_groups[i]` is null"),
        (NVFP4, [520, 1024, 2048, 4096, 5120], STRIDE, "scale_b of a group is at address 0x208"),
        (NVFP4, [0x100, 0x110, 1 << 40, 4096, 5120], STRIDE, "the groups' scale_b lie up to"),
        (NVFP4, [i * ((16 << 30) + 16) + 512 for i in range(GROUPS)], STRIDE, "at multiples of 16 bytes"),
        (NVFP4, [3 << 44, 512, 5120, 4096, 8192], STRIDE, "D at address"),
        (OTHERS[0], [512] * GROUPS, ARGUMENT, "got scale_b_of_groups, which operation bf16_grouped does not take"),
        (OTHERS[1], [512] * GROUPS, ARGUMENT, "groups of rows whose factors lie in atoms"),
    ],
)
def test_factors_of_groups_that_no_kernel_takes_are_refused(library, operation, addresses, status, text):
    stated = with_factors(state(library, operation), addresses)
    assert library.launch(stated, WORKSPACE, 1 << 20, STREAM) == status
    assert text in library.error()
    assert not library.fake_launches()


@pytest.mark.parametrize(("field", "value"), [("scale_b", TensorStruct(512, (0, 0))), ("step", 512)])
def test_factors_that_are_a_run_and_have_addresses_are_refused(library, field, value):
    stated = with_factors(state(library, NVFP4), [512] * GROUPS)
    if field == "step":
        stated.group_strides.scale_b = value
    else:
        stated.scale_b = value
    assert library.launch(stated, WORKSPACE, 1 << 20, STREAM) == ARGUMENT
    assert "scale_b_of_groups is given, and scale_b.data is" in library.error()


# Python.


def apart(operation, tensor):
    """Make what a call is given of experts that are modules of their own: weights, and factors of each."""
    operands, named = arguments(operation, tensor)
    rows, columns = operands[1].shape[1:]
    operands[1] = [tensor((rows, columns), TYPE_OF[operation.types.b]) for _ in range(COUNT)]
    size = -(-rows // 128) * row_of_atoms(operation)
    named["scale_w"] = [tensor((size,), FACTOR_TYPES[operation.types.factor]) for _ in range(COUNT)]
    named["scale_w"][0], named["scale_w"][2] = named["scale_w"][2], named["scale_w"][0]
    return operands, named


@pytest.mark.parametrize("operation", IN_ATOMS, ids=lambda x: x.call)
def test_lists_of_weights_and_of_factors_are_launched_in_one_product(package, library, tensor, operation):
    operands, named = apart(operation, tensor)
    assert package.grouped_linear(*operands, **named) is named["out"]
    (launch,) = library.fake_launches()
    addresses = [x.address for x in named["scale_w"]]
    assert launch.scale_b.vector.data == min(addresses)
    assert launch.scale_b_places.shape[0] == COUNT
    assert all((x - min(addresses)) % launch.scale_b.vector.shape[0] == 0 for x in addresses)


def test_more_factors_than_a_call_has_room_for_come_through(package, library, tensor):
    """Of more than 128 experts their addresses are in memory of their own."""
    operands, named = apart(MXFP8, tensor)
    count = 300
    operands[1], factors = [operands[1][0]] * count, named["scale_w"]
    operands[2] = tensor((count,), INT32)
    named["scale_x"] = tensor((count * row_of_atoms(MXFP8),), E8M0)
    named["scale_w"] = [factors[i % 2] for i in range(count)]
    package.grouped_linear(*operands, **named)
    (launch,) = library.fake_launches()
    assert launch.scale_b_of_groups.shape[0] == launch.scale_b_places.shape[0] == count


@IN_EXCHANGE
@pytest.mark.parametrize("behind", [0, 3 * 2048])
def test_atoms_of_a_stack_may_lie_apart(package, library, tensor, behind):
    """As they do behind the elements of their weight, in the stack of a packed format."""
    operands, named = arguments(NVFP4, tensor)
    size = N // 128 * row_of_atoms(NVFP4)
    named["scale_w"] = atoms = tensor((COUNT, size), E4M3, (size + behind, 1))
    step = N * K // 2 + size
    operands[1] = weight = tensor((COUNT, N, K // 2), UINT8, (step, K // 2, 1))
    package.grouped_linear(*operands, **named)
    (launch,) = library.fake_launches()
    assert launch.scale_b.vector.data == atoms.address
    assert (launch.b.stack.data, list(launch.b.stack.strides)[:2]) == (weight.address, [2 * step, K])
    if behind:
        assert read_addresses(launch.scale_b_of_groups) == [atoms.address + i * (size + behind) for i in range(COUNT)]
    else:
        assert (launch.scale_b.vector.shape[0], launch.scale_b_places.shape[0]) == (COUNT * size, 0)
    for shape, strides in (((COUNT + 1, size), (size, 1)), ((COUNT, size // 2), (size, 1))):
        with pytest.raises(package.ShapeError, match="or a row for each group"):
            package.grouped_linear(*operands, **named | {"scale_w": tensor(shape, E4M3, strides)})
    with pytest.raises(package.ShapeError, match="or is no run"):
        package.grouped_linear(*operands, **named | {"scale_w": tensor((COUNT, size), E4M3, (2 * size, 2))})


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda x, t: x.pop(), "ShapeError", "scale_w is a list of 2 tensors, beside weight (3, 128, 128); expected 3"),
        (lambda x, t: x.clear(), "OperandError", "the factors of the weights are an empty list, beside 3 weights"),
        (
            lambda x, t: x.__setitem__(1, t((512,), E4M3)),
            "ShapeError",
            "scale_w 1 has shape (512,); expected that of scale_w 0",
        ),
        (lambda x, t: x.__setitem__(2, t(x[0].shape, E8M0)), "DtypeError", "scale_w 2 is of another element type"),
        (lambda x, t: x.__setitem__(0, t((N, K // 16), E4M3)), "ShapeError", "scale_w 0 of 3 has 2 dimensions"),
        (lambda x, t: x.__setitem__(1, t(x[0].shape, E4M3, (2,))), "StrideError", "scale_w 1 has the strides (2,)"),
        (
            lambda x, t: x.__setitem__(slice(None), [t((1024,), E4M3) for _ in x]),
            "ShapeError",
            "or atoms as one run of bytes, 2048 for each of 3 groups",
        ),
        (
            lambda x, t: x.__setitem__(slice(None), [t((N,), FLOAT32) for _ in x]),
            "OperandError",
            "scale_w is a list of 3 tensors of 32 bits",
        ),
    ],
)
def test_lists_of_factors_that_differ_are_refused(package, library, tensor, change, kind, text):
    operands, named = apart(NVFP4, tensor)
    change(named["scale_w"], tensor)
    with pytest.raises(getattr(package, kind)) as error:
        package.grouped_linear(*operands, **named)
    assert text in str(error.value)
    assert not library.fake_launches()


def test_a_list_of_factors_beside_one_weight_is_refused(package, library, tensor):
    operands, named = apart(NVFP4, tensor)
    operands[1] = tensor((COUNT, N, K // 2), UINT8)
    named["scale_x"], named["scale_w"] = (named["scale_x"], 2.0), (named["scale_w"], 3.0)
    named.pop("scale_out")
    with pytest.raises(package.OperandError) as error:
        package.grouped_linear(*operands, **named)
    assert "beside weights that are one tensor; expected a list of one for each weight" in str(error.value)
    assert not library.fake_launches()


# torch.


def test_the_operator_of_lists_is_traced_whole(package):
    module = import_module(f"{package.__name__}.torch")
    with FakeTensorMode(), torch.no_grad():
        rows, ends = (
            torch.empty((40, K // 2), dtype=torch.uint8, device="cuda"),
            torch.empty(3, dtype=torch.int32, device="cuda"),
        )
        atoms = [torch.empty(2048, dtype=torch.float8_e4m3fn, device="cuda") for _ in range(3)]
        weights = [torch.empty((N, K // 2), dtype=torch.uint8, device="cuda") for _ in range(3)]
        of_x, own = torch.empty(3 * 2048, dtype=torch.float8_e4m3fn, device="cuda"), torch.empty(3, device="cuda")

        def layer(x, ends, of_x, own, weights, atoms):
            return module.grouped_linear(x, weights, ends, scale_x=of_x, scale_w=atoms, scale_out=own)

        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        found = compiled(rows, ends, of_x, own, weights, atoms)
        assert (tuple(found.shape), found.dtype) == ((40, N), torch.bfloat16)
        with pytest.raises(package.ShapeError, match="scale_w is a list of 2 tensors"):
            getattr(torch.ops, package.__name__).grouped_linear_weights(
                rows, weights, ends, None, None, of_x, atoms[0], own, atoms[:2]
            )
