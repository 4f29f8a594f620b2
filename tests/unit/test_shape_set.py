import pytest
from twins import BF16

from aot.errors import ShapeFileError
from aot.problem import Dtype, Layout, Operation
from aot.shape_set import load_shape_set, parse_shape_set, shape_set_names

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
    assert (found.dtypes, found.layouts) == ((Dtype.BFLOAT16, Dtype.FLOAT16), (Layout.KK,))
    assert [(model.name, model.m) for model in found.models] == [("first", (1, 10)), ("second", (10, 30))]
    assert found.sizes == [(10, 20, 1), (10, 20, 10), (10, 20, 30), (30, 20, 1), (30, 20, 10)]
    assert [problem.name for problem in found.problems(BF16)][2:4] == ["bf16_kk m30 n10 k20", "bf16_kk m1 n30 k20"]
    assert [operation.tag for operation in found.operations] == ["bf16_kk", "fp16_kk"]


EXTENT = "a whole number from 1 to 2147483647"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "2: `version` is 2; expected 1"),
        ("version = 1\n", "", "1: `version` is None; expected a value: a shape set needs it"),
        ("version = 1", "version = 1\nspeed = 1", "3: `speed` is 1; expected no such key in a shape set; it has dro"),
        ('"float16"]', '"float8"]', "3: `dtypes` is 'float8'; expected one of bfloat16, float16, each once"),
        ('"float16"]', '"bfloat16"]', "3: `dtypes` is 'bfloat16'; expected one of bfloat16, float16, each once"),
        ('["kk"]', '"kk"', "4: `layouts` is 'kk'; expected a list out of kk, kn, mk, mn"),
        ('["kk"]', "[]", "4: `layouts` is []; expected a list out of kk, kn, mk, mn"),
        ("  10,\n", "  0,\n", f"7: `m` is 0; expected {EXTENT}"),
        ("  10,\n", "  1.5,\n", f"7: `m` is 1.5; expected {EXTENT}"),
        ("  10,\n", "  true,\n", f"7: `m` is True; expected {EXTENT}"),
        ("  10,\n", "  1,\n", "5: `m` is [1, 1]; expected ascending numbers, each once"),
        ("m = [10, 30]", "m = [30, 10]", "19: `m` is [30, 10]; expected ascending numbers, each once"),
        ("m = [10, 30]", "m = [0, 30]", f"19: `m` is 0; expected {EXTENT}"),
        ("m = [10, 30]", "m = []", "19: `m` is []; expected a list of whole numbers"),
        ("m = [10, 30]", "M = [10, 30]", "19: `M` is [10, 30]; expected no such key in [[model]]; it has coun"),
        ("m = [10, 30]", "description = 3", "19: `description` is 3; expected a text"),
        ('name = "second"', 'name = ""', "18: `name` is ''; expected a text"),
        ('name = "second"\n', "", "17: `name` is None; expected a value: [[model]] needs it"),
        ("n = 30", "n = 3000000000", f"14: `n` is 3000000000; expected {EXTENT}"),
        ('"in", n = 30, ', '"in", ', "14: `n` is None; expected a value: a weight needs it"),
        ("n = 30", "n = 30, q = 1", "14: `q` is 1; expected no such key in a weight; it has k, n, name"),
        ("n = 10\nk", 'n = "10"\nk', f"22: `n` is '10'; expected {EXTENT}"),
        ("n = 10\nk = 20", "n = 10", "20: `k` is None; expected a value: a weight needs it"),
        ('{ name = "out", n = 10, k = 20 }', "7", "12: `weights` is [7, {'name': 'in', 'n': 30, 'k': 20}]; exp"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(old, new, message):
    assert TEXT.count(old) == 1
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(TEXT.replace(old, new), "x.toml")
    assert str(caught.value).startswith(f"x.toml:{message}")


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
    assert found.problems(Operation.of(Dtype.BFLOAT16, Layout.KN)) == []
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
    assert tags(TEXT, tuple(Dtype), (Layout.MN,)) == ["bf16_mn", "fp16_mn"]
    assert tags(MISSES, (Dtype.FLOAT16,), (Layout.KK, Layout.KN)) == ["fp16_kn"]
    with pytest.raises(ShapeFileError, match=r"no problem of fp16_kk; it has bf16_kk, fp16_kn; give --dtype and --lay"):
        tags(MISSES, (Dtype.FLOAT16,))


def test_a_model_may_have_what_the_set_has_not():
    text = TEXT.replace('name = "second"', 'name = "second"\nlayouts = ["mn"]')
    found = parse_shape_set(text, "x.toml")
    assert [operation.tag for operation in found.operations] == ["bf16_kk", "bf16_mn", "fp16_kk", "fp16_mn"]
    assert [len(found.problems(Operation.of(Dtype.FLOAT16, Layout(x)))) for x in ("kk", "mn")] == [4, 5]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m = [5]\n", "", "12: `m` is None; expected a value: [[model]] needs it where the set has none"),
        ('layouts = ["kn"]\n', "", "12: `layouts` is None; expected a value: [[model]] needs it where the set has"),
        ('layouts = ["kn"]', 'layouts = ["nk"]', "15: `layouts` is 'nk'; expected one of kk, kn, mk, mn, each once"),
        ("[2, 9", "[0, 9", "10: `counts` is 0; expected a whole number from 1 to 9223372036854775807"),
        ("[2, 9", "[9", "10: `counts` is [9223372036854775807]; expected 2 numbers, one for each `m`, and one weight,"),
        ("[1]", "7", "18: `counts` is 7; expected a list of whole numbers"),
        ("dropped = 7", "dropped = -7", "2: `dropped` is -7; expected a whole number from 0 to 9223372036854775807"),
        (
            'version = 1\ndropped = 7\n\n[[model]]\nname = "grid bf16_kk n16 k8"\ndtypes = ["bfloat16"]\n',
            'version = 1\ndtypes = ["bfloat16"]\n\n[[model]]\nname = "x"\n',
            "9: `counts` is [2, 9223372036854775807]; expected `dtypes` and `layouts` of the model's own beside it",
        ),
    ],
)
def test_a_bad_miss_log_is_refused_with_its_line(old, new, message):
    assert MISSES.count(old) == 1
    with pytest.raises(ShapeFileError) as caught:
        parse_shape_set(MISSES.replace(old, new), "x.toml")
    assert str(caught.value).startswith(f"x.toml:{message}")


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
    assert load_shape_set(name).problems(BF16)


def test_a_set_may_be_a_file(tmp_path):
    (tmp_path / "x.toml").write_text(TEXT)
    assert load_shape_set(str(tmp_path / "x.toml")) == parse_shape_set(TEXT, "")
    with pytest.raises(
        ShapeFileError, match=f"No such file or directory; give a path or one of: {', '.join(shape_set_names())}"
    ):
        load_shape_set(str(tmp_path / "y.toml"))
    (tmp_path / "z.toml").write_bytes(b"\xff")
    with pytest.raises(ShapeFileError, match=r"z\.toml: not UTF-8 text: 'utf-8' codec can't decode byte 0xff"):
        load_shape_set(str(tmp_path / "z.toml"))


def test_the_sizes_of_the_transposed_set_are_representative():
    sizes = {(n, k) for n, k, _ in load_shape_set("representative").sizes}
    assert {(n, k) for n, k, _ in load_shape_set("transposed").sizes} <= sizes
