"""The file of a manifest: kernels and sections of all kinds in one list each, and where in it a fault is."""

import json

import pytest

from aot.core.errors import ManifestError
from aot.package.manifest import from_json, to_json
from tests.golden.manifest import with_grids
from tests.runtime.rows import row_manifest

MANIFEST = row_manifest()
TEXT = to_json(MANIFEST)
FIRST, SECTIONS = len(MANIFEST.kernels), len(MANIFEST.tables[0].table.sections)


def refusal(edit):
    values = json.loads(TEXT)
    edit(values)
    with pytest.raises(ManifestError) as refused:
        from_json(json.dumps(values), "m.json")
    return str(refused.value)


def test_all_kernels_and_sections_are_in_one_list_each():
    values = json.loads(TEXT)
    assert with_grids(from_json(TEXT), MANIFEST) == MANIFEST
    assert [x["name"] for x in values["kernels"]] == [x.name for x in MANIFEST.all_kernels]
    assert "row_kernels" not in values
    (table, *_) = values["tables"]
    assert "row_table" not in table
    on_rows = table["table"]["sections"][SECTIONS:]
    assert [x["operation"] for x in on_rows] == [x.operation.tag for x in MANIFEST.tables[0].row_table.sections]
    for section, read in zip(on_rows, MANIFEST.tables[0].row_table.sections, strict=True):
        assert section["fallback"] == FIRST + read.fallback
        assert values["kernels"][section["fallback"]]["operation"] == section["operation"]
        named = {step["kernel"] for column in section["columns"] for step in column["steps"]}
        assert {values["kernels"][x]["operation"] for x in named} == {section["operation"]}


STEP = f"m.json: tables[0].table.sections[{SECTIONS + 1}].columns[0].steps[0]"


def section(values, number=SECTIONS):
    return values["tables"][0]["table"]["sections"][number]


def step(values):
    return section(values, SECTIONS + 1)["columns"][0]["steps"][0]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (
            lambda x: x["kernels"][FIRST + 2].update(speed=1),
            f"m.json: kernels[{FIRST + 2}].speed: there is no such key",
        ),
        (
            lambda x: x["kernels"][FIRST]["limits"].update(cols_multiple=0),
            f"m.json: kernels[{FIRST}].limits.cols_multiple: expected a whole number from 1 to 4096, got 0",
        ),
        (
            lambda x: step(x).update(rows=0),
            f"{STEP}.rows: expected a whole number from 1",
        ),
        (
            lambda x: step(x).update(kernel=FIRST - 1),
            f"{STEP}.kernel: is kernel {FIRST - 1}, which is of products; those on rows begin at {FIRST}; build",
        ),
        (
            lambda x: section(x).update(fallback="0"),
            f"m.json: tables[0].table.sections[{SECTIONS}].fallback: expected a whole number from 0",
        ),
        (
            lambda x: section(x).update(columns=3),
            f"tables[0].table.sections[{SECTIONS}].columns: expected a list, got 3",
        ),
        (lambda x: section(x)["columns"].append(3), "expected an object"),
        (
            lambda x: x["kernels"].insert(0, x["kernels"].pop()),
            "m.json: kernels[1]: is of a product behind those of operations on rows; expected products first",
        ),
        (
            lambda x: x["tables"][0]["table"]["sections"].reverse(),
            "is of a product behind those of operations on rows; expected products first",
        ),
        (lambda x: x.update(row_kernels=[]), "m.json: row_kernels: there is no such key in a manifest's file"),
        (lambda x: x["tables"][0].update(row_table={}), "m.json: tables[0]: there is no such key in a table"),
        (lambda x: x.update(kernels=7), "m.json: kernels: expected a list, got 7"),
        (lambda x: x.pop("kernels"), "Manifest needs the key kernels, which is missing"),
        (lambda x: x.pop("tables"), "Manifest needs the key tables, which is missing"),
        (lambda x: x.update(tables={}), "m.json: tables: expected a list, got {}"),
        (lambda x: x["tables"][0].update(table=[]), "m.json: tables[0].table: expected an object"),
    ],
)
def test_a_fault_is_told_with_its_place_in_the_file(edit, text):
    assert text in refusal(edit)


def test_a_kernel_of_no_operation_is_refused_where_it_is():
    text = refusal(lambda x: x["kernels"][FIRST].update(operation="bf16_nothing"))
    assert f"m.json: kernels[{FIRST}].operation: expected the tag of an operation, such as bf16_kk, got" in text
