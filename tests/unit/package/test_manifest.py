import json
from dataclasses import replace

import pytest

from aot.core.errors import ManifestError
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.package.manifest import from_json, to_json
from tests.golden.manifest import golden_manifest, with_kernels

GOLDEN = golden_manifest()
TEXT = to_json(GOLDEN)


def test_round_trip():
    assert from_json(TEXT) == GOLDEN
    assert to_json(from_json(TEXT)) == TEXT
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
        (("manifest_version",), 0, "m.json: manifest_version: expected 4, got 0"),
        (("manifest_version",), None, "m.json: manifest_version: expected 4, got None"),
        (("arch",), 90, "m.json: arch: expected an architecture, such as sm_90a, got 90"),
        (
            ("conditions", 0, "num_sms"),
            "132",
            "m.json: conditions[0].num_sms: expected a whole number from 1 to 9223372036854775807, got '132'",
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
            f"m.json: kernels[2].operation: expected one of {', '.join(Operation)}, got 'f8'",
        ),
        (
            ("table", "sections", 0, "ladders", 0, "rows", 2, "kernel"),
            9,
            "m.json: bf16_kk: ladder n 4096 k 4096, row 2: its kernel is 9; there are 5 kernels",
        ),
        (("table", "sections", 1, "fallback"), 5, "m.json: bf16_kn: the fallback is kernel 5; there are 5 kernels"),
        (("table", "sections", 0, "grid", "columns"), [], "m.json: bf16_kk: the grid has 0 columns, its edges give 4"),
        (
            ("table", "sections", 0, "ladders", 0, "m_edges"),
            [1],
            "m.json: bf16_kk: ladder n 4096 k 4096: 3 rows for 1 edges in m",
        ),
        (
            ("table", "sections", 0, "fallback"),
            2,
            "m.json: bf16_kk: the fallback 2 must take both strides of its operands, and all shapes",
        ),
        (("bigger_tiles",), {"x": ["why"]}, "m.json: bigger_tiles names x, which is no kernel of the manifest"),
        (("manifest_version",), True, "m.json: manifest_version: expected 4, got True"),
        (("package",), "../x", "m.json: package: expected a distribution's name, such as aot-gemm, got '../x'"),
        (("package",), "x" * 300, "m.json: package: expected a distribution's name, such as aot-gemm, got 'xxxx"),
        (("package",), "class", "m.json: the package class would be imported as class, a word of Python's"),
        (
            ("version",),
            '1"; system("x")',
            "m.json: version: expected a version, such as 0.1.0+h200, got '1\"; system(",
        ),
        (("provenance",), 'a"\nb', "m.json: provenance: expected one of measured, predicted, got 'a\"\\nb'"),
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
            ("table", "sections", 0, "grid", "columns", 0, "kernels", 1),
            1,
            "m.json: bf16_kk: grid, column 0: its kernel 1 takes only multiples of 256 in m and 256 in n; it must",
        ),
        (
            ("table", "sections", 0, "grid", "columns", 2, "kernels", 0),
            4,
            "m.json: bf16_kk: grid, column 2: its kernel 4 is for bf16_kn",
        ),
        (
            ("table", "sections", 0, "grid", "columns", 2, "m_edges", 1),
            16,
            "m.json: bf16_kk: grid, column 2: its edges in m must ascend",
        ),
        (
            ("table", "sections", 0, "grid", "columns", 3, "m_edges", 1),
            2**20,
            "m.json: table.sections[0].grid.columns[3].m_edges[1]: expected a whole number from 1 to 1048575, got 1",
        ),
        (("table", "sections"), [], "m.json: 5 kernels in 0 sections; expected at least one of each"),
        (("heldout", 0, "worst"), "2%", "m.json: heldout[0].worst: expected a number from -1 to 1e+12, got '2%'"),
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


@pytest.mark.parametrize("text", ["", "{", TEXT[:-3]])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ManifestError, match=r"m\.json: not JSON: .* line \d+ column \d+"):
        from_json(text, "m.json")


@pytest.mark.parametrize("text", ["[]", "1", "null"])
def test_other_json_is_refused(text):
    with pytest.raises(ManifestError, match=r"m\.json: manifest_version: expected 4, got None"):
        from_json(text, "m.json")


def test_a_missing_key_is_named():
    document = json.loads(TEXT)
    del document["record"]
    with pytest.raises(ManifestError, match=r"m\.json: Manifest needs the key record, which is missing"):
        from_json(json.dumps(document), "m.json")


def test_an_inconsistent_manifest_is_not_written():
    with pytest.raises(ManifestError, match="bf16_kk: the fallback 0 must take both strides"):
        to_json(with_kernels(GOLDEN, num_strides=1))
    with pytest.raises(ManifestError, match="two kernels have one name"):
        to_json(replace(GOLDEN, kernels=(*GOLDEN.kernels, GOLDEN.kernels[0])))
