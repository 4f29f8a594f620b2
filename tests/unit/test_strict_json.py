from dataclasses import dataclass

import pytest

from aot.problem import Operation
from aot.strict_json import DecodeError, decode


@dataclass(frozen=True)
class Leaf:
    count: int
    share: float
    note: str | None = None


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    names: dict[str, str]
    flag: bool
    operation: Operation


OPERATION = {"dtype_name": "bfloat16", "layout_name": "kk"}
GOOD = {"leaves": [{"count": 1, "share": 2}], "names": {"a": "b"}, "flag": True, "operation": OPERATION}


def test_decodes_nested_values():
    assert decode(Tree, GOOD, "x") == Tree((Leaf(1, 2.0),), {"a": "b"}, True, Operation("bfloat16", "kk"))
    assert isinstance(decode(Leaf, {"count": 1, "share": 2}, "x").share, float)
    assert decode(Leaf, {"count": 1, "share": 2, "note": "n"}, "x").note == "n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flag": 1}, "x.flag: expected bool, got 1"),
        ({"flag": None}, "x.flag: expected bool, got None"),
        ({"names": []}, "x.names: expected an object, got []"),
        ({"names": {"a": 1}}, "x.names.a: expected str, got 1"),
        ({"leaves": {}}, "x.leaves: expected a list, got {}"),
        ({"leaves": [1]}, "x.leaves[0]: expected an object of Leaf, got 1"),
        ({"leaves": [{"count": True, "share": 1.0}]}, "x.leaves[0].count: expected int, got True"),
        ({"leaves": [{"count": 1.0, "share": 1.0}]}, "x.leaves[0].count: expected int, got 1.0"),
        ({"leaves": [{"count": 1, "share": False}]}, "x.leaves[0].share: expected float, got False"),
        ({"leaves": [{"count": 1, "share": 1.0, "note": 3}]}, "x.leaves[0].note: expected str, got 3"),
        ({"leaves": [{"count": 1}]}, "x.leaves[0]: missing or unknown keys of Leaf: share"),
        ({"extra": 1}, "x: missing or unknown keys of Tree: extra"),
        ({"operation": {**OPERATION, "dtype_name": "int3"}}, "x.operation: 'int3' is not a valid Dtype"),
    ],
)
def test_refuses_with_the_place(change, message):
    with pytest.raises(DecodeError) as caught:
        decode(Tree, {**GOOD, **change}, "x")
    assert str(caught.value) == message
