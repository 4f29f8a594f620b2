"""Every text of every file format, found by its dataclasses' annotations, with texts that mean something elsewhere.

Each is refused with the format's own error, or comes out as the very text, in what is rendered too; of the texts that
are digits of numbers, none comes out.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import sqlite3
import tomllib
from dataclasses import fields, replace
from functools import cache
from itertools import product

import pytest

from aot.core.errors import ManifestError, StoreError
from aot.core.operation import Operation
from aot.measure.store import read_store
from aot.package.build import read_templates
from aot.package.manifest import WheelTable, from_json
from aot.package.render import render
from aot.select.times.record import from_store, read_record
from tests.compiling import EVERY
from tests.golden.manifest import golden_manifest, with_grids
from tests.hostile import HOSTILE, first_places, text_fields, text_places, with_text
from tests.seeds import SEEDS, store_bytes
from tests.unit.escapes import CPP_LITERAL, unescaped_cpp, unescaped_markdown

pytestmark = pytest.mark.slow

GOLDEN = golden_manifest()
MANIFEST = SEEDS["manifest"]


@pytest.mark.parametrize(
    "kind", list(dict.fromkeys(seed.kind for seed in SEEDS.values())), ids=lambda kind: kind.__name__
)
def test_the_seeds_of_a_format_have_every_text_that_its_dataclasses_can_hold(kind):
    seeds = [seed for seed in SEEDS.values() if seed.kind is kind]
    assert {owner for seed in seeds for _, owner in text_places(kind, seed.document)} == text_fields(kind)


def texts_for(i):
    """Give the texts that are tried at a place: by turns a quarter of them, and with `make walk` all."""
    found = list(HOSTILE.values())
    return found if EVERY else found[i % 4 :: 4]


@pytest.mark.parametrize("name", SEEDS)
def test_a_hostile_text_is_refused_or_is_read_as_it_is(name, tmp_path):
    seed = SEEDS[name]
    seed.read(seed.written(seed.document), tmp_path)
    refusals = []
    for i, (owner, place) in enumerate(first_places(seed.kind, seed.document).items()):
        for text in texts_for(i):
            content = seed.written(with_text(seed.document, place, text))
            try:
                found = seed.read(content, tmp_path)
            except seed.error as error:
                refusals.append(str(error))
                continue
            assert text.isprintable(), (owner, text)
            is_numbers = owner[0] == "PackedLadders"
            assert is_numbers or text in texts_of(found) or owner == ("Searches", "record"), (owner, text)
    assert refusals
    assert [x for x in refusals if not x.isprintable() or len(x) > 2000] == []


def texts_of(value):
    """List every text within a value."""
    if isinstance(value, str):
        return [str(value)]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts_of(item)]
    if isinstance(value, (list, tuple, frozenset)):
        return [text for item in value for text in texts_of(item)]
    return texts_of(vars(value)) if hasattr(value, "__dict__") else []


@cache
def templates():
    return read_templates()


@cache
def golden_files():
    return set(render(GOLDEN, templates()))


def readme_values(content):
    """Return what the README says of record and conditions, unescaped."""
    (table,) = re.findall(r"^- Table of `\w+`: \w+, from (`+)( ?)(.*)\2\1$", content, re.MULTILINE)
    times = re.findall(r"^- Times taken on: (.*), driver (.*), (\S+)$", content, re.MULTILINE)
    return table[2], [tuple(map(unescaped_markdown, line)) for line in times]


def check_rendered(manifest):
    files = render(manifest, templates())
    assert {x.replace(f"python/{manifest.module}/", "python/aot_gemm/") for x in files} == golden_files()
    project = tomllib.loads(files["pyproject.toml"].decode())
    assert set(project) == {"build-system", "project", "tool"}
    assert (project["project"]["name"], project["project"]["version"]) == (manifest.package, manifest.version)
    description = f"Prebuilt GEMM kernels for {manifest.arch} ({manifest.tables[0].called} dispatch table)"
    assert project["project"]["description"] == description
    version = ast.parse(files[f"python/{manifest.module}/_version.py"].decode()).body[1].value
    assert ast.literal_eval(version) == manifest.version
    literals = [unescaped_cpp(x.group()) for x in CPP_LITERAL.finditer(files["src/kernels.cc"].decode())]
    texts = [*(kernel.name for kernel in manifest.kernels), manifest.version, manifest.arch]
    assert [x.decode() for x in literals if x not in (b"kernel.h", b"aot_gemm.h", b"C")] == texts
    (table,) = manifest.tables
    named = [unescaped_cpp(x.group()).decode() for x in CPP_LITERAL.finditer(files["src/table.cc"].decode())]
    types = {operation.call: operation.types.tag for operation in Operation}
    expected = ["dispatch.h", "operation.h", "row_operation.h", *table.device_names, table.target]
    expected += [x for call in manifest.element_bits for x in (call, types[call])]
    assert named == expected
    record, times = readme_values(files["README.md"].decode())
    assert record == table.record
    assert times == [(x.device, x.driver, x.date) for x in table.conditions]
    assert with_grids(from_json(files[f"python/{manifest.module}/manifest.json"]), manifest) == manifest


def accepted(document):
    """Read a manifest, and give it the golden one's grids; None where it is refused."""
    try:
        return with_grids(from_json(json.dumps(document)), GOLDEN)
    except ManifestError:
        return None


def test_what_the_manifests_reader_takes_is_rendered_as_the_very_text():
    """A text stands in all places at once that may have it together, so that it is rendered once."""
    owners, documents = set(), {}
    places = reversed(first_places(MANIFEST.kind, MANIFEST.document).items())  # keys behind their values
    for (owner, place), text in product(places, HOSTILE.values()):
        alone = accepted(with_text(MANIFEST.document, place, text))
        if alone is None:
            continue
        owners.add(owner)
        together = with_text(documents.get(text, MANIFEST.document), place, text)
        if accepted(together) is None:
            check_rendered(alone)
        else:
            documents[text] = together
    for document in documents.values():
        check_rendered(accepted(document))
    assert {("WheelTable", x) for x in ("record", "device_names")} <= owners
    assert {("Conditions", x) for x in ("device", "driver")} <= owners
    assert ("WheelTable", "provenance") not in owners


@pytest.mark.parametrize(
    "field",
    ["package", "version", "target", "arch", "platform_tag", "provenance", "record", "bigger_tiles", "toolchain"],
)
def test_what_was_never_read_is_refused_when_it_is_rendered(field):
    refusals = []
    for text in HOSTILE.values():
        value = {text: text} if field == "toolchain" else {text: (text,)} if field == "bigger_tiles" else text
        changed = {field: value}
        if field in {x.name for x in fields(WheelTable)}:
            changed = {"tables": (replace(GOLDEN.tables[0], **changed),)}
        try:
            check_rendered(replace(GOLDEN, **changed))
        except ManifestError as error:
            refusals.append(str(error))
        else:
            assert field == "record"
    assert all(x.isprintable() for x in refusals)
    assert len(refusals) == len(HOSTILE) or field in ("record", "platform_tag", "target")


def texts_of_store():
    connection = sqlite3.connect(":memory:")
    connection.deserialize(store_bytes())
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = [(table, row[1], row[2]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")]
    found = [(table, column) for table, column, kind in columns if kind == "TEXT"]
    for table in {table for table, _ in found}:
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0, f"the seed has no row of {table}"
    return found


@pytest.mark.parametrize(("table", "column"), texts_of_store())
def test_a_hostile_text_of_a_store_is_refused_or_is_read_as_it_is(table, column, tmp_path):
    refusals = []
    for text in HOSTILE.values():
        connection = sqlite3.connect(":memory:")
        connection.deserialize(store_bytes())
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (text.encode(errors="surrogatepass"),))
        connection.commit()
        (tmp_path / "r").write_bytes(connection.serialize())
        connection.close()
        try:
            record = from_store(tmp_path / "r")
            with read_store(tmp_path / "r") as store:
                problem = record.measurements[0].problem
                notes = [store.in_flight(), store.quarantined(), store.voided(), store.searches(problem)]
        except StoreError as error:
            refusals.append(str(error))
        else:
            assert all(found.isprintable() for found in texts_of((record, notes)))
    assert [x for x in refusals if not x.isprintable() or len(x) > 2000] == []


def test_a_compressed_file_of_no_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("aot.core.strict_json.MAX_BYTES", 10**6)
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(StoreError, match="more than 1000000 bytes, which no file of ours has"):
        read_record(tmp_path / "r.jsonl.gz")
