"""Where matrices lie: overlaps by lattice.cc and by a list of elements, and what the C API refuses and takes."""

from __future__ import annotations

import random
import subprocess
from itertools import product
from pathlib import Path

import pytest

from aot.core.operation import Operation
from tests.runtime.exchange import Framework
from tests.runtime.host import APART, names_of, problem

SOURCES = Path(__file__).parents[2] / "templates" / "src"
DRIVER = Path(__file__).with_name("lattices.cc")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
NUM_MATRICES = 20000


def test_overlaps_are_those_of_a_list_of_elements(tmp_path):
    """None is missed, none is made up of packed matrices, and nothing overflows at the limits of 64 bits."""
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *SANITIZERS, f"-I{SOURCES}"]
    subprocess.run(["g++", *flags, DRIVER, SOURCES / "lattice.cc", "-o", tmp_path / "lattices"], check=True)
    done = subprocess.run([tmp_path / "lattices", str(NUM_MATRICES)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    verdicts, counts = done.stdout.splitlines()[::2], done.stdout.splitlines()[1::2]
    kinds = ["packed", "any", "mixed packed", "mixed any"]
    assert verdicts == [*(f"{kind} 0 0 0 0 0" for kind in kinds), "limits 0"]
    *found, (num_fitting,) = (tuple(map(int, line.split())) for line in counts)
    for overlaps, distinct, needless in found:
        assert NUM_MATRICES / 5 < overlaps < NUM_MATRICES * 4 / 5
        assert distinct > NUM_MATRICES / 3
        assert needless < NUM_MATRICES / 5
    assert num_fitting > NUM_MATRICES / 100


def elements(address, rows, columns, strides):
    return [address + 2 * (i * strides[0] + j * strides[1]) for i in range(rows) for j in range(columns)]


def overlap_text(name, d, address):
    return (
        f"D at address {d:#x} overlaps {name} at address {address:#x}; expected a D that shares no element with an "
        "operand, which would be overwritten while it is read; give D storage of its own"
    )


def packed_strides(rng, rows, columns):
    """Draw strides of a matrix whose rows, or columns, are runs: apart, touching, or over each other."""
    return rng.choice(((rng.randint(0, columns + 3), 1), (1, rng.randint(0, rows + 3))))


def verdict(m, n, k, data, strides):
    """Give the status and message that the C API should have, by the lists of all elements."""
    a, b, d = (
        elements(address, *extents, pair)
        for address, extents, pair in zip(data, ((m, k), (n, k), (m, n)), strides, strict=True)
    )
    if len(set(d)) < len(d):
        pair = strides[2][0] if m > 1 else 0, strides[2][1] if n > 1 else 0
        return (
            4,
            f"D ({m}, {n}) with strides {pair} overlaps itself; expected distinct elements; give D storage of its own",
        )
    for name, operand, address in (("A", a, data[0]), ("B", b, data[1])):
        if any(abs(x - y) < 2 for x in operand for y in d):
            return 4, overlap_text(name, data[2], address)
    return 0, ""


def test_every_way_for_d_to_overlap_is_refused(library):
    rng = random.Random(12)
    seen = {"A at": 0, "B at": 0, "itself": 0, "": 0}
    for _ in range(6000):
        m, n, k = (rng.randint(1, 6) for _ in range(3))
        data = [0x10000 + 2 * rng.randint(0, 60) for _ in range(3)]
        strides = [packed_strides(rng, *x) for x in ((m, k), (n, k), (m, n))]
        status, message = verdict(m, n, k, data, strides)
        stated = problem(m, n, k, data=data, strides=strides)
        assert library.launch(stated) == status, (m, n, k, data, strides, library.error())
        assert status == 0 or library.error() == message
        seen[next(x for x in seen if x in message)] += 1
    assert len(library.fake_launches()) == seen[""]
    assert min(seen.values()) > 200, seen


def test_half_an_element_is_an_overlap(library):
    stated = problem(2, 2, 2, data=(0x1000, 0x2000, 0x1007))
    assert (library.launch(stated), library.error()) == (4, overlap_text("A", 0x1007, 0x1000))
    assert library.launch(problem(2, 2, 2, data=(0x1000, 0x2000, 0x1009))) == 0


@pytest.mark.parametrize("x_first", [True, False])
def test_interleaved_columns_of_one_buffer_are_taken(library, x_first):
    """x = buffer[:, :k] and out = buffer[:, k:], or the other way round; one column more is refused."""
    m, n, k = 100000, 64, 4096
    x, out = (0, 2 * k) if x_first else (2 * n, 0)
    base, pairs = 1 << 32, ((k + n, 1), (k, 1), (k + n, 1))
    stated = problem(m, n, k, data=(base + x, 1 << 45, base + out), strides=pairs)
    assert library.launch(stated, 1 << 50, 1 << 40) == 0
    (launch,) = library.fake_launches()
    assert (launch.a.data, launch.d.data) == (base + x, base + out)
    out += -2 if x_first else 2
    stated = problem(m, n, k, data=(base + x, 1 << 45, base + out), strides=pairs)
    assert (library.launch(stated), library.error()) == (4, overlap_text("A", base + out, base + x))


@pytest.mark.parametrize("gap", [0, 8])
@pytest.mark.parametrize("number", range(4))
def test_a_bias_that_a_product_of_a_batch_writes_is_refused(library, number, gap):
    """A batch whose products lie at one step is one launch, else each product is one: neither may write the bias."""
    m, n, step = 16, 64, 16 * 64 + gap
    names = names_of(Operation.BF16_KK_BIAS)
    for bias, is_free in ((APART[2] + 2 * number * step, False), (APART[2] + 2 * 4 * step, True)):
        stated = problem(m, n, 64, **(names | {"bias": bias}))
        stated.num_groups = 4
        stated.group_strides.a, stated.group_strides.d = m * 64, step
        library.c.recorder_reset()
        status = library.launch(stated, 1 << 50, 1 << 40)
        assert status == (0 if is_free else 4), library.error()
        assert len(library.fake_launches()) == ((4 if gap else 1) if is_free else 0)
        assert is_free or "overlaps the bias" in library.error()


STRIDES = (0, 1, 2**30, 2**31, 2**46, 2**60, 2**61, 2**62, 2**63 - 1)


@pytest.mark.parametrize("name", ["A", "B", "D"])
def test_what_reaches_past_the_address_space_is_refused(library, name):
    for place in product((0x1000, 2**63, 2**64 - 2**20), (2, 3, 2**31 - 1), STRIDES):
        check_reach(library, name, *place)


def check_reach(library, name, address, extent, stride):
    which = "ABD".index(name)
    m, n = (2, extent) if name == "B" else (extent, 2)
    rows, columns = (m, n, m)[which], (1, 1, n)[which]
    data, pairs = [0, 0, 0], [(1, 1), (1, 1), (n, 1)]
    data[which], pairs[which] = address, (stride, 1)
    num_bytes = 2 * ((rows - 1) * stride + columns)
    status, _ = library.select(problem(m, n, 1, data=data, strides=pairs))
    if num_bytes > 2**63 - 1 or address + num_bytes > 2**64 - 1:
        shown = stride, 1 if columns > 1 else 0
        message = (
            f"{name} ({rows}, {columns}) with strides {shown} at address {address:#x} reaches past the end of the "
            "address space; mend its strides"
        )
        assert (status, library.error()) == (4, message)
    elif name == "D" and stride < columns:
        assert (status, library.error().partition(" overlaps ")[2]) == (
            4,
            "itself; expected distinct elements; give D storage of its own",
        )
    else:
        assert status == 0, library.error()


def test_outs_in_an_operand_are_refused_through_python(package, library):
    framework = Framework()
    x = framework.Tensor((64, 64))
    for out, operand in ((x, "A"), (x, "B")):
        other = framework.Tensor((64, 64))
        operands = (x, other) if operand == "A" else (other, x)
        for function in (package.linear, package.matmul):
            with pytest.raises(package.StrideError) as caught:
                function(*operands, out=out)
            assert str(caught.value) == overlap_text(operand, x.address, x.address)
    assert library.fake_launches() == []
