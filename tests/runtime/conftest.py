"""Libraries over the recorder, built once a session."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from tests.golden.manifest import golden_manifest
from tests.readings import readings
from tests.runtime import host, torch_reference
from tests.runtime.exchange import Framework
from tests.runtime.rows import with_rows
from tests.runtime.stating import (
    DENSE,
    IN_ATOMS,
    MANY,
    NARROW_GROUPS,
    PACKED,
    PACKED_GATES,
    PACKED_GROUPS,
    QUANTIZED,
    QUANTIZED_GROUPS,
)
from tests.runtime.tensors import BFLOAT16, E4M3, E8M0, FLOAT16, FLOAT32, INT32, UINT8, install_cupy

__all__ = ["readings"]


@pytest.fixture(autouse=True)
def drawing():
    """Have torch draw the same numbers for a test, whichever tests its process has run before."""
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def manifest():
    return host.random_manifest()


@pytest.fixture(scope="session")
def package(manifest, tmp_path_factory):
    return host.compile_package(manifest, tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="session")
def random_library(package):
    return host.Library(package._library.LIBRARY)


@pytest.fixture
def library(random_library):
    random_library.c.recorder_reset()
    return random_library


@pytest.fixture(scope="session")
def every_manifest():
    """Give a manifest of every operation of the catalogue."""
    return host.random_manifest(3, [*DENSE, *MANY])


@pytest.fixture(scope="session")
def every_path(every_manifest, tmp_path_factory):
    return host.compile_library(every_manifest, tmp_path_factory.mktemp("every"))


@pytest.fixture
def every_library(every_path):
    """Give a library of every operation; its kernels record what they are called with."""
    library = host.Library(every_path)
    library.c.recorder_reset()
    return library


@pytest.fixture
def fresh_binding(package, monkeypatch):
    """Bind the library anew for a test, which looks up torch, or the one that stands for it, again."""
    functions = package._library.Library(package._files.OWN).binding
    for name, function in functions.items():
        monkeypatch.setattr(package._products, name, function)
    monkeypatch.setattr(package._library, "binding", lambda: functions)


@pytest.fixture(scope="session")
def golden_path(tmp_path_factory):
    return host.compile_library(golden_manifest(), tmp_path_factory.mktemp("golden"))


@pytest.fixture
def fresh_library(golden_path, tmp_path):
    """Give a library of the golden manifest that nothing has loaded a kernel of yet."""
    path = tmp_path / golden_path.name
    path.write_bytes(golden_path.read_bytes())
    library = host.Library(path)
    library.c.recorder_reset()
    return library


@pytest.fixture(scope="session")
def every_package(every_manifest, tmp_path_factory):
    """Give a package that has every operation of the catalogue, those on rows too."""
    manifest = replace(with_rows(every_manifest), package="every-gemm")
    return host.compile_package(manifest, tmp_path_factory.mktemp("every_package"))


@pytest.fixture(scope="session")
def atoms_manifest():
    """Give a manifest of the operations of narrow elements with factors in atoms."""
    return host.random_manifest(5, [*IN_ATOMS, *QUANTIZED, *QUANTIZED_GROUPS])


@pytest.fixture(scope="session")
def atoms_package(atoms_manifest, tmp_path_factory):
    manifest = replace(atoms_manifest, package="atoms-gemm")
    return host.compile_package(manifest, tmp_path_factory.mktemp("atoms_package"))


@pytest.fixture
def packed(atoms_package):
    library = host.Library(atoms_package._library.LIBRARY)
    library.c.recorder_reset()
    return library


@pytest.fixture
def every(every_package):
    library = host.Library(every_package._library.LIBRARY)
    library.c.recorder_reset()
    return library


@pytest.fixture
def framework():
    return Framework()


@pytest.fixture(params=["exchange", "capsules"])
def tensor(request, framework, monkeypatch):
    """Make tensors of a framework with the exchange API, or of a CuPy, which the package asks in Python."""
    if request.param == "exchange":
        return framework.Tensor
    cupy = install_cupy(monkeypatch, 0x8880)
    names = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32, "float8_e4m3fn": E4M3, "int32": INT32}
    names["float8_e8m0fnu"] = E8M0
    cupy.empty = lambda shape, dtype: cupy.ndarray(shape, {**names, "uint8": UINT8}.get(dtype, dtype))
    return cupy.ndarray


@pytest.fixture(scope="session")
def packed_manifest():
    """Give a manifest of products of packed weights, and of groups whose rows are narrow too."""
    operations = [*PACKED, *PACKED_GATES, *PACKED_GROUPS, *NARROW_GROUPS]
    return replace(host.random_manifest(5, operations), package="packed-gemm")


@pytest.fixture(scope="session")
def packed_package(packed_manifest, tmp_path_factory):
    return host.compile_package(packed_manifest, tmp_path_factory.mktemp("packed_package"))


@pytest.fixture(scope="session")
def module(every_package):
    """Give what the package of every operation has for torch."""
    return import_module(f"{every_package.__name__}.torch")


@pytest.fixture
def calls(module, every_package, monkeypatch):
    """Have torch compute on the CPU what that package's functions would on a GPU; give which are called."""
    return torch_reference.stand_in(every_package, monkeypatch)
