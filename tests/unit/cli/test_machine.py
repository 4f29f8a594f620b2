"""What a machine can do follows from what was found on it; each `no` says what is missing and how to get it."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace

import pytest

from aot.cli import machine as doctor
from aot.cli.machine import Machine, abilities, next_command, read_machine, target_of
from aot.core.target import load_target, target_names
from aot.measure.device import DeviceProperties

TARGETS = [load_target(name) for name in target_names()]
H200 = DeviceProperties("NVIDIA H200", (9, 0), 132, 50 * 2**20, "CUDA 13.0", "00000000:19:00.0", integrated=False)
MACHINE = Machine(
    machine="x86_64",
    system="Linux",
    python="3.12.3",
    num_cpus=2,
    memory_bytes=8 * 2**30,
    free_disk_bytes=20 * 2**30,
    gpu=H200,
    no_gpu="",
    compilers={"nvidia-cutlass-dsl": "4.8.1"},
    linkers={"cmake": "4.4.4", "ziglang": "0.17.0"},
    cached=("aarch64", "x86_64"),
    emulators={"aarch64": "/usr/bin/qemu-aarch64-static"},
    torch="2.13.0",
    torch_cuda="13.0",
    programs={"git": "/usr/bin/git", "make": "/usr/bin/make", "ssh": "/usr/bin/ssh"},
)
NO_GPU = replace(MACHINE, gpu=None, no_gpu="no usable NVIDIA driver; run where nvidia-smi finds a GPU")


def can(machine):
    return {x.name: x.can for x in abilities(machine, TARGETS)}


def why(machine, name):
    (found,) = [x for x in abilities(machine, TARGETS) if x.name == name]
    assert not found.can
    return found.why


def test_a_machine_with_everything_can_do_everything():
    assert set(can(MACHINE).values()) == {True}
    assert next_command(MACHINE, TARGETS) == "aot tune --target h200"


@pytest.mark.parametrize(
    ("machine", "name", "text"),
    [
        (replace(MACHINE, linkers={"cmake": None, "ziglang": None}), "build wheels", "cmake, ziglang missing; "),
        (replace(MACHINE, free_disk_bytes=2**30), "build wheels", "1.0 GiB of disk free; free at least 2 GiB"),
        (replace(MACHINE, cached=("x86_64",)), "build without a network", "the CUDA runtime for aarch64 is fetched by"),
        (NO_GPU, "run kernels", "no usable NVIDIA driver; run where nvidia-smi finds a GPU"),
        (
            replace(MACHINE, gpu=replace(H200, name="Tesla V100", compute_capability=(7, 0))),
            "run kernels",
            "Tesla V100 has compute capability 7.0; expected one of 8.0, 8.7, 8.9, 9.0, 10.0, 11.0, 12.0, 12.1; CONTRI",
        ),
        (
            replace(MACHINE, gpu=replace(H200, driver_version="CUDA 12.8")),
            "run kernels",
            "the driver supports CUDA 12.8; install one for CUDA 13.0 or newer",
        ),
        (
            replace(MACHINE, gpu=replace(H200, num_sms=60)),
            "tune here",
            "NVIDIA H200 with 60 SMs is no target; copy the nearest of aot/targets/",
        ),
        (NO_GPU, "tune here", "no GPU; `aot tune --on ssh://DEVICE`, or "),
        (replace(MACHINE, programs={"git": "g", "make": "m"}), "tune by SSH", "ssh is not installed; install OpenSSH"),
        (
            replace(MACHINE, torch=None),
            "time torch beside the kernels",
            "torch is not installed; a tuning does without",
        ),
        (
            replace(MACHINE, torch="2.13.0+cpu", torch_cuda=None),
            "time torch beside the kernels",
            "torch 2.13.0+cpu is built without CUDA; install one with CUDA, or tune with --no-reference",
        ),
        (replace(MACHINE, emulators={"aarch64": None}), "run aarch64 programs, for tests", "no qemu-user; the tests"),
        (replace(MACHINE, programs={"ssh": "s", "make": "m"}), "make a release", "git missing"),
    ],
)
def test_what_cannot_be_done_says_what_is_missing(machine, name, text):
    assert why(machine, name).startswith(text)


@pytest.mark.parametrize(
    ("machine", "command"),
    [
        (NO_GPU, "aot build --target thor"),
        (replace(MACHINE, compilers={"nvidia-cutlass-dsl": None}), "make setup"),
        (replace(MACHINE, gpu=replace(H200, num_sms=60)), "aot build --target h100"),
    ],
)
def test_the_next_command_is_one_that_can_be_run(machine, command):
    assert next_command(machine, TARGETS) == command


def test_a_gpu_is_the_target_of_its_name_and_number_of_sms():
    assert target_of(H200, TARGETS).name == "h200"
    assert target_of(replace(H200, name="NVIDIA Thor"), TARGETS) is None


def test_this_machine_is_read_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    emulator = tmp_path / "bin" / "qemu-aarch64"
    emulator.write_text("#!/bin/sh\n")
    emulator.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = read_machine()
    assert (found.machine, found.python) == ("x86_64", platform.python_version())
    assert found.emulators == {"aarch64": str(emulator)}
    assert found.cached == ()
    assert found.programs == dict.fromkeys(("git", "make", "npx", "ssh", "unshare"))
    assert found.free_disk_bytes > 0
    assert [name for name, number in (found.compilers | found.linkers).items() if number is None] == []
    assert list(tmp_path.iterdir()) == [tmp_path / "bin"]


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '13.0'\n", "13.0"),
        ("cuda = '12.8'\nhip = None\n", "12.8"),
        ("cuda: Optional[str] = None\nhip = '6.0'\n", None),
    ],
)
def test_torchs_cuda_is_read_without_importing_torch(tmp_path, monkeypatch, text, cuda):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test may have imported it
    assert doctor._torch_cuda() == cuda


def test_an_emulator_that_the_kernel_knows_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._emulator("aarch64", tmp_path) is None
    (tmp_path / "qemu-aarch64").mkdir()
    assert doctor._emulator("aarch64", tmp_path) == "binfmt_misc"
