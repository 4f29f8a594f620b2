import pytest

from aot.core.constraints import MAX_COUNT
from aot.core.errors import ShapeFileError
from aot.core.miss_log import FIRST_LINE, is_miss_log, load_miss_log, shape_set_text
from aot.core.shape_set import load_shape_set, parse_shape_set

LOG = f"""{FIRST_LINE}# a comment
dropped 7
grid bf16_kk 16 8 40x2 3x{MAX_COUNT}
unaligned fp16_mn 24 33 5x1
"""
ADVICE = "mend or remove the line, or have the wheel write a new log"


def launches(text):
    found = parse_shape_set(shape_set_text(text, "x.log"), "x.toml")
    counted = {}
    for model in found.models:
        for problem, count in zip(found.problems(model.operations[0]), model.counts, strict=True):
            counted[model.name.split()[0], problem.name] = count
    return counted, found.num_dropped


def test_a_log_becomes_a_shape_set():
    expected = {
        ("grid", "bf16_kk m3 n16 k8"): MAX_COUNT,
        ("grid", "bf16_kk m40 n16 k8"): 2,
        ("unaligned", "fp16_mn m5 n24 k33"): 1,
    }
    assert launches(LOG) == (expected, 7)
    models = parse_shape_set(shape_set_text(LOG, "x.log"), "x.toml").models
    assert [(model.name, model.description, model.weights[0].name) for model in models] == [
        ("grid bf16_kk n16 k8", "answered by the grid: this (n, k) has no ladder of m", "n16_k8"),
        (
            "unaligned fp16_mn n24 k33",
            "computed by the fallback: an address or a leading stride is no multiple of 16 bytes",
            "n24_k33",
        ),
    ]


def test_launches_in_a_layout_that_the_catalogue_does_not_have_count_as_dropped():
    log = f"{FIRST_LINE}grid bf16_kk_bias 16 8 3x2\nunaligned bf16_mn_bias 16 8 3x4 5x6\n"
    assert launches(log) == ({("grid", "bf16_kk_bias m3 n16 k8"): 2}, 10)


def test_logs_that_were_joined_add_up():
    counted, dropped = launches(LOG + LOG)
    assert (list(counted.values()), dropped) == ([MAX_COUNT, 4, 2], 14)
    with_more = f"{FIRST_LINE}dropped {MAX_COUNT}\ndropped 1\ngrid bf16_kk 16 8 1x1 1x1\n"
    assert launches(with_more) == ({("grid", "bf16_kk m1 n16 k8"): 2}, MAX_COUNT)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "expected WHY OPERATION N K MxLAUNCHES ..., got '\\n'"),
        ("grid bf16_kk 16 8", "expected WHY OPERATION N K MxLAUNCHES ..., got 'grid bf16_kk 16 8\\n'"),
        ("grid bf16_kk -16 8 1x1", "expected WHY OPERATION N K MxLAUNCHES ..., got 'grid bf16_kk -16 8 1x1\\n'"),
        ("grid bf16_kk 16 8 1x1 ", "expected WHY OPERATION N K MxLAUNCHES ..., got 'grid bf16_kk 16 8 1x1 \\n'"),
        ("\x85 1", "expected WHY OPERATION N K MxLAUNCHES ..., got '\\x85 1\\n'"),
        ("dropped -1", "expected WHY OPERATION N K MxLAUNCHES ..., got 'dropped -1\\n'"),
        ("dropped 0", "dropped is 0; expected 1 to 9223372036854775807"),
        ("odd bf16_kk 16 8 1x1", "the reason is 'odd'; expected one of grid, unaligned, strided"),
        ("grid fp8_kk 16 8 1x1", "the operation is 'fp8_kk'; did you mean fp32_kk or "),
        ("grid bf16_kk 0 8 1x1", "n is 0; expected 1 to 2147483647"),
        ("grid bf16_kk 16 2147483648 1x1", "k is 2147483648; expected 1 to 2147483647"),
        ("grid bf16_kk 16 8 0x1", "m is 0; expected 1 to 2147483647"),
        ("grid bf16_kk 16 8 1x0", "launches is 0; expected 1 to 9223372036854775807"),
        ("grid bf16_kk 16 8 1x9223372036854775808", "launches is 9223372036854775808; expected 1 to"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(line, why):
    with pytest.raises(ShapeFileError) as caught:
        shape_set_text(f"{LOG}{line}\n", "x.log")
    text = str(caught.value)
    assert text.startswith(f"x.log:6: {why}")
    assert text.endswith(f"; {ADVICE}")


def test_a_log_that_was_cut_is_refused():
    with pytest.raises(ShapeFileError, match=r"^x\.log:5: expected WHY .*, got 'unaligned fp16_mn 24 33 5x1'; "):
        shape_set_text(LOG[:-1], "x.log")


def test_what_is_no_log_is_refused():
    for text in ("", "version = 1\n", FIRST_LINE.replace("1", "2"), FIRST_LINE[:-1]):
        assert not is_miss_log(text)
        with pytest.raises(ShapeFileError, match=r"^x\.log:1: expected the first line '# aot_gemm misses 1', got '"):
            shape_set_text(text, "x.log")
    with pytest.raises(ShapeFileError, match=r"^x\.log: it counts no launch, so that there is nothing to tune for$"):
        shape_set_text(f"{FIRST_LINE}dropped 3\n", "x.log")


def test_a_log_is_loaded_as_the_shape_set_that_it_becomes(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(LOG)
    assert load_shape_set(str(path)) == parse_shape_set(load_miss_log(path), "x.toml")
    with pytest.raises(ShapeFileError, match=r"absent.log: No such file or directory; give a log that a wheel wrote"):
        load_miss_log(tmp_path / "absent.log")
