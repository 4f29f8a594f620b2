"""What docs/weights.md says of packed weights, and which kernels the bench's library has."""

from pathlib import Path

from aot.core.weight_format import (
    BLOCK_K,
    FORMATS,
    INT4_G128,
    INT8,
    MXFP4,
    NVFP4,
    TILE_ROWS,
    PackedLayout,
    format_named,
)
from aot.families._weight_only_tile import Tile
from research.bench.weight_only import WEIGHTS
from research.bench.weight_only_library import SMEM_BYTES, variants

PAGE = Path(__file__).parents[3] / "docs" / "weights.md"
H200_BYTES_PER_US = 4.3e6


def rows():
    return [
        [x.strip() for x in line.strip("|").split("|")] for line in PAGE.read_text("utf-8").splitlines() if "|" in line
    ]


def test_the_page_says_how_many_bits_a_packed_weight_has():
    said = {}
    for row in rows():
        names = [x.strip("`") for x in row[0].split(", ")]
        if len(row) == 5 and set(names) <= {x.name for x in FORMATS}:
            bits = row[4].split(", ")
            said = dict(zip(names, map(float, bits if len(bits) > 1 else bits * len(names)), strict=True)) | said
    bits = {x.name: 8 * PackedLayout(x).block_bytes / (TILE_ROWS * BLOCK_K) for x in FORMATS}
    assert {x: y for x, y in said.items() if x in bits} == bits


def predicted(form, m, n, k):
    tiles, num_bytes = PackedLayout(form).shape(n, k)
    factors = 0 if form.group else 4 * n
    return (tiles * num_bytes + factors + 2 * m * (n + k)) / H200_BYTES_PER_US


def test_the_page_s_times_are_bytes_at_the_rate_of_an_h200():
    said = {row[0]: row[1:] for row in rows() if row[0] in {f"{n}, {k}" for n, k in WEIGHTS}}
    expected = {}
    for n, k in WEIGHTS:
        of_formats = [
            ", ".join(f"{predicted(form, m, n, k):.1f}" for m in (1, 4, 16)) for form in (INT4_G128, NVFP4, MXFP4, INT8)
        ]
        expected[f"{n}, {k}"] = [*of_formats, f"{2 * (n * k + n + k) / H200_BYTES_PER_US:.1f}"]
    assert said == expected


def test_every_kernel_of_the_library_fits_and_has_a_name_of_its_own():
    found = variants()
    assert len({x.name for x in found}) == len(found)
    for x in found:
        tile = Tile(format_named(x.form), x.tiles, x.columns, x.warps, x.stages, x.blocks)
        assert tile.smem_bytes <= SMEM_BYTES
        assert tile.blocks_per_sm * (tile.smem_bytes + 1024) <= SMEM_BYTES + 1024
