from importlib import resources

import pytest

from aot.core.errors import TargetError
from aot.core.feature import Feature
from aot.core.operation import Operation
from aot.core.target import RATES, load_target, parse_target, target_names

TEXT = resources.files("aot").joinpath("targets", "thor.toml").read_text(encoding="utf-8")


def test_shipped_targets():
    assert target_names() == [
        "a100",
        "b200",
        "gb10",
        "h100",
        "h200",
        "l4",
        "orin",
        "rtx_pro_6000",
        "thor",
        "thor_6sm",
        "thor_t4000",
    ]
    thor, h200 = load_target("thor"), load_target("h200")
    assert (thor.arch, thor.compute_capability, thor.num_sms, thor.tmem_columns) == ("sm_110a", (11, 0), 20, 512)
    assert (h200.arch, h200.compute_capability, h200.num_sms, h200.tmem_columns) == ("sm_90a", (9, 0), 132, 0)
    assert {x.smem_bytes_per_block for x in (thor, h200)} == {227 * 1024}
    assert thor.platform_tag == "manylinux_2_28_aarch64"
    assert h200.platform_tag == "manylinux_2_28_x86_64"
    assert thor.clusters == ((1, 1), (2, 1), (1, 2))
    assert isinstance(thor.launch_us, float)
    assert thor.sources["l2_bytes"] == "published deviceQuery of a Jetson AGX Thor: 32 MiB."


def test_devices_of_one_architecture_are_told_apart_by_name_sms_or_bandwidth():
    targets = [load_target(name) for name in target_names()]
    known = {(x.device_names, x.num_sms, x.nominal_bandwidth_bytes_per_s) for x in targets}
    assert len(known) == len(targets)
    h100 = load_target("h100")
    assert (h100.device_names, h100.num_sms, h100.l2_bytes) == (("NVIDIA H100 80GB HBM3",), 132, 50 << 20)
    assert (h100.bandwidth_bytes_per_s, h100.flops_per_s) == (3.35e12, 9.89e14)
    assert all("not measured" in h100.sources[name] for name in ("bandwidth_bytes_per_s", "flops_per_s"))
    assert (load_target("thor_6sm").device_names, load_target("thor_6sm").num_sms) == (("NVIDIA Thor",), 6)
    assert (load_target("thor_t4000").device_names, load_target("thor_t4000").num_sms) == (("NVIDIA Thor",), 12)


def test_an_unknown_target_is_answered_with_the_known():
    with pytest.raises(
        TargetError,
        match=rf"no target 'xavier'; there are: {', '.join(target_names())}; see `aot targets`",
    ):
        load_target("xavier")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_sms = 20", "num_sms = ", r"x\.toml: not TOML: Invalid value \(at line 18, "),
        ("num_sms = 20", "", "x.toml: Target needs the key num_sms, which is missing; mend the entry"),
        (
            "num_sms = 20",
            "num_sms = 20\nspeed = 1",
            "x.toml: speed: there is no such key in Target; it has name, description,",
        ),
        (
            "num_sms = 20",
            "num_sms = -1",
            "x.toml: num_sms: expected a whole number from 1 to 9223372036854775807, got -1; mend",
        ),
        (
            "num_sms = 20",
            "num_sms = true",
            "x.toml: num_sms: expected a whole number from 1 to 9223372036854775807, got True; mend",
        ),
        (
            "launch_us = 4.0",
            'launch_us = "4"',
            "launch_us: expected a number above 0, at most 1e\\+24, got '4'; mend the entry",
        ),
        ("integrated = true", "integrated = 1", "integrated: expected true or false, got 1; mend the entry"),
        ("[11, 0]", "11", r"x\.toml: compute_capability: expected a list of 2 values, got 11; mend the entry"),
        ('glibc = "2.28"', 'glibc = "2.28; x"', "glibc: expected a version of glibc, such as 2.28, got '2.28; x'"),
        ("2.73e11", "inf", "bandwidth_bytes_per_s: expected a number above 0, at most 1e.24, got inf"),
        (
            'launch_us = "our',
            'launch = "our',
            "x.toml: the number launch_us has no source; expected an entry of that name",
        ),
        ("[sources]", '[sources]\nspeed = "a guess"', "x.toml: sources has speed, which is no entry of a target; mend"),
        ("2.73e11", "nan", "bandwidth_bytes_per_s: expected a number above 0, at most 1e.24, got nan"),
    ],
)
def test_a_damaged_target_is_refused(old, new, message):
    assert old in TEXT
    with pytest.raises(TargetError, match=message):
        parse_target(TEXT.replace(old, new), "x.toml")


def test_whole_numbers_serve_as_rates():
    assert parse_target(TEXT.replace("launch_us = 4.0", "launch_us = 4"), "x").launch_us == 4.0


@pytest.mark.parametrize("name", target_names())
def test_the_rates_of_narrower_types_are_multiples_of_bf16s(name):
    target = load_target(name)
    fp4, fp8 = target.fp4_flops_per_s or 4 * target.flops_per_s, target.fp8_flops_per_s or 2 * target.flops_per_s
    rates = (fp4, fp8, target.int8_flops_per_s, target.tf32_flops_per_s)
    assert [x / target.flops_per_s for x in rates] == pytest.approx([4, 2, 2, 0.5], rel=0.004)
    assert target.fp32_flops_per_s <= 0.251 * target.flops_per_s
    for operation in Operation:
        rate = getattr(target, RATES[operation.types.a])
        assert target.peak_flops_per_s(operation) == (target.flops_per_s if rate is None else rate)
    told = [target.sources[x] for x in RATES.values() if x != "flops_per_s"]
    assert all("ot measured" in x or x.startswith("none: ") for x in told)


def test_a_chip_without_block_scales_has_no_rate_of_fp4():
    without = {x for x in target_names() if load_target(x).fp4_flops_per_s is None}
    assert without == {"a100", "orin", "l4", "h100", "h200"}
    assert load_target("thor").peak_flops_per_s(Operation.NVFP4_BF16_KK) == 1.035e15
    assert load_target("thor").peak_flops_per_s(Operation.MXFP8_BF16_KK) == 5.16e14
    message = (
        "block_scale, whose rate is that of fp4, is a feature, or has a rate, without the other; expected both or n"
    )
    with pytest.raises(TargetError, match=message):
        parse_target(TEXT.replace(', "block_scale"', ""), "x.toml")


def test_a_chip_without_fp8_has_no_rate_of_it():
    without = {x for x in target_names() if load_target(x).fp8_flops_per_s is None}
    assert without == {"a100", "orin"}
    assert load_target("a100").peak_flops_per_s(Operation.E4M3_BF16_KK) == 3.12e14
    with pytest.raises(TargetError, match="fp8 is a feature, or has a rate, without the other; expected both or neit"):
        parse_target(TEXT.replace('"fp8", ', ""), "x.toml")


def test_targets_of_one_architecture_have_its_features():
    features = {}
    for target in map(load_target, target_names()):
        assert features.setdefault(target.arch, target.features) == target.features
        assert (Feature.CLUSTERS in target.features) == (target.compute_capability >= (9, 0))
    assert [x for x in Feature if x not in features["sm_90a"]] == [
        Feature.TCGEN05,
        Feature.BLOCK_SCALE,
        Feature.WARP_BLOCK_SCALE,
    ]
    assert load_target("l4").lacks((Feature.TMA, Feature.FP8, Feature.WGMMA)) == (Feature.TMA, Feature.WGMMA)


def test_a_device_may_hold_fewer_clusters_than_its_sms_would_give():
    h200, thor = load_target("h200"), load_target("thor")
    assert [h200.num_clusters(size) for size in (1, 2, 4, 8)] == [132, 66, 30, 15]
    assert [thor.num_clusters(size) for size in (1, 2)] == [20, 10]
