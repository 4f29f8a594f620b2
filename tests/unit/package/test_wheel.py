"""From selections to one manifest: which kernels are shared, and which target each is compiled for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aot.compile.artifact import Artifact
from aot.compile.workplace import Workplace
from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.dispatch import Column, Grid, Ladder, Row
from aot.core.errors import ManifestError, PackageError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.package.distribution import wheel_version
from aot.package.manifest import to_json
from aot.package.pack import PackFor
from aot.package.wheel import TableSource, check_one_host, make_wheel, manifest_of, shared_kernels
from tests.golden.manifest import execution, kernel, round_trip
from tests.unit.accepted import named
from tests.unit.selections import PLAIN, SELECTION
from tests.unit.twins import BF16

H100, H200, THOR = (load_target(name) for name in ("h100", "h200", "thor"))
SMALL = KernelKey(BF16, named("sm90_quack_64x16_c1x1_pingpong_swap"))
SERIAL = KernelKey(BF16, named("sm90_quack_64x64_c1x1_pingpong_serial4"))
SEPARATE = KernelKey(BF16, named("sm90_quack_64x64_c1x1_pingpong_separate4"))
FEW = replace(H100, name="h100_pcie", num_sms=114, device_names=("NVIDIA H100 PCIe",))


def selection(target, *keys, provenance="predicted", **changes):
    """Make a selection of the fallback and some kernels, whose table has each of them in a ladder."""
    fallback = SELECTION.kernels[0]
    (section,) = SELECTION.table.sections
    rows = tuple(Row(i, 1, 5.0, provenance, 1, 6.0) for i in range(1, len(keys) + 1))
    ladder = Ladder(4096, 4096, tuple(2**i for i in range(len(keys))), rows)
    grid = Grid((1,), (1,), (Column((1,), (len(keys),)),))
    table = replace(SELECTION.table, sections=(replace(section, ladders=(ladder,), grid=grid),))
    kernels = fallback, *keys
    return replace(SELECTION, target=target.name, provenance=provenance, kernels=kernels, table=table, **changes)


def source(target, *keys, **changes):
    return TableSource(selection(target, *keys, **changes), target)


def artifacts(sources):
    """Make artifacts of what is shared, as compiled for the target that each is to be compiled for."""
    return [
        Artifact(replace(kernel(key.operation, key.candidate, num_strides(key)), num_sms=target.num_sms), Path("x.o"))
        for key, target in shared_kernels(sources).items()
    ]


def num_strides(key):
    return 2 if key == SELECTION.kernels[0] else 1


def manifest(*sources):
    return manifest_of(sources, artifacts(sources), "aot-gemm", "1.2")


def test_kernels_of_several_selections_are_there_once_and_each_table_names_its_own():
    plain = KernelKey(BF16, PLAIN)
    two = [source(H100, plain, SMALL), source(H200, SERIAL, plain)]
    assert list(shared_kernels(two)) == [SELECTION.kernels[0], plain, SMALL, SERIAL]
    made = manifest(*two)
    names = [x.name for x in made.kernels]
    for given, table in zip(two, made.tables, strict=True):
        chosen = given.selection
        (before,), (after,) = chosen.table.sections, table.table.sections
        assert [names[x.kernel] for x in after.ladders[0].rows] == [
            chosen.kernels[x.kernel].name for x in before.ladders[0].rows
        ]
        assert [names[x] for column in after.grid.columns for x in column.kernels] == [
            chosen.kernels[x].name for column in before.grid.columns for x in column.kernels
        ]
        assert names[after.fallback] == chosen.kernels[before.fallback].name
        assert [replace(x, rows=()) for x in after.ladders] == [replace(x, rows=()) for x in before.ladders]
    assert [x.target for x in made.tables] == ["h100", "h200"]
    assert made.version == wheel_version("1.2", *(x.selection for x in two))
    assert [x.peak_flops_per_s for x in made.tables] == [{"bf16": 9.89e14}, {"bf16": 7.9e14}]
    assert round_trip(made) == made


def test_the_wheel_of_one_selection_has_its_kernels_and_its_table_as_they_are():
    one = source(H200, SERIAL, KernelKey(BF16, PLAIN), SMALL)
    made = manifest(one)
    assert tuple(x.key for x in made.kernels) == one.selection.kernels
    assert made.tables[0].table == one.selection.table


def test_kernels_have_the_state_that_times_and_executions_say():
    """A time of one table counts for a kernel that several have; what was executed is right by its PTX."""
    plain = KernelKey(BF16, PLAIN)
    two = [source(H100, plain, SMALL), source(H200, plain, SERIAL, provenance="measured")]
    right, wrong = execution(SMALL.name), replace(execution(SERIAL.name), num_findings=1)
    other = replace(execution(SELECTION.kernels[0].name), ptx_sha256="5" * 64)
    made = manifest_of(two, artifacts(two), "aot-gemm", "1.2", executions=(other, wrong, right))
    assert {x.key: x.state for x in made.kernels} == {
        SELECTION.kernels[0]: "compiled",
        plain: "run",
        SMALL: "executed",
        SERIAL: "run",
    }
    assert made.executions == (right, wrong)
    assert round_trip(made) == made
    assert {x.state for x in manifest(source(H100, plain, SMALL)).kernels} == {"compiled"}


def test_a_kernel_that_waits_is_compiled_for_the_fewest_sms_and_any_other_for_the_most():
    keys = SMALL, SEPARATE, SERIAL
    built = shared_kernels([source(H100, *keys), source(FEW, *keys)])
    assert [built[key].num_sms for key in keys] == [132, 132, 114]
    only = shared_kernels([source(H100, *keys), source(FEW, SMALL)])
    assert [only[key].num_sms for key in keys] == [132, 132, 132]
    # Of equals the first.
    assert {x.name for x in shared_kernels([source(H100, *keys), source(H200, *keys)]).values()} == {"h100"}
    made = manifest(source(H100, *keys), source(FEW, *keys))
    assert [x.num_sms for x in made.kernels] == [132, 132, 132, 114]
    assert to_json(made)


def test_a_measured_table_is_not_shipped_with_kernels_built_for_another_number_of_sms():
    measured = source(H100, SMALL, SERIAL, provenance="measured")
    assert to_json(manifest(measured, source(H200, SMALL, SERIAL)))
    with pytest.raises(ManifestError, match=rf"table of h100: bf16_kk: a time of {SERIAL.name} is measured on 132 SMs"):
        to_json(manifest(measured, source(FEW, SERIAL)))
    few = source(FEW, SMALL, provenance="measured")
    with pytest.raises(
        ManifestError, match=r"table of h100_pcie: bf16_kk: a time of .* is measured on 114 SMs, and th"
    ):
        to_json(manifest(source(H100, SMALL), few))


def test_a_wheel_is_for_one_architecture_and_host():
    check_one_host([H100, H200])
    with pytest.raises(
        PackageError, match=r"h200 is sm_90a on manylinux_2_28_x86_64, thor is sm_110a on .*; a wheel is"
    ):
        check_one_host([H200, THOR])
    with pytest.raises(PackageError, match="the target h200 is given twice"):
        check_one_host([H200, H100, H200])


def grouped(*keys):
    """Make a selection of kernels of groups of rows."""
    made = selection(H200, *(KernelKey(Operation.BF16_KK_GROUPED, x.candidate) for x in keys))
    (section,) = made.table.sections
    return replace(made, table=replace(made.table, sections=(replace(section, operation=Operation.BF16_KK_GROUPED),)))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (selection(H200, SMALL), "the selection of h200 has no such table of bf16_kk; make one with `aot select"),
        (grouped(SMALL, SERIAL), "kernels of bf16_kk_grouped in the selection of h200 add up k in more than one order"),
    ],
)
def test_a_wheel_is_not_batch_invariant_without_one_order_of_sums(chosen, message, tmp_path):
    stated = {"package": "aot-gemm", "wheel_version": "1.2", "batch_invariant": True}
    with pytest.raises(PackageError, match=f"^--batch-invariant: {message}"):
        make_wheel([TableSource(chosen, H200)], tmp_path, None, **stated)


def test_groups_of_one_order_make_a_batch_invariant_wheel(tmp_path, monkeypatch):
    """They pass the check, behind which kernels are compiled."""
    monkeypatch.setattr("aot.package.wheel._compiled", lambda *_: pytest.fail("compiled", pytrace=False))
    stated = {"package": "aot-gemm", "wheel_version": "1.2", "batch_invariant": True}
    with pytest.raises(pytest.fail.Exception, match="compiled"):
        make_wheel([TableSource(grouped(SMALL), H200)], tmp_path, None, **stated)


def test_a_pack_is_built_beside_its_functions_with_a_lock_of_both(tmp_path, monkeypatch):
    sources, made = [source(H200, *SELECTION.kernels)], []

    def build(name):
        def write(*given, **more):
            made.append((name, given[0], more.get("pack")))
            path = tmp_path / f"{name}-1.2-py3-none-any.whl"
            path.write_bytes(name.encode())
            return path

        return write

    monkeypatch.setattr("aot.package.wheel._compiled", lambda *_: artifacts(sources))
    monkeypatch.setattr("aot.package.wheel.build_wheel", build("aot_gemm_sm90a"))
    monkeypatch.setattr("aot.package.wheel.build_api", build("aot_gemm"))
    stated = {"package": "aot-gemm", "wheel_version": "1.2", "pack": "aot-gemm-sm90a", "pack_answers": "tuned"}
    built = make_wheel(sources, tmp_path, Workplace(), **stated)
    assert built.manifest.package == "aot-gemm-sm90a"
    assert made == [("aot_gemm_sm90a", built.manifest, PackFor("aot-gemm", "tuned")), ("aot_gemm", "aot-gemm", None)]
    assert built.lock == tmp_path / "aot-gemm-sm90a.lock"
    assert [x.partition(" ")[0] for x in built.lock.read_text().splitlines()] == [
        "aot-gemm==1.2",
        "aot-gemm-sm90a==1.2",
    ]


def test_kernels_of_one_object_are_built_for_one_target():
    """Else a library would have two objects of one name: here the H100 has a width of its own, and so has the H200."""
    narrow, wide, other = (
        KernelKey(BF16, gemm_candidate("sm90_one_tile", 64, tile_n, use_tma_store=False)) for tile_n in (104, 128, 160)
    )
    built = shared_kernels([source(H100, narrow, other), source(H200, wide, other)])
    assert [built[key].name for key in (narrow, wide, other)] == ["h100", "h100", "h100"]
    apart = shared_kernels([source(H100, narrow), source(H200, other)])
    assert [apart[key].name for key in (narrow, other)] == ["h100", "h200"]
