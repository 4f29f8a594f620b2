"""Several dispatch tables in one library: which device gets which, and what a device with few SMs gets."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import pytest

from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row
from tests.golden.manifest import golden_manifest, round_trip
from tests.runtime import host
from tests.runtime.host import CAPABILITY, FACTS, GET_DEVICE, LOAD, problem

BIG, SMALL, SPLIT, KN_FALLBACK = 1, 2, 3, 4
H100 = ("NVIDIA H100 80GB HBM3", 132, 3352)
H200 = ("NVIDIA H200", 132, 4917)
SLICE = ("NVIDIA H200 MIG 1g.18gb", 16, 614)
TUNED = (16, 4096, 4096)
"""The golden table has SPLIT for it, which waits for its own CTAs, and was built for 132 SMs."""
NO_GPU = 100


def several():
    """Make the golden manifest with tables of an H100, which has no section of kn, an H200 and a slice of one."""
    golden = golden_manifest()
    (h200,) = golden.tables
    kk = h200.table.sections[0]
    row = Row(SMALL, SMALL, 1e6, "predicted", SMALL, 2e6)
    ladder = Ladder(4096, 4096, (16,), (row,))
    only = DispatchTable((replace(kk, ladders=(ladder,), grid=Grid((8192,), (8192,), (Column((64,), (SMALL,)),))),))
    predicted = {"table": only, "provenance": "predicted", "conditions": (), "heldout": (), "bigger_tiles": {}}
    h100 = replace(h200, target="h100", device_names=H100[:1], nominal_bandwidth_bytes_per_s=3.35e12, **predicted)
    part = replace(h200, target="h200_16sm", num_sms=16, nominal_bandwidth_bytes_per_s=6e11, **predicted)
    manifest = replace(golden, package="several-gemm", tables=(h100, h200, part))
    return round_trip(manifest)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return host.compile_package(several(), tmp_path_factory.mktemp("several"))


def fresh(path, folder):
    """Load a library that no device is known of yet."""
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    library = host.Library(copy)
    library.c.recorder_reset()
    return library


@pytest.fixture
def library(package, tmp_path):
    return fresh(host.Path(package._library.LIBRARY), tmp_path)


def selected(library, shape=TUNED, **names):
    status, selection = library.select(problem(*shape, **names))
    assert status == 0, library.error()
    return selection.table, selection.kernel, selection.section


def test_the_tables_are_named(library):
    assert library.c.aot_gemm_num_tables() == 3
    names = [library.c.aot_gemm_table_target(i) for i in range(-1, 4)]
    assert names == [None, b"h100", b"h200", b"h200_16sm", None]


def test_each_device_of_a_process_gets_the_table_of_its_own_kind(library):
    for device, facts in enumerate((H200, H100, SLICE, H200)):
        library.set_device(device, *facts)
    workspace = 1 << 50, 1 << 40
    for device, kernel in [(0, SPLIT), (1, SMALL), (0, SPLIT), (2, SMALL), (3, SPLIT), (1, SMALL)]:
        assert library.launch(problem(*TUNED, device=device), *workspace) == 0, library.error()
        launch = library.fake_launches()[-1]
        assert (launch.kernel, launch.device) == (kernel, device)
    assert [selected(library, device=x)[0] for x in range(4)] == [1, 0, 2, 1]
    assert library.count(FACTS) == 4  # each is asked about once
    assert [library.device_table(x) for x in range(3)] == [
        (0, 1, "the table of h200 is for NVIDIA H200 with 132 SMs"),
        (0, 0, "the table of h100 is for NVIDIA H100 80GB HBM3 with 132 SMs"),
        (0, 2, "the table of h200_16sm is for NVIDIA H200 MIG 1g.18gb with 16 SMs"),
    ]


@pytest.mark.parametrize(
    ("facts", "table", "reason"),
    [
        (
            ("NVIDIA H100 PCIe", 114, 2039),
            0,
            "no table for NVIDIA H100 PCIe (114 SMs, 2039 GB/s): nearest is h100 (132 SMs, 3350 GB/s); kernels that",
        ),
        (
            ("NVIDIA H200 NVL", 132, 4813),
            1,
            "no table for NVIDIA H200 NVL (132 SMs, 4813 GB/s): nearest is h200 (132 SMs, 4800 GB/s)",
        ),
        # Neither clock nor bus width is known: the SMs decide, and of equals the first.
        (("NVIDIA GH200", 144, 0), 0, "no table for NVIDIA GH200 (144 SMs): nearest is h100 (132 SMs, 3350 GB/s)"),
        # A name that only begins, or ends, as one that is known.
        (("NVIDIA H200 ", 132, 4917), 1, "no table for NVIDIA H200  (132 SMs, 4917 GB/s): nearest is h200 (132 SMs, "),
        (("NVIDIA H20", 78, 4022), 1, "no table for NVIDIA H20 (78 SMs, 4022 GB/s): nearest is h200 (132 SMs, 4800 GB"),
        (("", 20, 0), 2, "no table for  (20 SMs): nearest is h200_16sm (16 SMs, 600 GB/s); kernels that need more"),
        (("x" * 120, 1, 1), 2, f"no table for {'x' * 100} (1 SMs, 1 GB/s): nearest is h200_16sm (16 SMs, 600 GB/s); "),
    ],
)
def test_an_unknown_device_gets_the_nearest_table_and_is_told_so(library, facts, table, reason):
    library.set_device(5, *facts)
    status, found, why = library.device_table(5)
    assert (status, found) == (0, table)
    assert why.startswith(reason)
    assert selected(library, device=5)[0] == table


def test_a_device_with_too_few_sms_gets_no_kernel_that_waits(library):
    """Of 114 SMs 18 of the CTAs that SPLIT launches would never start before others end, which wait for them."""
    library.set_device(0, "NVIDIA H200", 114, 4917)
    status, table, reason = library.device_table(0)
    assert (status, table) == (0, 1)
    assert reason.endswith("; kernels that need more SMs (1 of 5) give way to others")
    for m in (1, 16):
        assert selected(library, (m, 4096, 4096), device=0) == (1, SMALL, 0)
        assert library.launch(problem(m, 4096, 4096, device=0)) == 0, library.error()
    assert {x.kernel for x in library.fake_launches()} == {SMALL}
    assert library.workspace_bytes(problem(*TUNED, device=0)) == 0
    assert library.launch_kernel(SPLIT, problem(*TUNED, device=0), 1 << 50, 1 << 40) == 6
    assert library.error() == (
        f"kernel {golden_manifest().kernels[SPLIT].name} waits for its own blocks, and launches as many as 132 SMs "
        "hold; device 0 has 114, where it could wait for ever; use aot_gemm_launch, which chooses another"
    )
    assert library.c.aot_gemm_preload(0) == 0
    assert library.count(LOAD) == len(golden_manifest().kernels) - 1


def test_a_workspace_sized_before_the_device_is_known_is_enough(golden_path, tmp_path):
    library = fresh(golden_path, tmp_path)
    library.set_device(0, "NVIDIA H200", 114, 4917)
    needed = library.workspace_bytes(problem(*TUNED, device=0))
    assert (needed > 0, library.count(FACTS)) == (True, 0)
    assert library.launch(problem(*TUNED, device=0), 1 << 50, needed) == 0, library.error()
    assert [x.kernel for x in library.fake_launches()] == [SMALL]


def test_a_device_with_more_sms_gets_kernels_that_wait(library):
    library.set_device(0, "NVIDIA H200", 144, 4917)
    assert selected(library, device=0) == (1, SPLIT, 0)


def test_a_section_that_a_table_lacks_is_answered_by_another_table(library):
    library.set_device(0, *H100)
    library.set_device(1, *H200)
    for device in (0, 1):
        assert selected(library, (64, 64, 64), layout="kn", device=device) == (1, KN_FALLBACK, 1)
        unaligned = selected(library, (3, 3, 3), device=device)
        assert unaligned == (device, 0, 0)


def test_without_a_gpu_the_first_table_answers(library):
    library.c.recorder_fail(GET_DEVICE, NO_GPU)
    library.c.recorder_fail(CAPABILITY, NO_GPU)
    assert [selected(library, device=x) for x in (-1, 0, 63, 64)] == [(0, SMALL, 0)] * 4
    assert library.device_table(-1)[0] == library.launch(problem(*TUNED)) == 5
    library.c.recorder_reset()  # and when there is one after all, its own
    assert selected(library, device=-1) == (1, SPLIT, 0)


def test_on_another_architecture_the_first_table_answers_queries(library):
    library.c.recorder_set_capability(10, 0)
    assert selected(library, device=0) == (0, SMALL, 0)
    status, _, _ = library.device_table(0)
    assert (status, library.error()[:38]) == (6, "device 0 has compute capability 10.0; ")
    assert library.launch(problem(*TUNED, device=0)) == 6


def test_the_current_device_is_asked_for_once_a_launch(library):
    library.set_device(0, *H100)
    for expected in (1, 2, 3):
        assert library.launch(problem(*TUNED)) == 0, library.error()
        assert library.count(GET_DEVICE) == expected
    assert library.count(FACTS) == 1


def test_a_library_of_one_table_asks_nothing_for_a_query(golden_path, tmp_path):
    library = fresh(golden_path, tmp_path)
    for device in (-1, 0):
        assert selected(library, device=device) == (0, SPLIT, 0)
        assert library.workspace_bytes(problem(*TUNED, device=device)) > 0
    assert library.launch(problem(0, 8, 8)) == 0
    assert [library.count(x) for x in (GET_DEVICE, CAPABILITY, FACTS)] == [0, 0, 0]


def test_a_table_or_a_reason_that_cannot_be_written_is_refused(library):
    table, reason = ctypes.c_int32(), ctypes.c_char_p()
    for arguments, name in (((None, ctypes.byref(reason)), "table"), ((ctypes.byref(table), None), "reason")):
        assert library.c.aot_gemm_device_table(0, *arguments) == 1
        assert library.error() == f"`{name}` is null; expected an address"
    assert library.device_table(64)[0] == 1
    assert library.error() == "device ordinal is 64; expected 0 to 63"


def test_many_threads_that_ask_first_get_one_answer(library):
    library.set_device(7, "NVIDIA H200 NVL", 132, 4813)
    answers, start = [], threading.Barrier(16)

    def ask():
        start.wait()
        answers.append((library.device_table(7), selected(library, device=7)))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16
    assert set(answers) == {(library.device_table(7), (1, SPLIT, 0))}


def test_the_package_says_which_table_answers_and_why(package):
    twin = host.Library(package._library.LIBRARY)
    twin.c.recorder_reset()
    twin.set_device(0, "NVIDIA H100 PCIe", 114, 2039)
    names = [x.name for x in golden_manifest().kernels]
    plans = {x: package.plan(*TUNED, target=x) for x in ("h100", "h200", None)}
    assert [(x.target, x.kernel) for x in plans.values()] == [
        ("h100", names[SMALL]),
        ("h200", names[SPLIT]),
        ("h100", names[SMALL]),
    ]
    assert (plans["h200"].time_us, plans["h200"].provenance) == (None, None)
    assert (plans["h100"].time_us, plans["h100"].provenance) == (1e6, "predicted")
    text = package.explain(*TUNED)
    assert text.splitlines()[0] == "bfloat16 m 16 n 4096 k 4096, layout kk, on sm_90a, by the table of h100"
    assert "  time       1000000.00 us for this problem, predicted, not measured" in text
    assert package.plan(64, 64, 64, layout="kn").target == "h200"
    with pytest.raises(package.UnsupportedError) as caught:
        package.plan(*TUNED, target="thor")
    assert str(caught.value) == "target is 'thor'; this wheel has tables of h100, h200, h200_16sm"
    info = package.info()
    assert (info.table, [x.target for x in info.tables]) == ("h100", ["h100", "h200", "h200_16sm"])
    assert info.table_reason.startswith("no table for NVIDIA H100 PCIe (114 SMs, 2039 GB/s): nearest is h100 (132 SMs")
    lines = str(info).splitlines()
    assert lines[0].endswith(" kernels for sm_90a (target h100, h200, h200_16sm)")
    assert lines[1] == f"here: table h100: {info.table_reason}"
    assert "table h200_16sm, for NVIDIA H200 with 16 SMs: times predicted, record h200-golden" in lines


def test_the_package_without_a_gpu_says_that_no_table_is_known(package):
    twin = host.Library(package._library.LIBRARY)
    twin.c.recorder_reset()
    twin.c.recorder_fail(GET_DEVICE, NO_GPU)
    info = package.info()
    twin.c.recorder_reset()
    assert info.table is None
    assert info.table_reason.startswith("no usable NVIDIA GPU: no CUDA-capable device is detected (CUDA error 100)")
    assert f"here: no table is known to answer: {info.table_reason}" in str(info).splitlines()
