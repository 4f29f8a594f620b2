"""The host code of a library, built over the recorder: for this machine, once for all sets of kernels."""

import platform
from dataclasses import replace

import pytest

from aot.core.errors import PackageError, TargetError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.emulate import build
from aot.emulate.build import emulated_library, emulated_target
from aot.measure.kernel_library import KernelLibrary
from aot.select.selector import fallback_key
from tests.compiling import compile_kernels
from tests.emulated import link, target_of
from tests.unit.twins import BF16

THOR, H200 = load_target("thor"), load_target("h200")


def test_a_target_keeps_its_device_and_gets_this_machine_as_the_host():
    for target in (THOR, H200):
        found = emulated_target(target)
        assert found.machine == platform.machine()
        host = ("host_triple", "host_cpu", "glibc")
        assert replace(found, **{x: getattr(target, x) for x in host}) == target


def test_a_device_of_few_sms_holds_fewer_clusters():
    target = replace(H200, active_clusters=((4, 30), (8, 16)))
    found = emulated_target(target, 8)
    assert (found.num_sms, found.num_clusters(4), found.num_clusters(8), found.num_clusters(2)) == (8, 2, 1, 4)
    assert emulated_target(target, H200.num_sms) == emulated_target(target)


def test_a_machine_that_no_target_has_as_a_host_is_refused(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    with pytest.raises(
        TargetError, match="this machine is riscv64, for which no target compiles host code; use x86_64"
    ):
        emulated_target(THOR)


@pytest.mark.slow
def test_kernels_are_known_by_their_names_and_the_runtime_is_compiled_once(tmp_path, monkeypatch):
    target = target_of("thor")
    artifacts = compile_kernels([fallback_key(x, target) for x in (BF16, Operation.FP16_KK)], target)
    first = link(artifacts[:1], [], target, tmp_path / "first")
    commands = []
    real = build.run

    def noted(command, what, **options):
        commands.append(what)
        return real(command, what, **options)

    monkeypatch.setattr(build, "run", noted)
    both = link(artifacts, [], target, tmp_path / "both")
    assert KernelLibrary(first.library).names == (artifacts[0].kernel.name,)
    assert KernelLibrary(both.library).names == tuple(x.kernel.name for x in artifacts)
    assert commands == [
        "compiling devices.cc",
        "compiling kernels.cc",
        "compiling table.cc",
        "linking the kernels with the recorder",
    ]


@pytest.mark.slow
def test_a_project_without_a_list_of_sources_is_refused(tmp_path, monkeypatch):
    target = target_of("thor")
    (artifact,) = compile_kernels([fallback_key(BF16, target)], target)
    library = emulated_library([artifact], [], target)
    monkeypatch.setattr(build, "_CORE", build.re.compile("no such list"))
    with pytest.raises(PackageError, match="has no list CORE"):
        build.build_host_library(library, {artifact.kernel.name: artifact.path}, target, tmp_path, cache=tmp_path)
