"""What a wheel has inside follows from what its families import, and every licence is found where it is installed."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from aot.core.errors import DependencyError, PackageError
from aot.package import contents
from aot.package.contents import components, licence_of, parts_of

ALWAYS = ["aot", "NVIDIA-CUTLASS-DSL", "DLPack", "zig", "glibc", "NVIDIA-CUDA-Runtime"]


@pytest.fixture
def cuda_dir(tmp_path):
    """Lay out what is fetched of the CUDA runtime."""
    metadata = tmp_path / "nvidia_cuda_runtime-13.0.96.dist-info"
    (metadata / "licenses").mkdir(parents=True)
    (metadata / "licenses" / "License.txt").write_text("its terms")
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: nvidia-cuda-runtime\nVersion: 13.0.96\n")
    (metadata / "RECORD").write_text(f"{metadata.name}/licenses/License.txt,,\n")
    return tmp_path / "nvidia" / "cu13"


@pytest.mark.parametrize(
    ("families", "more"),
    [
        (["simt"], set()),
        (["cluster_split_k"], {"quack"}),
        (["sm90_cluster_split_k"], {"quack"}),
        (["sm90_one_tile"], {"quack"}),
        (["sm90_quack"], {"quack"}),
        (["row_scalar"], set()),
        (["sm90_prefetch_b"], {"quack"}),
        (["sm100_tgv"], {"NVIDIA-CUTLASS"}),
        (["sm100_persistent"], {"NVIDIA-CUTLASS"}),
        (["simt", "sm100_quack", "sm100_tgv"], {"quack", "NVIDIA-CUTLASS"}),
    ],
)
def test_a_library_is_inside_where_a_family_imports_it(families, more):
    assert {x.name for x in parts_of(families)} == {*ALWAYS, *more}


def test_a_wheels_licence_names_each_of_those_inside_once():
    assert licence_of(["simt"]) == (
        "Apache-2.0 AND LGPL-2.1-or-later AND LicenseRef-NVIDIA-CUTLASS-DSL AND LicenseRef-NVIDIA-Proprietary AND MIT"
    )
    assert "BSD-3-Clause" in licence_of(["sm100_tgv"]).split(" AND ")


@pytest.mark.slow
def test_components_have_the_installed_versions_and_texts(cuda_dir):
    found = {x.name: x for x in components(["sm90_quack", "sm100_tgv"], cuda_dir)}
    assert {name: x.version for name, x in found.items() if name != "NVIDIA-CUDA-Runtime"} == {
        name: version(x.distribution) for name, x in found.items() if name != "NVIDIA-CUDA-Runtime"
    }
    assert (found["NVIDIA-CUDA-Runtime"].version, found["NVIDIA-CUDA-Runtime"].text) == ("13.0.96", b"its terms")
    heads = {
        "aot": b"Apache License",
        "quack": b"Apache License",
        "DLPack": b"Apache License",
        "NVIDIA-CUTLASS": b"SPDX-License-Identifier: BSD-3-Clause",
        "NVIDIA-CUTLASS-DSL": b"NVIDIA Software License Agreement",
        "zig": b"The MIT License (Expat)",
        "glibc": b"GNU C Library",
    }
    for name, head in heads.items():
        assert head in found[name].text[:400], name
        assert found[name].file == f"{name}.txt"


def test_a_licence_that_is_not_there_is_an_error(cuda_dir, monkeypatch):
    moved = contents.Part("quack", "quack-kernels", "Apache-2.0", "licenses/COPYING", "", "quack")
    monkeypatch.setattr(contents, "_PARTS", (moved,))
    text = f"quack-kernels {version('quack-kernels')} has no licenses/COPYING, the licence of what a wheel has of it"
    with pytest.raises(PackageError, match=re.escape(text)):
        components(["sm90_quack"], cuda_dir)


def test_a_package_that_is_not_installed_is_an_error(cuda_dir, monkeypatch):
    monkeypatch.setattr(contents, "_PARTS", (contents.Part("x", "no-such-package", "MIT", "LICENSE", ""),))
    with pytest.raises(DependencyError, match="no-such-package is not installed, which wheels are made of; "):
        components(["simt"], cuda_dir)


def test_a_cuda_runtime_without_metadata_is_an_error(tmp_path):
    with pytest.raises(PackageError, match=f"no metadata of nvidia-cuda-runtime in {tmp_path}; remove it"):
        components(["simt"], tmp_path / "nvidia" / "cu13")
