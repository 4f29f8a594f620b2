"""Several weights in one launch, over the recorder: what the C API checks, what kernels get, and the Python call."""

from __future__ import annotations

import pytest

from aot.core.epilogue import MAX_PARTS
from aot.core.operation import Operation
from aot.core.signature import PART_WORDS
from aot.measure.call_structs import PartStruct, TensorStruct
from tests.runtime.host import Library, compile_library, problem, random_manifest
from tests.runtime.tensors import BFLOAT16, FLOAT16, FLOAT32

MANY = [Operation.BF16_KK, Operation.BF16_KK_MANY, Operation.FP16_KK_MANY]
M, K = 8, 64
A, STREAM = 0x1000000, 0x7770
SIZES = (48, 16, 32)
ARGUMENT, SHAPE, STRIDE = 1, 3, 4


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library(compile_library(random_manifest(3, MANY), tmp_path_factory.mktemp("many")))


def part(number, n, *, bias=True, b=None, d=None):
    base = 0x2000000 + number * 0x100000
    return PartStruct(
        n,
        b or TensorStruct(base, (K, 1)),
        d or TensorStruct(base + 0x40000, (n, 1)),
        TensorStruct(base + 0x80000, (0, 1)) if bias else TensorStruct(),
    )


def stated(library, parts, *, n=None, m=M, k=K, tag="bf16_many"):
    found = problem(m, sum(x.n for x in parts) if n is None else n, k, data=(A, 0, 0))
    found.operation = library.c.aot_gemm_operation(tag.encode())
    found.parts, found.num_parts = (PartStruct * len(parts))(*parts), len(parts)
    return found


def words(launch):
    return [dict(zip(PART_WORDS, x, strict=True)) for x in launch.parts]


def launched(library, asked):
    library.c.recorder_reset()
    assert library.launch(asked, None, 0, STREAM) == 0, library.error()
    return library.fake_launches()


@pytest.mark.parametrize("count", range(1, MAX_PARTS + 1))
def test_one_launch_gets_each_weight_with_its_d_and_bias(library, count):
    parts = [part(i, n, bias=i != 1) for i, n in enumerate((*SIZES, 8)[:count])]
    (launch,) = launched(library, stated(library, parts))
    for own, told in zip(parts, words(launch), strict=False):
        assert told == {
            "n": own.n,
            "b": own.b.data,
            "b_row": K,
            "b_column": 1,
            "d": own.d.data,
            "d_row": own.n,
            "d_column": 1,
            "bias": own.bias.data or 0,
        }
    assert [x["n"] for x in words(launch)] == [*(x.n for x in parts), *[0] * (MAX_PARTS - count)]
    assert (launch.d.shape[0], launch.d.shape[1]) == (M, sum(x.n for x in parts))


def test_a_table_is_asked_for_the_n_of_all(library):
    one = library.select(stated(library, [part(0, sum(SIZES))]))[1]
    many = library.select(stated(library, [part(i, n) for i, n in enumerate(SIZES)]))[1]
    assert (one.kernel, one.tier, one.n) == (many.kernel, many.tier, many.n)


def test_parts_without_rows_are_left_out(library):
    parts = [part(0, 0, b=TensorStruct(), d=TensorStruct()), part(1, 16), part(2, 0), part(3, 8)]
    (launch,) = launched(library, stated(library, parts))
    assert [(x["n"], x["b"]) for x in words(launch)][:2] == [(16, parts[1].b.data), (8, parts[3].b.data)]
    assert [x["n"] for x in words(launch)][2:] == [0, 0]


@pytest.mark.parametrize("parts", [[part(0, 0), part(1, 0)], [part(0, 16)]])
def test_nothing_is_launched_where_there_is_no_work(library, parts):
    library.c.recorder_reset()
    assert library.launch(stated(library, parts, m=0 if parts[0].n else M), None, 0, STREAM) == 0
    assert library.fake_launches() == []


def test_a_weight_that_is_not_aligned_is_read_as_it_is_stated(library):
    odd = TensorStruct(0x2100002, (K + 1, 1))
    (launch,) = launched(library, stated(library, [part(0, 16), part(1, 16, b=odd)]))
    assert [(x["b"], x["b_row"]) for x in words(launch)][:2] == [(0x2000000, K), (0x2100002, K + 1)]
    fits = library.select(stated(library, [part(0, 32)]))[1]
    assert library.select(stated(library, [part(0, 16), part(1, 16, b=odd)]))[1].tier == 3 != fits.tier


D = TensorStruct(0x2040000, (16, 1))
REFUSED = {
    "none": ([], {}, ARGUMENT, "got 0 parts at"),
    "five": ([part(i, 8) for i in range(5)], {}, ARGUMENT, "got 5 parts at"),
    "negative": ([part(0, -8)], {"n": 0}, SHAPE, "parts[i].n is -8; expected 0 to"),
    "other n": ([part(0, 16), part(1, 8)], {"n": 32}, SHAPE, "n is 32, and the parts' together 24"),
    "one D": ([part(0, 16), part(1, 16, d=D)], {}, STRIDE, "overlaps D of another part"),
    "D in A": ([part(0, 16, d=TensorStruct(A, (16, 1)))], {}, STRIDE, "overlaps A"),
    "D in B": ([part(0, 16), part(1, 16, d=TensorStruct(0x2000000, (16, 1)))], {}, STRIDE, "overlaps B of a part"),
    "no weight": ([part(0, 16, b=TensorStruct(None, (K, 1)))], {}, ARGUMENT, "`parts[i].b.data` is null"),
    "no D": ([part(0, 16, d=TensorStruct(None, (16, 1)))], {}, ARGUMENT, "`parts[i].d.data` is null"),
    "stride": ([part(0, 16, b=TensorStruct(0x2000000, (-K, 1)))], {}, STRIDE, "B of a part (16, 64) has strides"),
    "operation": ([part(0, 16)], {"tag": "bf16"}, ARGUMENT, "got 1 parts, which operation bf16 does not take"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_parts_are_refused(library, name):
    parts, changes, status, text = REFUSED[name]
    assert library.launch(stated(library, parts, **changes), None, 0, STREAM) == status
    assert text in library.error()


def test_b_beside_parts_is_refused(library):
    asked = stated(library, [part(0, 16)])
    asked.b = TensorStruct(0x2000000, (K, 1))
    assert library.launch(asked, None, 0, STREAM) == ARGUMENT
    assert "got b, d, a bias or groups beside parts, operation bf16_many" in library.error()


def test_a_bias_of_another_stride_is_refused(library):
    asked = part(0, 16)
    asked.bias = TensorStruct(asked.bias.data, (0, 2))
    assert library.launch(stated(library, [asked]), None, 0, STREAM) == STRIDE
    assert "the bias of part 0, of 16 elements, has the stride 2" in library.error()


# The Python call.


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_the_python_call_states_each_weight(every_package, every, framework, dtype):
    def tensor(*shape):
        return framework.Tensor(shape, dtype)

    x, weights = tensor(2, 3, K), [tensor(n, K) for n in SIZES]
    biases = [tensor(SIZES[0]), None, tensor(SIZES[2])]
    results = [tensor(2, 3, n) for n in SIZES]
    every_package._operations.linear_many(x, weights, biases, out=results)
    (launch,) = every.fake_launches()
    found = words(launch)[:3]
    assert [x["n"] for x in found] == list(SIZES)
    assert [x["b"] for x in found] == [x.address for x in weights]
    assert [x["d"] for x in found] == [x.address for x in results]
    assert [x["bias"] for x in found] == [0 if x is None else x.address for x in biases]
    assert (launch.a.shape[0], launch.a.shape[1]) == (6, K)


def test_the_python_call_refuses_what_does_not_fit(every_package, framework):
    def tensor(*shape, dtype=BFLOAT16):
        return framework.Tensor(shape, dtype)

    errors, call = every_package.errors, every_package._operations.linear_many
    x, weight, out = tensor(M, K), tensor(16, K), tensor(M, 16)
    with pytest.raises(errors.ShapeError, match=r"linear_many: got 5 weights; expected 1 to 4"):
        call(x, [weight] * 5, [None] * 5, out=[out] * 5)
    with pytest.raises(
        errors.OperandError, match="weights, biases and out are list, NoneType, list; expected a list or"
    ):
        call(x, [weight], None, out=[out])
    with pytest.raises(errors.ShapeError, match=r"linear_many: got x \(8, 64\) and a weight \(16, 32\)"):
        call(x, [tensor(16, 32)], [None], out=[out])
    with pytest.raises(errors.DtypeError, match="linear_many: weight is float16; expected bfloat16"):
        call(x, [tensor(16, K, dtype=FLOAT16)], [None], out=[out])
    with pytest.raises(errors.ShapeError, match=r"a bias has shape \(8,\); expected \(16,\)"):
        call(x, [weight], [tensor(8)], out=[out])
    with pytest.raises(errors.ShapeError, match=r"a result has shape \(8, 8\)"):
        call(x, [weight], [None], out=[tensor(M, 8)])
    with pytest.raises(errors.ShapeError, match=r"a result has no dimension; expected \(..., 16\)"):
        call(x, [weight], [None], out=[tensor()])
    with pytest.raises(errors.UnsupportedError, match="float32"):
        call(tensor(M, K, dtype=FLOAT32), [weight], [None], out=[out])
