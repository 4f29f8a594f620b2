"""Where the files of a release come from: an in-toto statement of SLSA's provenance, without a signature.

Nothing in it tells when or where the build ran, so that two builds of a commit give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aot.release.source import Source

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:aot-kernels:release:1"
"""What `externalParameters` mean: docs/releases.md. A change of their meaning is another number."""
BUILDER = "urn:aot-kernels:make-release"
"""Who built, where nobody says more: whoever ran `make release`."""


@dataclass(frozen=True)
class Parameters:
    """What was asked for, by which the same release can be asked for again."""

    targets: tuple[str, ...]
    """Of each wheel, as `aot release` takes them."""
    package: str
    version: str
    source_date_epoch: str
    """What every file in a wheel is dated, in seconds."""
    selections: Mapping[str, str]
    """By target, the first digits of the hash of the selection, which the wheel's version has too."""
    maintainer: str = ""
    """Who answers for the Debian packages; empty where there are none."""


def digest_of(path: Path) -> dict[str, str]:
    """Return a file's SHA-256 as in-toto writes it."""
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _inputs(inputs: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [{"name": name, "digest": digest_of(path)} for name, path in sorted(inputs.items())]


def _packages(versions: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"uri": f"pkg:pypi/{name}@{version}"} for name, version in sorted(versions.items())]


def statement(
    subjects: Sequence[Path],
    parameters: Parameters,
    source: Source,
    inputs: Mapping[str, Path],
    versions: Mapping[str, str],
    tools: Mapping[str, str],
    builder: str = BUILDER,
) -> str:
    """Write the statement as one line of JSON.

    Args:
        subjects: the files that it is about.
        parameters: what was asked for.
        source: the commit.
        inputs: by their names, the files of the commit that decide what is in the wheels: selections and records.
        versions: by their names, the Python packages that are linked in or compile and link.
        tools: versions of what else builds.
        builder: URI of who built.
    """
    commit = {"name": "source", "digest": {"gitCommit": source.commit}}
    found = {
        "_type": STATEMENT,
        "subject": [{"name": x.name, "digest": digest_of(x)} for x in sorted(subjects)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "targets": list(parameters.targets),
                    "package": parameters.package,
                    "version": parameters.version,
                    **({"maintainer": parameters.maintainer} if parameters.maintainer else {}),
                },
                "internalParameters": {
                    "source_date_epoch": parameters.source_date_epoch,
                    "selections": dict(parameters.selections),
                },
                "resolvedDependencies": [commit, *_inputs(inputs), *_packages(versions)],
            },
            "runDetails": {"builder": {"id": builder, "version": dict(sorted(tools.items()))}},
        },
    }
    return json.dumps(found, sort_keys=True) + "\n"
