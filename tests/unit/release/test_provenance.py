"""The in-toto statement of a release: its parts, the hashes in it, and nothing of the machine."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from aot.release.provenance import Parameters, statement
from aot.release.source import Source

SOURCE = Source("a" * 40, datetime(2026, 11, 20, tzinfo=UTC))
PARAMETERS = Parameters(("thor", "h200,h100"), "aot-gemm", "0.1.0", "1577836800", {"thor": "9dbb4998dd8e"})


def sha256(text):
    return {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def written(folder):
    folder.mkdir()
    for name, text in {"b.whl": "wheel", "a.json": "bill", "h200.jsonl.gz": "record"}.items():
        (folder / name).write_text(text)
    inputs = {"aot/records/h200.jsonl.gz": folder / "h200.jsonl.gz"}
    subjects = [folder / "b.whl", folder / "a.json"]
    return statement(subjects, PARAMETERS, SOURCE, inputs, {"zig": "1", "cmake": "2"}, {"python": "3.11.7"}, "urn:me")


def test_the_statement_names_what_was_built_of_what_by_whom(tmp_path):
    text = written(tmp_path / "one")
    assert text.count("\n") == 1
    found = json.loads(text)
    predicate = found["predicate"]
    assert (found["_type"], found["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert found["subject"] == [
        {"name": "a.json", "digest": sha256("bill")},
        {"name": "b.whl", "digest": sha256("wheel")},
    ]
    assert predicate["buildDefinition"] == {
        "buildType": "urn:aot-kernels:release:1",
        "externalParameters": {"targets": ["thor", "h200,h100"], "package": "aot-gemm", "version": "0.1.0"},
        "internalParameters": {"source_date_epoch": "1577836800", "selections": {"thor": "9dbb4998dd8e"}},
        "resolvedDependencies": [
            {"name": "source", "digest": {"gitCommit": "a" * 40}},
            {"name": "aot/records/h200.jsonl.gz", "digest": sha256("record")},
            {"uri": "pkg:pypi/cmake@2"},
            {"uri": "pkg:pypi/zig@1"},
        ],
    }
    assert predicate["runDetails"] == {"builder": {"id": "urn:me", "version": {"python": "3.11.7"}}}


def test_it_does_not_depend_on_where_it_was_written(tmp_path):
    assert written(tmp_path / "one") == written(tmp_path / "another")
