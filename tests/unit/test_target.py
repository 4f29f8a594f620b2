from importlib import resources

import pytest

from aot.errors import TargetError
from aot.target import load_target, parse_target, target_names

TEXT = resources.files("aot").joinpath("targets", "thor.toml").read_text(encoding="utf-8")


def test_shipped_targets():
    assert target_names() == ["h200", "thor"]
    thor, h200 = load_target("thor"), load_target("h200")
    assert (thor.arch, thor.compute_capability, thor.num_sms, thor.tmem_columns) == ("sm_110a", (11, 0), 20, 512)
    assert (h200.arch, h200.compute_capability, h200.num_sms, h200.tmem_columns) == ("sm_90a", (9, 0), 132, 0)
    assert {x.smem_bytes_per_block for x in (thor, h200)} == {227 * 1024}
    assert thor.platform_tag == "manylinux_2_28_aarch64"
    assert h200.platform_tag == "manylinux_2_28_x86_64"
    assert thor.clusters == ((1, 1), (2, 1), (1, 2))
    assert isinstance(thor.launch_us, float)


def test_an_unknown_target_is_answered_with_the_known():
    with pytest.raises(TargetError, match=r"no target 'orin'; there are: h200, thor; see `aot targets`"):
        load_target("orin")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_sms = 20", "num_sms = ", r"x\.toml: not TOML: Invalid value \(at line 7, "),
        ("num_sms = 20", "", "x.toml: missing or unknown keys: num_sms; a target has name, description,"),
        ("num_sms = 20", "num_sms = 20\nspeed = 1", "x.toml: missing or unknown keys: speed; a target has"),
        ("num_sms = 20", "num_sms = -1", "x.toml: `num_sms` is -1; expected a number above 0; mend the entry"),
        ("num_sms = 20", "num_sms = true", "x.toml: `num_sms` is True; expected int; mend the entry"),
        ("launch_us = 4.0", 'launch_us = "4"', "x.toml: `launch_us` is '4'; expected float; mend the entry"),
        ("integrated = true", "integrated = 1", "x.toml: `integrated` is 1; expected bool; mend the entry"),
        ("[11, 0]", "11", "x.toml: `compute_capability` is 11; expected tuple; mend the entry"),
    ],
)
def test_a_damaged_target_is_refused(old, new, message):
    assert old in TEXT
    with pytest.raises(TargetError, match=message):
        parse_target(TEXT.replace(old, new), "x.toml")


def test_whole_numbers_serve_as_rates():
    assert parse_target(TEXT.replace("launch_us = 4.0", "launch_us = 4"), "x").launch_us == 4.0
