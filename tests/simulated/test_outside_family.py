"""Families from other packages all the way, one in CuTe DSL and one whose kernels another compiler makes.

The way is space, compiler, interpreter, tuning, table, wheel.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.compile.compiler import TOOLCHAIN
from aot.core.candidate import KernelKey
from aot.core.errors import CandidateError, StoreError
from aot.core.knobs import PlainKnobs
from aot.families import check_knobs, family_of
from aot.measure.tuning_set import read_tuning_set
from aot.package.wheel_check import read_wheel_manifest
from aot.select import pipeline
from aot.select.times.record import parse_record, read_record, record_text
from tests.compiling import EVERY, STORE, compile_kernels
from tests.emulated import CACHE
from tests.example_family import example_family, forget_families
from tests.objects import BF16
from tests.simulated import device as simulated
from tests.simulated.conftest import Tuning, tune, write_shapes
from tests.simulated.machines import H200
from tests.unit.accepted import named
from tests.unit.invoked import coarse_grid, one_unaligned


@dataclass(frozen=True)
class Example:
    """A package of examples/, and what of it is tried."""

    folder: str
    distribution: str
    kernel: str
    knobs: tuple
    wrong_knobs: str
    compilers: tuple = ()

    @property
    def family(self):
        return self.distribution.replace("-", "_")

    @property
    def machine(self):
        """Return a machine on which the kernel is the fastest."""
        return replace(H200, sound=(self.kernel, H200.sound[0]))


EXAMPLES = (
    Example(
        "family",
        "row-dot",
        "row_dot_columns2_warps4",
        (("columns", 2), ("warps", 4)),
        "row_dot_columns2_warps99: warps: expected a whole number from 1 to 16, got 99; the knobs of row_dot",
    ),
    Example(
        "triton_kernel",
        "few-rows",
        "few_rows_columns32_depth64_stages3",
        (("columns", 32), ("depth", 64), ("stages", 3)),
        "few_rows_columns32_depth64_stages99: stages: expected a whole number from 2 to 8, got 99; the knobs of",
        ("triton", "ziglang"),
    ),
    Example(
        "cuda_kernel",
        "column-warps",
        "column_warps_rows4_warps4",
        (("rows", 4), ("warps", 4)),
        "column_warps_rows4_warps99: warps: expected a whole number from 1 to 16, got 99; the knobs of column_warps",
        ("nvidia-cuda-nvcc", "ziglang"),
    ),
)


TRIED = EXAMPLES if EVERY else EXAMPLES[:1]
"""Without `make walk` the one in CuTe DSL; kernels of other compilers are executed by tests/unit/compile."""


@pytest.fixture(scope="module", autouse=True, params=TRIED, ids=lambda x: x.folder)
def example(request):
    found = request.param
    with example_family(found.folder, found.family):
        yield found


@pytest.fixture(scope="module")
def own_tuning(example, tmp_path_factory):
    folder, machine = tmp_path_factory.mktemp("tuning"), example.machine
    shapes = write_shapes(folder / "small.toml", [1, 8])
    compile_kernels([KernelKey(BF16, named(name)) for name in machine.candidates], machine.target)
    done = tune(machine, "--shapes", shapes, "--bundle", folder / "bundle")
    assert done.exit_code == 0, done.output
    return Tuning(folder / "bundle", shapes, read_tuning_set(folder / "bundle"))


def aot(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def record(request, example, tmp_path_factory):
    """Measure on a simulated device, whose runner has no family; return the record's path."""
    own_tuning, folder = request.getfixturevalue("own_tuning"), tmp_path_factory.mktemp("device")
    sources = [simulated.HERE / "libcuda.cc"]
    driver = simulated.compile_shared(sources, folder / "libcuda.so.1", H200.target, "-Wl,-soname,libcuda.so.1")
    device = simulated.make_device(folder / "device", driver, example.machine, own_tuning)
    device.run(own_tuning.directory / "run.py", "--out", folder / "results.sqlite")
    aot("import", folder / "results.sqlite", "--record", folder / "record.jsonl.gz")
    return folder / "record.jsonl.gz"


def test_its_times_are_recorded_by_its_knobs(example, record):
    found = read_record(record)
    ((own, times),) = [
        (key, [x.median_us for x in found.measurements if x.kernel == key])
        for key in {x.kernel for x in found.measurements}
        if key.candidate.family == example.family
    ]
    assert own.candidate.knobs == PlainKnobs(example.knobs)
    assert own.name == f"bf16_kk_{example.kernel}"
    assert len(times) == 4
    assert min(times) > 0
    text = record_text(found)
    last, value = example.knobs[-1]
    knobs = ", ".join(f'"{name}": {value}' for name, value in example.knobs)
    assert f'{{"family": "{example.family}", "knobs": {{{knobs}}}}}' in text
    with pytest.raises(StoreError, match=example.wrong_knobs):
        parse_record(text.replace(f'"{last}": {value}', f'"{last}": 99'), "x")


@pytest.mark.walk
def test_the_table_takes_it_and_the_wheel_has_it_with_its_licence(example, record, tmp_path, monkeypatch):
    coarse_grid(monkeypatch)
    one_unaligned(monkeypatch)
    monkeypatch.setattr(pipeline, "committed_selection", lambda _: None)  # it takes seconds to read
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "artifacts").symlink_to(STORE)
    selection, dist = tmp_path / "simulated.json", tmp_path / "dist"
    words = ("--record", record, "--operations", "bf16_kk", "--no-curve", "-o", selection)
    aot("select", "--target", "h200", *words)
    told = aot("explain", "--target", "h200", "--selection", selection, 1, 136, 72)
    assert f"bf16_kk_{example.kernel}" in told
    aot("build", "--target", "h200", "--selection", selection, "--dist", dist)
    (wheel,) = dist.iterdir()
    manifest = read_wheel_manifest(wheel)
    (own,) = [x for x in manifest.kernels if x.candidate.family == example.family]
    assert (own.name, own.num_threads, own.load_alignment) == (f"bf16_kk_{example.kernel}", 128, 16)
    assert set(manifest.toolchain) == {*TOOLCHAIN, *example.compilers}
    chosen = {row.kernel for x in manifest.tables[0].table.sections for y in x.ladders for row in y.rows}
    assert manifest.kernels.index(own) in chosen
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = [x for x in archive.namelist() if x.endswith(f"/licenses/{example.distribution}.txt")]
        assert "Apache License" in archive.read(licence).decode()
    aot("verify", wheel)


def test_the_interpreter_finds_it_right(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "build" / "emulate").symlink_to(CACHE)
    words = ["--fresh", "--target", "h200", "--operations", "bf16_kk", "--legal", "--kernels", example.kernel]
    assert "1 of 1 kernels are right" in aot("emulate", *words, "--problem", "3,21,296")


def test_where_it_is_not_installed_what_has_its_kernels_says_so(example, record):
    candidate = named(example.kernel)
    check_knobs(candidate)
    assert (
        family_of(candidate).tiling(candidate).tile_n
        == {"row_dot": 8, "few_rows": 32, "column_warps": 4}[example.family]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [x for x in __import__("sys").path if not x.endswith(".example")])
        forget_families()
        with pytest.raises(StoreError, match=f"no kernel family '{example.family}'; there are: cluster_split_k, "):
            read_record(record)
        with pytest.raises(CandidateError, match=f"no kernel family '{example.family}'"):
            family_of(candidate)
    forget_families()
