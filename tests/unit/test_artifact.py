from pathlib import Path

from aot.artifact import Artifact, CompileFailure
from tests.golden.manifest import golden_manifest


def test_artifacts_and_failures_are_values():
    kernel = golden_manifest().kernels[0]
    assert Artifact(kernel, Path("a")) == Artifact(kernel, Path("a")) != Artifact(kernel, Path("b"))
    assert {CompileFailure("k", "why"), CompileFailure("k", "why")} == {CompileFailure("k", "why")}
