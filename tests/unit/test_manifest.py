import json
from dataclasses import replace

import pytest

from aot.errors import ManifestError
from aot.manifest import decode_kernel, from_json, read_manifest, to_json
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
    assert [kernel.reads_b_early for kernel in GOLDEN.kernels] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("manifest_version",), 0, "m.json: version 0, expected 2; build it again with this aot"),
        (("manifest_version",), None, "m.json: version None, expected 2; build it again with this aot"),
        (("arch",), 90, "m.json.arch: expected str, got 90"),
        (("conditions", 0, "num_sms"), "132", "m.json.conditions[0].num_sms: expected int, got '132'"),
        (("toolchain", "ptxas"), 13, "m.json.toolchain.ptxas: expected str, got 13"),
        (("kernels", 1, "speed"), 1, "m.json.kernels[1]: missing or unknown keys of ManifestKernel: speed"),
        (("kernels", 2, "candidate", "tile_m"), 1.5, "m.json.kernels[2].candidate.tile_m: expected int, got 1.5"),
        (("kernels", 2, "operation", "dtype_name"), "f8", "m.json.kernels[2].operation: 'f8' is not a valid Dtype"),
        (("table", "sections", 0, "ladders", 0, "rows", 2, "kernel"), 9, "bf16_kk: the table names kernel 9 of 5"),
        (("table", "sections", 1, "fallback"), 5, "bf16_kn: the table names kernel 5 of 5"),
        (("table", "sections", 0, "grid", "cells"), [], "bf16_kk: the grid has 0 cells, its edges give 8"),
        (("table", "sections", 0, "ladders", 0, "m_edges"), [1], "bf16_kk: a ladder's rows and edges differ in number"),
        (("table", "sections", 0, "fallback"), 2, "bf16_kk: the fallback must take both strides of its operands"),
        (("bigger_tiles",), {"x": ["why"]}, "bigger_tiles names x, which is no kernel of the manifest"),
        (("heldout", 0, "worst"), "2%", "m.json.heldout[0].worst: expected float, got '2%'"),
        (("kernels", 0, "name"), GOLDEN.kernels[1].name, f"two kernels have one name: {[GOLDEN.kernels[1].name] * 2}"),
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
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", "{", TEXT[:-3]])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ManifestError, match=r"m\.json: not JSON: .* line \d+ column \d+"):
        from_json(text, "m.json")


@pytest.mark.parametrize("text", ["[]", "1", "null"])
def test_other_json_is_refused(text):
    with pytest.raises(ManifestError, match=r"m\.json: version None, expected 2"):
        from_json(text, "m.json")


def test_a_missing_key_is_named():
    document = json.loads(TEXT)
    del document["record"]
    with pytest.raises(ManifestError, match=r"m\.json: missing or unknown keys of Manifest: record"):
        from_json(json.dumps(document), "m.json")


def test_an_inconsistent_manifest_is_not_written():
    with pytest.raises(ManifestError, match="bf16_kk: the fallback must take both strides"):
        to_json(with_kernels(GOLDEN, num_strides=1))
    with pytest.raises(ManifestError, match="two kernels have one name"):
        to_json(replace(GOLDEN, kernels=(*GOLDEN.kernels, GOLDEN.kernels[0])))


def test_reads_a_file(tmp_path):
    (tmp_path / "m.json").write_text(TEXT)
    assert read_manifest(tmp_path / "m.json") == GOLDEN
    with pytest.raises(ManifestError, match=r"absent\.json: No such file or directory; give the path of a manifest"):
        read_manifest(tmp_path / "absent.json")


def test_one_kernel_can_be_read():
    value = json.loads(TEXT)["kernels"][3]
    assert decode_kernel(value, "x") == GOLDEN.kernels[3]
    with pytest.raises(ManifestError, match=r"x\.registers: expected int, got None"):
        decode_kernel({**value, "registers": None}, "x")
