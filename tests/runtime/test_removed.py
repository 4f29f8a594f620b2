"""A package whose files are removed while a process uses it, as `pip uninstall` does: what was loaded goes on."""

from __future__ import annotations

import ctypes
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime import host
from tests.runtime.tensors import FLOAT16, UINT8, FakeTensor, install_cupy

NUMBERS = itertools.count()
"""Of packages: each is another module."""


class Tensor(FakeTensor):
    """A tensor of a framework that allocates no workspace."""

    __module__ = "cupy"


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Give a package that has launched one product, and its library."""
    module = install_cupy(monkeypatch, 0x8880)
    module.empty = lambda shape, _dtype: module.ndarray(shape, UINT8)
    manifest = replace(host.random_manifest(5, (host.Operation.FP16_KK,)), package=f"removed{next(NUMBERS)}-gemm")
    package = host.compile_package(manifest, tmp_path)
    library = host.Library(package._library.LIBRARY)
    library.c.recorder_reset()
    package.linear(*operands(16), out=Tensor((16, 64), FLOAT16))
    return package, library


@pytest.fixture
def removed(launched):
    """Give that package after its files were removed, and its library."""
    shutil.rmtree(Path(launched[0].__file__).parent)
    return launched


def operands(m):
    return Tensor((m, 4096), FLOAT16), Tensor((64, 4096), FLOAT16)


def test_products_go_on_of_kernels_that_were_not_loaded_before_too(removed):
    package, library = removed
    sizes = (1, 16, 300, 5000)
    for m in sizes:
        package.linear(*operands(m), out=Tensor((m, 64), FLOAT16))
    launched = library.fake_launches()
    assert len(launched) == len(sizes) + 1
    assert len({x.kernel for x in launched}) > 1


def test_a_handle_that_is_closed_does_not_end_it(removed):
    package, library = removed
    path = package._library.LIBRARY
    handle = library.c._handle
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))
    assert path in Path("/proc/self/maps").read_text()
    package.linear(*operands(16), out=Tensor((16, 64), FLOAT16))
    assert len(library.fake_launches()) == 2


def test_what_reads_a_file_says_that_it_is_gone(removed):
    package, _ = removed
    with pytest.raises(package.CorruptLibraryError, match=r"cannot be read .*; reinstall the package"):
        package.check()


def test_what_has_no_kernels_is_refused_as_before_where_the_package_was_preloaded(launched):
    package, _ = launched
    package.preload()
    shutil.rmtree(Path(package.__file__).parent)
    with pytest.raises(package.UnsupportedError, match=r"aot build --target \w+ --operations default,fp16_kk_silu"):
        package.linear(*operands(16), activation="silu")
