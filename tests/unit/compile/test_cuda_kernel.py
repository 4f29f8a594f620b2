"""The example whose kernels nvcc compiles, for every architecture, and what is said where it cannot."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from aot.compile.binary import write_binary
from aot.compile.object_file import inspect
from aot.core.candidate import Candidate, KernelKey
from aot.core.errors import CompileError
from aot.core.knobs import PlainKnobs
from aot.core.target import load_target
from aot.families import family_named
from aot.space.cost import estimate
from aot.space.legality import check
from tests.compiling import some
from tests.example_family import example_family
from tests.unit.twins import BF16, problem_of

pytestmark = pytest.mark.slow

KEY = KernelKey(BF16, Candidate("column_warps", PlainKnobs((("rows", 2), ("warps", 4)))))


@pytest.fixture(scope="module", autouse=True)
def example():
    with example_family("cuda_kernel", "column_warps"):
        yield import_module("column_warps")


@pytest.mark.parametrize("name", some(["orin", "a100", "h200", "thor"], 2))
def test_equal_kernels_are_equal_objects_on_every_architecture(tmp_path, name):
    target = load_target(name)
    paths = [tmp_path / name / "kernel.o" for name in ("here", "and_there")]
    for path in paths:
        path.parent.mkdir()
        write_binary(family_named("column_warps").entry(KEY.candidate, BF16, target), KEY, target, path)
    first, second = (x.read_bytes() for x in paths)
    assert first == second
    assert str(Path.home()).encode() not in first
    assert inspect(paths[0], KEY.name, target, 128).entry_symbol == f"_mlir_{KEY.name}__mlir_ciface_{KEY.name}"


def test_where_nvcc_is_not_installed_the_package_to_install_is_named(example, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(example, "files", missing)
    example._nvcc.cache_clear()
    with pytest.raises(CompileError, match="nvidia-cuda-nvcc is not installed here; pip install 'nvidia-cuda-nvcc>=13"):
        family_named("column_warps").entry(KEY.candidate, BF16, load_target("h200"))
    example._nvcc.cache_clear()


def test_what_nvcc_says_of_a_fault_is_passed_on(example, monkeypatch, tmp_path):
    (tmp_path / "product.cu").write_text("__global__ void column_warps() { undeclared(); }")
    monkeypatch.setattr(example, "SOURCE", tmp_path / "product.cu")
    with pytest.raises(CompileError, match=r'nvcc ended with [12]: .*identifier "undeclared" is undefined'):
        family_named("column_warps").entry(KEY.candidate, BF16, load_target("h200"))


def test_a_kernel_without_stages_is_predicted_by_what_its_threads_load(monkeypatch):
    target = load_target("h200")
    family, counted = family_named("column_warps"), check(KEY.candidate, BF16, target).resources
    (of_stage,) = estimate([KEY.candidate], [problem_of(4, 4096, 4096)], target).total_us[0]
    without = counted.__class__(0, 0, counted.num_threads, 0)
    monkeypatch.setattr(type(family), "resources", lambda *_: without)
    (of_threads,) = estimate([KEY.candidate], [problem_of(4, 4096, 4096)], target).total_us[0]
    assert of_stage < of_threads < 20 * of_stage
