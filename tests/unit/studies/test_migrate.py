import gzip

import pytest

from aot.studies.migrate import migrate, migrated


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"family": "fallback"}', '{"family": "simt"}'),
        ('{"family":"sm90_overlap"}', '{"family":"sm90_prefetch_b"}'),
        ('"bf16_kk_sm90_bounded_64x16_c1x1"', '"bf16_kk_sm90_partial_tile_64x16_c1x1"'),
        ('"fallback_64x64_c1x1_direct"', '"simt_64x64_c1x1_direct"'),
        ('"rounding_mean": 0.1, "rounding_worst": 1', '"bucketing_loss_mean": 0.1, "bucketing_loss_worst": 1'),
        ('"fallback": 3', '"fallback": 3'),
        ('{"o": {"dtype": "float16", "layout": "mn"}, "version": 1}\n', '{"o": "fp16_mn", "version": 2}\n'),
        (
            '{"o": {\n "dtype_name": "bfloat16",\n "layout_name": "kk"\n}, "selection_version": 2}',
            '{"o": "bf16_kk", "selection_version": 3}',
        ),
    ],
)
def test_names_of_families_and_fields_are_those_of_today(old, new):
    assert migrated(old) == new
    assert migrated(new) == new


def test_a_file_is_renamed_in_place_and_one_of_today_keeps_its_bytes(tmp_path):
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"family": "sm90_bounded"}'))
    migrate(path)
    assert gzip.decompress(path.read_bytes()) == b'{"family": "sm90_partial_tile"}'
    path.write_bytes(gzip.compress(b'{"family": "simt"}', mtime=7))
    before = path.read_bytes()
    migrate(path)
    assert path.read_bytes() == before
