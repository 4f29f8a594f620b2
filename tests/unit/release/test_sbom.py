"""A wheel's bill of materials: what CycloneDX's own reader gives back of it, and the same bytes for the same wheel."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from cyclonedx.model.bom import Bom

from aot.package.contents import Component
from aot.release.sbom import bill, inside, requirement

DATE = datetime(2026, 11, 20, 7, tzinfo=UTC)
QUACK = Component("quack", "quack-kernels", "0.6.5", "Apache-2.0", "compiled into kernels", b"text")
GLIBC = Component("glibc", "ziglang", "0.17.0", "LGPL-2.1-or-later", "libc_nonshared.a", b"text")
DSL = Component("NVIDIA-CUTLASS-DSL", "nvidia-cutlass-dsl", "4.8.1", "LicenseRef-NVIDIA-CUTLASS-DSL", "a", b"text")


def written(content=b"wheel"):
    entries = [*inside([QUACK, GLIBC, DSL]), requirement("numpy", "2.4.6")]
    return bill("aot-gemm", "0.1.0+thor.0", content, "Apache-2.0 AND MIT", entries, DATE)


def test_the_reader_of_the_format_gives_back_what_is_inside():
    bom = Bom.from_json(json.loads(written()))
    root = bom.metadata.component
    assert (root.name, root.version, str(root.purl)) == ("aot-gemm", "0.1.0+thor.0", "pkg:pypi/aot-gemm@0.1.0%2Bthor.0")
    assert [x.content for x in root.hashes] == [hashlib.sha256(b"wheel").hexdigest()]
    assert [x.value for x in root.licenses] == ["Apache-2.0 AND MIT"]
    assert bom.metadata.timestamp == DATE
    assert {str(x.purl): (x.name, x.version, x.description) for x in bom.components} == {
        "pkg:pypi/quack-kernels@0.6.5": ("quack-kernels", "0.6.5", "compiled into kernels"),
        "pkg:pypi/ziglang@0.17.0#lib/libc/glibc": ("glibc", "0.17.0", "libc_nonshared.a"),
        "pkg:pypi/nvidia-cutlass-dsl@4.8.1": ("nvidia-cutlass-dsl", "4.8.1", "a"),
        "pkg:pypi/numpy@2.4.6": ("numpy", "2.4.6", None),
    }
    (tree,) = (x for x in bom.dependencies if x.dependencies)
    assert {str(x.ref) for x in tree.dependencies} == {str(x.purl) for x in bom.components}


def test_a_licence_is_named_as_the_format_asks():
    found = {x["name"]: x.get("licenses") for x in json.loads(written())["components"]}
    assert found["quack-kernels"] == [{"license": {"id": "Apache-2.0"}}]
    assert found["nvidia-cutlass-dsl"] == [{"license": {"name": "LicenseRef-NVIDIA-CUTLASS-DSL"}}]
    assert found["numpy"] is None


def test_equal_wheels_have_equal_bills_and_others_another_serial_number():
    assert written() == written()
    one, other = (json.loads(written(x))["serialNumber"] for x in (b"wheel", b"other"))
    assert one != other
