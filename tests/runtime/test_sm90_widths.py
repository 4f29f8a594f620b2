"""Objects of several widths of `sm90_one_tile` through the C API into the recorder: one object, told its width."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey, changed, gemm_candidate
from aot.core.errors import ManifestError
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.core.tile_order import NUM_ORDERS, count_clusters, sequence
from aot.package.build import build_wheel
from aot.package.manifest import to_json
from aot.package.wheel_check import check_wheel
from aot.space.widths import of_widths
from tests.compiling import EVERY, compile_kernels
from tests.equivalence.descriptor import NUM_BYTES, decode
from tests.golden.manifest import as_compiled, round_trip
from tests.objects import BF16, small_manifest
from tests.runtime.host import Library, compile_library, problem
from tests.runtime.test_cluster_split_k import K, M, N
from tests.runtime.test_real_kernels import DESCRIPTOR_BYTES, A, B, D, launch
from tests.runtime.test_sm90_one_tile import walk
from tests.runtime.test_tile_order import SIZES

H200 = load_target("h200")
WIDEST = (
    gemm_candidate("sm90_one_tile", 64, 128, 4, 1, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 128, 96, 1, 2, swap_ab=True, use_tma_store=False),
)
CANDIDATES = tuple(changed(x, tile_n=x.gemm.tile_n - 8 * i) for x in WIDEST for i in range(4))


def as_one(artifacts):
    """Describe each object as the kernels of its four widths."""
    wide = {x.kernel.candidate: x.kernel for x in artifacts}
    for candidate in CANDIDATES:
        own, num_narrower = of_widths(candidate, BF16, H200)
        name = KernelKey(BF16, candidate).name
        yield replace(wide[own], name=name, candidate=candidate, num_narrower=num_narrower or None)


@pytest.fixture(scope="module")
def built():
    artifacts = compile_kernels([KernelKey(BF16, of_widths(x, BF16, H200)[0]) for x in WIDEST], H200)
    manifest, objects = small_manifest("h200")
    kernels = tuple(as_one(artifacts))
    manifest = round_trip(replace(manifest, kernels=(*manifest.kernels, *as_compiled(kernels))))
    paths = {x.kernel.entry_symbol: x.path for x in artifacts}
    return manifest, objects | {kernel.name: paths[kernel.entry_symbol] for kernel in kernels}


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    paths = list(dict.fromkeys(objects.values()))
    return Library(compile_library(manifest, tmp_path_factory.mktemp("widths"), paths))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("order", range(NUM_ORDERS) if EVERY else (0, 3, 8))
def test_the_device_starts_the_tiles_of_each_width_in_the_order_of_the_launch(real, built, candidate, order):
    for m, n in SIZES:
        _, record, parameters = launch(real, *built, candidate, problem(m, n, 264, data=(A, B, D)), tile_order=order)
        *others, width = parameters
        clusters = count_clusters(candidate, Problem(BF16, m, n, 264))
        found = [x for x in walk(record, others, candidate.gemm.cluster_m * candidate.gemm.cluster_n) if x is not None]
        assert tuple(found) == sequence(order, *clusters)
        assert width == struct.pack("<i", candidate.gemm.tile_n)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_the_columns_have_a_box_of_each_width(real, built, candidate):
    _, _, parameters = launch(real, *built, candidate, problem(M, N, K, data=(A, B, D)))
    maps = [decode(x[:NUM_BYTES]) for x in parameters if len(x) == DESCRIPTOR_BYTES]
    widest = of_widths(candidate, BF16, H200)[0].gemm.tile_n
    rows, columns = (B, A) if candidate.gemm.swap_ab else (A, B)
    sizes = {A: (K, M), B: (K, N)}
    expected = [
        (rows, candidate.gemm.tile_m // candidate.gemm.cluster_n),
        *((columns, widest - 8 * i) for i in range(4)),
    ]
    found = sorted((x.address, x.extents, x.box) for x in maps)
    assert found == sorted((address, sizes[address], (64, extent)) for address, extent in expected)


def test_widths_of_one_object_are_loaded_once(built, tmp_path):
    manifest, objects = built
    fresh = Library(compile_library(manifest, tmp_path, list(dict.fromkeys(objects.values()))))
    loaded = []
    for candidate in (CANDIDATES[0], CANDIDATES[0], CANDIDATES[3], CANDIDATES[4], CANDIDATES[5]):
        launch(fresh, *built, candidate, problem(M, N, K, data=(A, B, D)))
        loaded.append(fresh.count(0))
    assert loaded == [1, 0, 0, 1, 0]


@pytest.mark.package
@pytest.mark.walk
def test_a_wheel_holds_each_object_once(built, tmp_path):
    manifest, objects = built
    wheel = build_wheel(manifest, objects, tmp_path, H200)
    (line,) = [x for x in check_wheel(wheel) if x.startswith("kernels: ")]
    num_objects = len(manifest.kernels) - len(CANDIDATES) + len(WIDEST)
    assert line == f"kernels: {num_objects} device images for sm_90a, and their names"


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (-1, {"num_narrower": 1}, "two kernels are the same width of "),
        (-1, {"object_sha256": "0" * 64}, "two objects have the symbol "),
        (0, {"num_narrower": 1}, " is 8 columns narrower than its object, which no argument tells it"),
    ],
)
def test_a_manifest_with_a_width_twice_or_untold_is_refused(built, place, change, message):
    manifest, _ = built
    kernels = list(manifest.kernels)
    kernels[place] = replace(kernels[place], **change)
    with pytest.raises(ManifestError, match=message):
        to_json(replace(manifest, kernels=tuple(kernels)))
