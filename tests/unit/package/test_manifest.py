import json
from dataclasses import replace

import pytest

from aot.core.errors import ManifestError
from aot.core.signature import Argument
from aot.package.manifest import WheelTable, from_json, to_json
from aot.package.packed_table import NO_GRID
from tests.golden.manifest import golden_manifest, round_trip, with_kernels

GOLDEN = golden_manifest()
TEXT = to_json(GOLDEN)


def test_round_trip():
    assert round_trip(GOLDEN) == GOLDEN
    assert to_json(round_trip(GOLDEN)) == TEXT
    assert TEXT.endswith("}\n")


def test_names_that_follow_from_others():
    assert (GOLDEN.package, GOLDEN.module) == ("aot-gemm", "aot_gemm")
    assert GOLDEN.multiples == ((1, 1), (256, 256), (1, 1), (1, 1), (1, 1))
    assert [kernel.key.name for kernel in GOLDEN.kernels] == [kernel.name for kernel in GOLDEN.kernels]
    assert [Argument.PREFETCH_B in x.signature for x in GOLDEN.kernels] == [
        False,
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("manifest_version",), 0, "m.json: manifest_version: expected 12, got 0"),
        (("manifest_version",), None, "m.json: manifest_version: expected 12, got None"),
        (("arch",), 90, "m.json: arch: expected an architecture, such as sm_90a, got 90"),
        (
            ("tables", 0, "conditions", 0, "num_sms"),
            "132",
            "m.json: tables[0].conditions[0].num_sms: expected a whole number from 1 to 9223372036854775807, got '132'",
        ),
        (("toolchain", "ptxas"), 13, "m.json: toolchain.ptxas: expected a version, such as 4.8.1, got 13"),
        (
            ("kernels", 1, "speed"),
            1,
            "m.json: kernels[1].speed: there is no such key in Kernel; it has name, operation,",
        ),
        (
            ("kernels", 2, "candidate", "tile_m"),
            1.5,
            "m.json: kernels[2].candidate.tile_m: expected a whole number from 1 to 4096, got 1.5",
        ),
        (
            ("kernels", 3, "signature"),
            ["a", "b", "d", "stream"],
            "m.json: the kernel bf16_kk_sm90_prefetch_b_64x32_c1x1_splitk_serial4 takes a, b, d, stream; expected a, b",
        ),
        (
            ("kernels", 2, "operation"),
            "f8",
            "m.json: kernels[2].operation: expected the tag of an operation, such as bf16_kk, got",
        ),
        (
            ("tables", 0, "table", "sections", 0, "kernels", 2),
            9,
            "m.json: the table of h200: bf16_kk: ladder n 4096 k 4096, row 1: its runner-up is 9; there are 5 kernels",
        ),
        (
            ("tables", 0, "table", "sections", 1, "fallback"),
            5,
            "m.json: the table of h200: bf16_kn: the fallback is kernel 5; there are 5 kernels",
        ),
        (
            ("tables", 0, "table", "sections", 0, "ladders", "gaps", 0),
            "#",
            "m.json: the table of h200: bf16_kk: ladder n 4096 k 4096: 3 rows for 1 edges in m",
        ),
        (
            ("tables", 0, "table", "sections", 0, "fallback"),
            2,
            "m.json: the table of h200: bf16_kk: the fallback 2 must take both strides of its operands, and all shapes",
        ),
        (
            ("tables", 0, "bigger_tiles"),
            {"x": ["why"]},
            "m.json: the table of h200: bigger_tiles names x, no kernel of the manifest",
        ),
        (("manifest_version",), True, "m.json: manifest_version: expected 12, got True"),
        (("package",), "../x", "m.json: package: expected a distribution's name, such as aot-gemm, got '../x'"),
        (("package",), "x" * 300, "m.json: package: expected a distribution's name, such as aot-gemm, got 'xxxx"),
        (("package",), "class", "m.json: the package class would be imported as class, a word of Python's"),
        (
            ("version",),
            '1"; system("x")',
            "m.json: version: expected a version, such as 0.1.0+h200, got '1\"; system(",
        ),
        (
            ("tables", 0, "provenance"),
            'a"\nb',
            "m.json: tables[0].provenance: expected one of measured, predicted, got 'a\"\\nb'",
        ),
        (("arch",), "sm_x", "m.json: arch: expected an architecture, such as sm_90a, got 'sm_x'"),
        (
            ("platform_tag",),
            "any",
            "m.json: platform_tag: expected a platform, such as manylinux_2_28_x86_64, got 'any'",
        ),
        (
            ("kernels", 0, "name"),
            "bf16_kk_x",
            "m.json: the kernel bf16_kk_x is of bf16_kk_simt_16x16_c1x1_direct; th",
        ),
        (
            ("kernels", 0, "entry_symbol"),
            "f(); x",
            "m.json: kernels[0].entry_symbol: expected a C identifier, got 'f(); x",
        ),
        (("kernels", 0, "entry_symbol"), GOLDEN.kernels[1].load_symbol, "m.json: two entries have the symbol _mlir_"),
        (
            ("kernels", 0, "workspace", "mode"),
            "x",
            "m.json: kernels[0].workspace.mode: expected one of none, serial, pa",
        ),
        (
            ("kernels", 0, "num_strides"),
            3,
            "m.json: kernels[0].num_strides: expected a whole number from 1 to 2, got 3",
        ),
        (
            ("tables", 0, "table", "sections", 1, "grid"),
            2,
            "m.json: tables[0].table.sections[1].grid: expected a SHA-256 of 64 hexadecimal digits, got 2",
        ),
        (
            ("tables", 0, "table", "grids"),
            [],
            "m.json: tables[0].table.grids: there is no such key in PackedTable; it has sections",
        ),
        (
            ("tables", 0, "table", "sections", 0, "kernels"),
            [2, 3],
            "m.json: tables[0].table.sections[0].ladders[0]: it has place 2 of 2 kernels",
        ),
        (
            ("tables", 0, "table", "sections", 0, "kernels", 1),
            4,
            "m.json: the table of h200: bf16_kk: ladder n 4096 k 4096, row 0: its kernel 4 is for bf16_kn",
        ),
        (
            ("tables", 0, "table", "sections", 0, "ladders", "k"),
            [4096],
            "m.json: tables[0].table.sections[0]: it has 1 k for 2 n of ladders",
        ),
        (
            ("tables", 0, "table", "sections", 0, "ladders", "times", 1),
            "!!",
            "m.json: tables[0].table.sections[0].ladders[1]: it has 2 times for 1 kernels of rows",
        ),
        (
            ("tables", 0, "table", "sections", 0, "ladders", "times", 1),
            "#",
            "m.json: tables[0].table.sections[0].ladders[1][0]: expected a number from 0 to 1e+12, got -0.001",
        ),
        (
            ("tables", 0, "table", "sections", 0, "ladders", "provenances", 1),
            "$",
            "m.json: tables[0].table.sections[0].ladders[1]: it has place 2 of 2 provenances",
        ),
        (
            ("tables", 0, "table", "sections"),
            [],
            "m.json: the table of h200: 5 kernels in 0 sections; expected at least one of each",
        ),
        (
            ("tables", 0, "heldout", 0, "worst"),
            "2%",
            "m.json: tables[0].heldout[0].worst: expected a number from -1 to 1e+12, got '2%'",
        ),
        (
            ("kernels", 0, "name"),
            GOLDEN.kernels[1].name,
            f"m.json: two kernels have one name: {[GOLDEN.kernels[1].name] * 2}",
        ),
    ],
)
def test_damage_is_named_with_its_place(place, value, message):
    document = json.loads(TEXT)
    *path, last = place
    inner = document
    for part in path:
        inner = inner[part]
    inner[last] = value
    with pytest.raises(ManifestError) as caught:
        from_json(json.dumps(document), "m.json")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("; build it again with this aot")


SPLIT = GOLDEN.kernels[3].name
ANOTHER = {**vars(GOLDEN.tables[0]), "target": "h100", "device_names": ("NVIDIA H100 80GB HBM3",)}


def small(num_sms, provenance):
    """Give the golden table as of a device with other SMs."""

    def changed(row):
        return replace(row, provenance=provenance)

    table = GOLDEN.tables[0].table
    sections = tuple(
        replace(section, ladders=tuple(replace(x, rows=tuple(map(changed, x.rows))) for x in section.ladders))
        for section in table.sections
    )
    return replace(GOLDEN.tables[0], num_sms=num_sms, table=replace(table, sections=sections))


def with_tables(*tables, **changes):
    return replace(GOLDEN, tables=tables, **changes)


def refused(manifest):
    with pytest.raises(ManifestError) as caught:
        to_json(manifest)
    return str(caught.value).removesuffix("; build it again with this aot").removeprefix("manifest: ")


def test_a_manifest_has_a_table_for_each_device():
    two = with_tables(WheelTable(**ANOTHER), GOLDEN.tables[0])
    assert round_trip(two) == two
    assert refused(with_tables()) == "there are 0 tables; expected 1 to 8"
    assert refused(with_tables(*GOLDEN.tables * 9)) == "there are 9 tables; expected 1 to 8"
    assert refused(with_tables(*GOLDEN.tables * 2)) == "two tables are of the target h200"
    same = replace(GOLDEN.tables[0], target="h100")
    assert refused(with_tables(*GOLDEN.tables, same)) == "two tables are of the device NVIDIA H200 with 132 SMs"
    nameless = replace(GOLDEN.tables[0], device_names=())
    assert refused(with_tables(nameless)).startswith("the table of h200: it names no device; expected the name")
    rateless = replace(GOLDEN.tables[0], peak_flops_per_s={"fp16": 1.0})
    assert refused(with_tables(rateless)) == (
        "the table of h200: peak_flops_per_s is of fp16; the kernels compute bf16"
    )
    assert refused(replace(GOLDEN, element_bits={})) == "element_bits are not those of the kernels' operations"


def test_a_kernel_that_waits_is_never_built_for_more_sms_than_its_device_has():
    assert GOLDEN.kernels[3].resident_sms == 132
    assert [x.resident_sms for x in GOLDEN.kernels if x.name != SPLIT] == [0] * 4
    assert to_json(with_tables(small(132, "predicted")))
    # More SMs than it was built for: it leaves some idle, and is right.
    assert to_json(with_tables(small(144, "predicted")))
    assert refused(with_tables(small(114, "predicted"))) == (
        f"the table of h200: bf16_kk: {SPLIT} waits for its own CTAs, and was built for 132 SMs; h200 has 114"
    )
    # Any other launches more CTAs than the device holds at once, and is right, too.
    few = small(114, "predicted")
    kk = few.table.sections[0]
    ladders = tuple(replace(x, rows=tuple(replace(y, kernel=2, general=2) for y in x.rows)) for x in kk.ladders)
    columns = tuple(replace(x, kernels=(2,) * len(x.kernels)) for x in kk.grid.columns)
    plain = replace(kk, ladders=ladders, grid=replace(kk.grid, columns=columns))
    assert to_json(with_tables(replace(few, table=replace(few.table, sections=(plain, *few.table.sections[1:])))))
    # In the grid, too.
    waiting = replace(plain, grid=kk.grid)
    assert SPLIT in refused(
        with_tables(replace(few, table=replace(few.table, sections=(waiting, *few.table.sections[1:]))))
    )


def test_a_kernel_says_how_many_sms_it_was_built_for():
    silent = replace(GOLDEN, kernels=tuple(replace(x, num_sms=None) for x in GOLDEN.kernels))
    assert refused(silent) == (
        f"the kernel {GOLDEN.kernels[0].name} does not say how many SMs it was built for; compile it again"
    )


@pytest.mark.parametrize("num_sms", [66, 144])
def test_a_measured_time_is_of_a_kernel_built_for_the_device(num_sms):
    kernels = tuple(replace(x, num_sms=num_sms) for x in GOLDEN.kernels)
    assert refused(replace(GOLDEN, kernels=kernels)).startswith(
        "the table of h200: bf16_kk: "
        + (f"a time of {SPLIT} is measured on 132 SMs" if num_sms < 132 else f"{SPLIT} waits for its own CTAs")
    )


@pytest.mark.parametrize("text", ["", "{", TEXT[:-3]])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ManifestError, match=r"m\.json: not JSON: .* line \d+ column \d+"):
        from_json(text, "m.json")


@pytest.mark.parametrize("text", ["[]", "1", "null"])
def test_other_json_is_refused(text):
    with pytest.raises(ManifestError, match=r"m\.json: manifest_version: expected 12, got None"):
        from_json(text, "m.json")


def test_a_missing_key_is_named():
    document = json.loads(TEXT)
    del document["tables"][0]["record"]
    with pytest.raises(ManifestError, match=r"m\.json: tables\[0\]: WheelTable needs the key record, which is missing"):
        from_json(json.dumps(document), "m.json")


GRID = GOLDEN.tables[0].table.sections[0].grid


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (NO_GRID, "grid: its edges in n must ascend from 1 or more, and not be empty"),
        (replace(GRID, n_edges=(1024,)), "the grid has 4 columns, its edges give 2"),
        (
            replace(GRID, columns=(replace(GRID.columns[0], kernels=(2, 1)), *GRID.columns[1:])),
            "grid, column 0: its kernel 1 takes only multiples of 256 in m and 256 in n; it must take all aligned",
        ),
        (
            replace(GRID, columns=(replace(GRID.columns[0], kernels=(2, 4)), *GRID.columns[1:])),
            "grid, column 0: its kernel 4 is for bf16_kn",
        ),
        (
            replace(GRID, columns=(*GRID.columns[:3], replace(GRID.columns[3], m_edges=(16, 16)))),
            "grid, column 3: its edges in m must ascend from 1 or more, and not be empty",
        ),
        (
            replace(GRID, columns=(replace(GRID.columns[0], tile_orders=(1,)), *GRID.columns[1:])),
            "grid, column 0: 1 orders of tiles for 2 kernels",
        ),
    ],
)
def test_a_grid_which_the_file_does_not_have_is_checked_where_it_is_written(grid, message):
    table = GOLDEN.tables[0].table
    sections = (replace(table.sections[0], grid=grid), *table.sections[1:])
    changed = with_tables(replace(GOLDEN.tables[0], table=replace(table, sections=sections)))
    assert refused(changed).startswith(f"the table of h200: bf16_kk: {message}")


def test_an_inconsistent_manifest_is_not_written():
    with pytest.raises(ManifestError, match="bf16_kk: the fallback 0 must take both strides"):
        to_json(with_kernels(GOLDEN, num_strides=1))
    with pytest.raises(ManifestError, match="two kernels have one name"):
        to_json(replace(GOLDEN, kernels=(*GOLDEN.kernels, GOLDEN.kernels[0])))


def test_every_kernel_has_a_state_and_what_is_called_executed_was():
    kernels = (replace(GOLDEN.kernels[0], state=None), *GOLDEN.kernels[1:])
    with pytest.raises(ManifestError) as caught:
        to_json(replace(GOLDEN, kernels=kernels))
    assert str(caught.value) == (
        f"manifest: the kernel {kernels[0].name} has no state; expected one of run, executed, compiled; "
        "build it again with this aot"
    )
    nothing = f"the kernel {GOLDEN.kernels[3].name} is executed, and no execution says so"
    with pytest.raises(ManifestError, match=nothing):
        to_json(replace(GOLDEN, executions=()))
    for change in ({"num_findings": 1}, {"worst_error": 1.5}):
        with pytest.raises(ManifestError, match=nothing):
            to_json(replace(GOLDEN, executions=(replace(GOLDEN.executions[0], **change),)))
    for change in ({"ptx_sha256": "1" * 64}, {"kernel": "other"}):
        found = replace(GOLDEN.executions[0], **change)
        with pytest.raises(ManifestError, match=f"an execution is of {found.kernel} with a PTX that no kernel of the"):
            to_json(replace(GOLDEN, executions=(found,)))
