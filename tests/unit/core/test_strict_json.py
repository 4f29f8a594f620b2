import gzip
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import pytest

from aot.core.constraints import Grammar, Range, Text, Word, one_line
from aot.core.operation import Operation
from aot.core.strict_json import (
    DecodeError,
    decode,
    decode_row,
    decode_version,
    parse_json,
    read_content,
    shown,
)

Name = Annotated[str, Grammar("[a-z]*", "a name", 4)]


class Colour(Word):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Leaf:
    count: Annotated[int, Range(0, 9)]
    share: Annotated[float, Range(0, 1, is_above=True)]
    note: Text | None = None


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    names: dict[Name, Name]
    flag: bool
    operation: Operation
    colour: Colour
    pair: tuple[Name, Annotated[int, Range(1, 2)]]


OPERATION = "bf16_kk"
GOOD = {
    "leaves": [{"count": 1, "share": 1}],
    "names": {"a": "b"},
    "flag": True,
    "operation": OPERATION,
    "colour": "red",
    "pair": ["x", 2],
}


def test_decodes_nested_values():
    expected = Tree((Leaf(1, 1.0),), {"a": "b"}, True, Operation.BF16_KK, Colour.RED, ("x", 2))
    assert decode(Tree, GOOD) == expected
    assert isinstance(decode(Leaf, {"count": 1, "share": 1}).share, float)
    assert decode(Leaf, {"count": 1, "share": 1, "note": "n"}).note == "n"
    assert decode(Tree, GOOD).colour is Colour.RED
    assert f"{Colour.RED}|{Colour.RED:>5}|{Colour.RED!s}" == "red|  red|red"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"flag": None}, "flag: expected true or false, got None"),
        ({"names": []}, "names: expected an object, got []"),
        ({"names": {"a": 1}}, "names.a: expected a name, got 1"),
        ({"names": {"a": "toolong"}}, "names.a: expected a name, got 'toolong'"),
        ({"names": {"A b": "x"}}, "names['A b']: expected a name, got 'A b'"),
        ({"names": {"\x1b[31m": "x"}}, "names['\\x1b[31m']: expected a name, got '\\x1b[31m'"),
        ({"leaves": {}}, "leaves: expected a list, got {}"),
        ({"leaves": [1]}, "leaves[0]: expected an object of Leaf, got 1"),
        (
            {"leaves": [{"count": True, "share": 1.0}]},
            "leaves[0].count: expected a whole number from 0 to 9, got True",
        ),
        ({"leaves": [{"count": 1.0, "share": 1.0}]}, "leaves[0].count: expected a whole number from 0 to 9, got 1.0"),
        ({"leaves": [{"count": 10, "share": 1.0}]}, "leaves[0].count: expected a whole number from 0 to 9, got 10"),
        (
            {"leaves": [{"count": 1, "share": False}]},
            "leaves[0].share: expected a number above 0, at most 1, got False",
        ),
        ({"leaves": [{"count": 1, "share": 0}]}, "leaves[0].share: expected a number above 0, at most 1, got 0"),
        (
            {"leaves": [{"count": 1, "share": float("nan")}]},
            "leaves[0].share: expected a number above 0, at most 1, got nan",
        ),
        (
            {"leaves": [{"count": 1, "share": 1.0, "note": 3}]},
            "leaves[0].note: expected one line of printable text of at most 4000 characters, got 3",
        ),
        ({"leaves": [{"count": 1}]}, "leaves[0]: Leaf needs the key share, which is missing"),
        ({"extra": 1}, "extra: there is no such key in Tree; it has leaves, names, flag, operation, colour, pair"),
        (
            {"operation": "bf16_xx"},
            f"operation: expected one of {len(Operation)} words, such as bf16_mn, bf16_mk, bf16_kn, got 'bf16_xx'",
        ),
        ({"colour": "green"}, "colour: expected one of red, blue, got 'green'"),
        ({"colour": ["red"]}, "colour: expected one of red, blue, got ['red']"),
        ({"pair": ["x"]}, "pair: expected a list of 2 values, got ['x']"),
        ({"pair": ["x", 3]}, "pair[1]: expected a whole number from 1 to 2, got 3"),
    ],
)
def test_refuses_with_the_place(change, message):
    with pytest.raises(DecodeError) as caught:
        decode(Tree, {**GOOD, **change})
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["a\nb", "\x00", "\x1b[31m", "a\x7f", "\u202e", "\ud800", "\u2028", "x" * 4001])
def test_a_text_is_one_line_of_printable_characters(text):
    with pytest.raises(DecodeError, match="expected one line of printable text") as caught:
        decode(Leaf, {"count": 1, "share": 1, "note": text})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
    assert decode(Leaf, {"count": 1, "share": 1, "note": one_line(text)}).note == one_line(text)


@pytest.mark.parametrize(
    "kind", [int, float, str, tuple[int, ...], dict[str, Name], Any, Annotated[int, Grammar("", "")]]
)
def test_what_has_no_constraint_cannot_be_decoded(kind):
    with pytest.raises(TypeError, match="cannot"):
        decode(kind, 1)


@dataclass(frozen=True)
class Ordered:
    low: Annotated[int, Range(0, 9)]
    high: Annotated[int, Range(0, 9)] | None = None

    def __post_init__(self):
        if self.high is not None and self.low > self.high:
            raise ValueError("low is above high")


def test_a_dataclass_may_refuse_and_a_row_is_decoded_by_the_order_of_fields():
    assert decode_row(Ordered, (1, 2)) == Ordered(1, 2)
    assert decode_row(Ordered, (1,)) == Ordered(1)
    for row, message in [
        ((2, 1), "low is above high"),
        ((1, 2, 3), "expected a list of 2 values, got 3"),
        ((), "Ordered needs the key low, which is missing"),
        ((1, "x"), "high: expected a whole number from 0 to 9, got 'x'"),
    ]:
        with pytest.raises(DecodeError) as caught:
            decode_row(Ordered, row)
        assert str(caught.value) == message


@pytest.mark.parametrize("version", [True, 1.0, "1", None, 2, [1]])
def test_a_version_is_that_very_number(version):
    with pytest.raises(DecodeError, match=r"^version: expected 1, got .*$"):
        decode_version(Ordered, {"version": version, "low": 1}, "version", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON: Expecting value: line 1 column 1"),
        ("[NaN]", "not JSON: NaN is no number of JSON"),
        ("-Infinity", "not JSON: -Infinity is no number of JSON"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' is there twice in one object"),
        ("1" * 5000, "not JSON that can be read: a whole number of thousands of digits"),
        ("[" * 100_000, "not JSON that can be read: nested too deeply"),
        ('{"a":' * 100_000, "not JSON that can be read: nested too deeply"),
        (b"\xff", "not UTF-8 text: byte 0 is 0xff"),
        ('"a"'.encode("utf-16"), "not UTF-8 text: byte 0 is 0xff"),
        (b"\xef\xbb\xbf1", "not JSON: "),
    ],
)
def test_json_that_is_none_is_refused(content, message):
    with pytest.raises(DecodeError) as caught:
        parse_json(content)
    assert str(caught.value).startswith(message)


def test_an_infinite_number_is_in_no_range():
    with pytest.raises(DecodeError, match="expected a number from -10 to 10, got inf"):
        decode(Annotated[float, Range(-10, 10)], parse_json("1e999"))


VALUES = {
    "huge": 10**5000,
    "long": ["x" * 10**6] * 10**4,
    "deep": {"x" * 1000: {"y": [[[[1]]]]}},
    "controls": "\x1b\n",
    "none": None,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_any_value_is_shown_in_few_printable_characters(value):
    assert len(shown(value)) < 700
    assert shown(value).isprintable()


def test_files_are_read_whole_and_decompressed(tmp_path, monkeypatch):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x" * 100))
    assert read_content(tmp_path / "a.gz") == b"x" * 100
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"x" * 100)[:-9])
    with pytest.raises(DecodeError, match="Compressed file ended before"):
        read_content(tmp_path / "b.gz")
    (tmp_path / "c.gz").write_bytes(b"no")
    with pytest.raises(DecodeError, match="Not a gzipped file"):
        read_content(tmp_path / "c.gz")
    for path, message in [
        (tmp_path / "d", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "\0", "null byte"),
    ]:
        with pytest.raises(DecodeError, match=message):
            read_content(path)
    monkeypatch.setattr("aot.core.strict_json.MAX_BYTES", 99)
    with pytest.raises(DecodeError, match="more than 99 bytes, which no file of ours has"):
        read_content(tmp_path / "a.gz")


def test_members_need_not_be_texts():
    class Number(Enum):
        ONE = 1

    assert decode(Number, 1) is Number.ONE
    for value in (True, 2, "1"):
        with pytest.raises(DecodeError, match="expected one of 1, got"):
            decode(Number, value)


@pytest.mark.parametrize(("given", "expected"), [([], ()), ([3], (3,)), ([9, 0, 4], (9, 0, 4)), ((1, 2), (1, 2))])
def test_whole_numbers_of_a_list_are_kept(given, expected):
    found = decode(tuple[Annotated[int, Range(0, 9)], ...], given)
    assert (found, {type(x) for x in found}) == (expected, {int} if expected else set())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 10, 2], "[1]: expected a whole number from 0 to 9, got 10"),
        ([1, 2, -1, 10], "[2]: expected a whole number from 0 to 9, got -1"),
        ([1, True], "[1]: expected a whole number from 0 to 9, got True"),
        ([1, 2.0], "[1]: expected a whole number from 0 to 9, got 2.0"),
        (["1"], "[0]: expected a whole number from 0 to 9, got '1'"),
        ({"0": 1}, "expected a list, got {'0': 1}"),
    ],
)
def test_the_first_of_a_list_that_is_no_whole_number_of_the_range_is_named(given, message):
    with pytest.raises(DecodeError) as caught:
        decode(tuple[Annotated[int, Range(0, 9)], ...], given)
    assert str(caught.value) == message
