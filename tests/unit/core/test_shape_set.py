import re
import time

import pytest

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.errors import ShapeFileError
from aot.core.operation import ELEMENTS, Layout, Operation
from aot.core.shape_set import Weight, load_shape_set, parse_shape_set, shape_set_names
from tests.unit.twins import BF16

TEXT = """\
# version = 0
version = 1
dtypes = ["bfloat16", "float16"]
layouts = ["kk"]
m = [
  1, # one
  10,
]

[[model]]
name = "first"
weights = [
  { name = "out", n = 10, k = 20 },
  { name = "in", n = 30, k = 20 },
]

[[model]]
name = "second"
m = [10, 30]
[[model.weights]]
name = "m = 10"
n = 10
k = 20
"""


def test_reads_models_and_their_ladders():
    found = parse_shape_set(TEXT, "x.toml")
    assert [(model.name, model.m) for model in found.models] == [("first", (1, 10)), ("second", (10, 30))]
    assert found.sizes == [(10, 20, 1), (10, 20, 10), (10, 20, 30), (30, 20, 1), (30, 20, 10)]
    assert [problem.name for problem in found.problems(BF16)][2:4] == ["bf16_kk m30 n10 k20", "bf16_kk m1 n30 k20"]
    assert [operation.tag for operation in found.operations] == ["bf16_kk", "fp16_kk"]


def test_a_weight_may_meet_rows_and_groups_of_its_own():
    own = TEXT.replace('{ name = "in", n = 30, k = 20 }', '{ name = "in", n = 30, k = 20, m = [7], num_groups = [4] }')
    first, other, second = parse_shape_set(own, "x.toml").models
    assert (first.weights, first.m, first.num_groups) == ((Weight("out", 10, 20),), (1, 10), (1,))
    assert (other.weights, other.m, other.num_groups) == ((Weight("in", 30, 20),), (7,), (4,))
    assert (other.name, second.name) == ("first", "second")
    for wrong, message in (
        ("m = [7, 3]", "weights[1].m[1]: expected ascending numbers"),
        ("num_groups = []", "weights[1].num_groups: expected one or more"),
    ):
        with pytest.raises(ShapeFileError, match=re.escape(f"x.toml: model[0].{message}")):
            parse_shape_set(own.replace("m = [7], num_groups = [4]", wrong), "x.toml")


EXTENT = "a whole number from 1 to 2147483647"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "version: expected 1, got 2"),
        ("version = 1\n", "", "version: expected 1, got None"),
        ("version = 1", "version = 1\nspeed = 1", "speed: there is no such key in ShapeSet; it has version, model"),
        ('"float16"]', '"float8"]', "dtypes[1]: expected one of bfloat16, float16, float32, tf32, "),
        ('"float16"]', '"float32"]', "dtypes[1]: expected one of bfloat16, float16, got 'float32'"),
        ('"float16"]', '"bfloat16"]', "dtypes[1]: expected each once, this is there before"),
        ('["kk"]', '"kk"', "layouts: expected a list, got 'kk'"),
        ('["kk"]', "[]", "layouts: expected one or more"),
        ("  10,\n", "  0,\n", f"m[1]: expected {EXTENT}, got 0"),
        ("  10,\n", "  1.5,\n", f"m[1]: expected {EXTENT}, got 1.5"),
        ("  10,\n", "  true,\n", f"m[1]: expected {EXTENT}, got True"),
        ("  10,\n", "  1,\n", "m[1]: expected ascending numbers, each once, got 1 after 1"),
        ("m = [10, 30]", "m = [30, 10]", "model[1].m[1]: expected ascending numbers, each once, got 10 after 30"),
        ("m = [10, 30]", "m = [0, 30]", f"model[1].m[0]: expected {EXTENT}, got 0"),
        ("m = [10, 30]", "m = []", "model[1].m: expected one or more"),
        ("m = [10, 30]", "M = [10, 30]", "model[1].M: there is no such key in Model; it has name, "),
        ("m = [10, 30]", "description = 3", "model[1].description: expected one line of printable text of at most"),
        ('name = "second"', 'name = ""', "model[1].name: expected one line of 1 to 200 printable characters, got"),
        ('name = "second"\n', "", "model[1]: Model needs the key name, which is missing"),
        ("n = 30", "n = 3000000000", f"model[0].weights[1].n: expected {EXTENT}, got 3000000000"),
        ('"in", n = 30, ', '"in", ', "model[0].weights[1]: Weight needs the key n, which is missing"),
        ("n = 30", "n = 30, q = 1", "model[0].weights[1].q: there is no such key in Weight; it has name, n, k"),
        ("n = 10\nk", 'n = "10"\nk', f"model[1].weights[0].n: expected {EXTENT}, got '10'"),
        ("n = 10\nk = 20", "n = 10", "model[1].weights[0]: Weight needs the key k, which is missing"),
        ('{ name = "out", n = 10, k = 20 }', "7", "model[0].weights[0]: expected an object of Weight, got 7"),
        ('"m = 10"', '"\\u001b[2J"', "model[1].weights[0].name: expected one line of 1 to 200 printable"),
        ("version = 1\nd", "version = true\nd", "version: expected 1, got True"),
        ("m = [10, 30]", "m = [10, 1979-05-27]", f"model[1].m[1]: expected {EXTENT}, got datetime.date(1979, 5"),
        ("m = [10, 30]", f"m = [0x{'f' * 9000}]", f"model[1].m[0]: expected {EXTENT}, got an integer of 36"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_place(old, new, message):
    assert TEXT.count(old) == 1
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(TEXT.replace(old, new), "x.toml")
    assert str(caught.value).startswith(f"x.toml: {message}")


MISSES = """\
version = 1
dropped = 7

[[model]]
name = "grid bf16_kk n16 k8"
dtypes = ["bfloat16"]
layouts = ["kk"]
weights = [{ name = "n16_k8", n = 16, k = 8 }]
m = [3, 40]
counts = [2, 9223372036854775807]

[[model]]
name = "grid fp16_kn n24 k8"
dtypes = ["float16"]
layouts = ["kn"]
weights = [{ name = "n24_k8", n = 24, k = 8 }]
m = [5]
counts = [1]
"""


def test_a_miss_log_counts_launches_of_each_operation():
    found = parse_shape_set(MISSES, "x.toml")
    assert [operation.tag for operation in found.operations] == ["bf16_kk", "fp16_kn"]
    assert found.num_dropped == 7
    assert [problem.name for problem in found.problems(BF16)] == ["bf16_kk m3 n16 k8", "bf16_kk m40 n16 k8"]
    assert found.problems(Operation.of(ElementType.BFLOAT16, Layout.KN)) == []
    assert {x.name: count for x, count in found.launches.items()} == {
        "bf16_kk m3 n16 k8": 2,
        "bf16_kk m40 n16 k8": 2**63 - 1,
        "fp16_kn m5 n24 k8": 1,
    }
    assert parse_shape_set(TEXT, "").launches == {}


def test_what_is_tuned_follows_from_what_is_asked_and_what_there_is():
    def tags(text, dtypes=(), layouts=()):
        return [operation.tag for operation in parse_shape_set(text, "").tuned(dtypes, layouts)]

    assert (tags(TEXT), tags(MISSES)) == (["bf16_kk"], ["bf16_kk", "fp16_kn"])
    assert tags(TEXT, ELEMENTS, (Layout.MN,)) == ["bf16_mn", "fp16_mn"]
    assert tags(MISSES, (ElementType.FLOAT16,), (Layout.KK, Layout.KN)) == ["fp16_kn"]
    with pytest.raises(ShapeFileError, match=r"no problem of fp16_kk; it has bf16_kk, fp16_kn; give --dtype, --lay"):
        tags(MISSES, (ElementType.FLOAT16,))


def test_a_model_may_have_what_the_set_has_not():
    text = TEXT.replace('name = "second"', 'name = "second"\nlayouts = ["mn"]')
    found = parse_shape_set(text, "x.toml")
    assert [operation.tag for operation in found.operations] == ["bf16_kk", "bf16_mn", "fp16_kk", "fp16_mn"]
    assert [len(found.problems(Operation.of(ElementType.FLOAT16, Layout(x)))) for x in ("kk", "mn")] == [4, 5]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m = [5]\n", "", "model[1]: needs `m`, which the set has none of for all models"),
        ('layouts = ["kn"]\n', "", "model[1]: needs `layouts`, which the set has none of for all models"),
        ('layouts = ["kn"]', 'layouts = ["nk"]', "model[1].layouts[0]: expected one of kk, kn, mk, mn, got 'nk'"),
        ("[2, 9", "[0, 9", "model[0].counts[0]: expected a whole number from 1 to 9223372036854775807, got 0"),
        (
            "[2, 9",
            "[9",
            "model[0].counts: expected 2 numbers, one for each `m`, and one weight, got 1 for 1 weights",
        ),
        ("[1]", "7", "model[1].counts: expected a list, got 7"),
        ("counts = [1]", "counts = [1]\nnum_groups = [2, 8]", "model[1].num_groups: expected one number beside"),
        ("dropped = 7", "num_groups = [2, 8]", "model[0].num_groups: expected one number beside `counts`, got 2"),
        ("dropped = 7", "dropped = -7", "dropped: expected a whole number from 0 to 9223372036854775807, got -7"),
        (
            'version = 1\ndropped = 7\n\n[[model]]\nname = "grid bf16_kk n16 k8"\ndtypes = ["bfloat16"]\n',
            'version = 1\ndtypes = ["bfloat16"]\n\n[[model]]\nname = "x"\n',
            "model[0].counts: expected `dtypes` and `layouts`, or `operations`, of the model's own beside it",
        ),
    ],
)
def test_a_bad_miss_log_is_refused_with_its_place(old, new, message):
    assert MISSES.count(old) == 1
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(MISSES.replace(old, new), "x.toml")
    assert str(caught.value).startswith(f"x.toml: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "1" * 5000, "not TOML that can be read: a whole number of thousands of digits"),
        ("x = " + "[" * 2000, "not TOML that can be read: nested too deeply"),
        ("x = " + "{a=" * 2000, "not TOML that can be read: nested too deeply"),
        ("a = 1\na = 2", "not TOML: Cannot overwrite a value (at end of document)"),
    ],
)
def test_what_no_parser_can_take_is_refused(text, message):
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(text, "x.toml")
    assert str(caught.value) == f"x.toml: {message}"


def long_text(num_entries, last):
    numbers = ",\n".join(map(str, (*range(1, num_entries), last)))
    return TEXT.replace("m = [10, 30]", f"m = [\n{numbers}]")


@pytest.mark.slow
def test_a_long_list_is_read_in_seconds_and_its_errors_found():
    start = time.process_time()
    found = parse_shape_set(long_text(200_000, 200_000), "x.toml")
    assert len(found.models[1].m) == 200_000
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(long_text(200_000, 7), "x.toml")
    assert str(caught.value) == (
        "x.toml: model[1].m[199999]: expected ascending numbers, each once, got 7 after 199999"
    )
    assert time.process_time() - start < 20


def test_a_set_of_more_sizes_than_anyone_measures_is_refused(monkeypatch):
    monkeypatch.setattr("aot.core.shape_set.MAX_SIZES", 5)
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(TEXT, "x.toml")
    assert str(caught.value) == "x.toml: model[1]: the set has more than 5 sizes up to here; expected fewer"


def test_what_is_not_toml_is_refused_with_its_line():
    with pytest.raises(ShapeFileError, match=r"^x\.toml: not TOML: Invalid value \(at line 2, column 11\)"):
        parse_shape_set(TEXT.replace("version = 1", "version = "), "x.toml")


@pytest.mark.parametrize(("name", "num_problems", "num_weights"), [("representative", 204, 21), ("transposed", 40, 5)])
def test_shipped_sets(name, num_problems, num_weights):
    found = load_shape_set(name)
    assert len(found.sizes) == num_problems
    assert len({(n, k) for n, k, _ in found.sizes}) == num_weights
    assert all(model.description for model in found.models)


@pytest.mark.parametrize("name", shape_set_names())
def test_every_shipped_set_loads_by_name(name):
    found = load_shape_set(name)
    assert all(found.problems(operation) for operation in found.operations)
    assert found.operations


def test_a_set_may_be_a_file(tmp_path):
    (tmp_path / "x.toml").write_text(TEXT)
    assert load_shape_set(str(tmp_path / "x.toml")) == parse_shape_set(TEXT, "")
    with pytest.raises(
        ShapeFileError, match=f"No such file or directory; give a path or one of: {', '.join(shape_set_names())}"
    ):
        load_shape_set(str(tmp_path / "y.toml"))
    (tmp_path / "z.toml").write_bytes(b"\xff")
    with pytest.raises(ShapeFileError, match=r"z\.toml: not UTF-8 text: byte 0 is 0xff"):
        load_shape_set(str(tmp_path / "z.toml"))


def test_the_sizes_of_the_transposed_set_are_representative():
    sizes = {(n, k) for n, k, _ in load_shape_set("representative").sizes}
    assert {(n, k) for n, k, _ in load_shape_set("transposed").sizes} <= sizes


def test_an_epilogue_is_asked_for_by_the_set_or_by_the_option():
    text = TEXT.replace("version = 1\n", 'version = 1\nepilogues = ["none", "bias"]\n')
    assert [x.tag for x in parse_shape_set(text, "").operations if x.has_bias] == ["bf16_kk_bias", "fp16_kk_bias"]
    assert [x.tag for x in parse_shape_set(text, "").tuned((), ())] == ["bf16_kk", "bf16_kk_bias"]
    tuned = parse_shape_set(TEXT, "").tuned((), (), (Epilogue.BIAS,))
    assert [x.tag for x in tuned] == ["bf16_kk_bias"]
    with pytest.raises(ShapeFileError, match="there are no kernels of such a type, layout and epilogue together"):
        parse_shape_set(TEXT, "").tuned((), (Layout.KN,), (Epilogue.BIAS,))


BY_NAME = """\
version = 1
operations = ["e4m3_bf16_kk", "bf16_kk_silu"]
m = [16]

[[model]]
name = "any"
weights = [{ name = "up", n = 64, k = 32 }]

[[model]]
name = "own"
operations = ["int8_bf16_kk"]
weights = [{ name = "down", n = 32, k = 64 }]
"""


def test_a_set_may_name_operations_by_tag():
    found = parse_shape_set(BY_NAME, "x.toml")
    tags = ["bf16_kk_silu", "e4m3_bf16_kk", "int8_bf16_kk"]
    assert [x.tag for x in found.operations] == [x.tag for x in found.tuned((), ())] == tags
    names = [[problem.name for problem in found.problems(Operation(tag))] for tag in tags]
    plain, own = "m16 n64 k32", "int8_bf16_kk m16 n32 k64"
    assert names == [[f"bf16_kk_silu {plain}"], [f"e4m3_bf16_kk {plain}"], [own, f"int8_bf16_kk {plain}"]]


def test_operations_that_are_asked_for_need_not_be_the_sets():
    asked = (Operation.BF16_KK_SILU, Operation.TF32_KK)
    assert parse_shape_set(TEXT, "").having(asked) == asked
    only = BY_NAME.replace('name = "any"', 'name = "any"\noperations = ["bf16_kk"]')
    assert parse_shape_set(only, "").having((Operation.BF16_KK, Operation.TF32_KK)) == (BF16,)
    with pytest.raises(ShapeFileError, match="the shape set has no problem of tf32_kk; it has bf16_kk, int8_bf16_kk"):
        parse_shape_set(only, "").having((Operation.TF32_KK,))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["int8_bf16_kk"]', '["int8_bf16"]', "model[1].operations[0]: expected one of "),
        ('["int8_bf16_kk"]', "[]", "model[1].operations: expected one or more"),
        ('"bf16_kk_silu"]', '"e4m3_bf16_kk"]', "operations[1]: expected each once, this is there before"),
        (
            "m = [16]",
            'm = [16]\nlayouts = ["kk"]',
            "operations: expected `operations`, or `dtypes`, `layouts` and `epilogues`, got it beside `layouts`",
        ),
        (
            'operations = ["int8_bf16_kk"]',
            'operations = ["int8_bf16_kk"]\nepilogues = ["bias"]',
            "model[1].operations: expected `operations`, or `dtypes`, `layouts` and `epilogues`, got it beside",
        ),
        ('operations = ["int8_bf16_kk"]', 'layouts = ["kk"]', "model[1]: needs `dtypes`, which the set has none of"),
    ],
)
def test_a_bad_set_of_names_is_refused_with_its_place(old, new, message):
    assert BY_NAME.count(old) == 1
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(BY_NAME.replace(old, new), "x.toml")
    assert str(caught.value).startswith(f"x.toml: {message}")
