"""JSON as it is written."""

import json
from dataclasses import dataclass

from aot.core.constraints import Word
from aot.core.json_text import plain_json, write_json
from aot.core.operation import Operation


@dataclass(frozen=True)
class Wide:
    rows: tuple[tuple[int, ...], ...]
    kinds: tuple[Word, ...]
    names: dict[str, float]
    nothing: tuple[int, ...] = ()


def test_what_is_written_is_sorted_has_a_line_for_each_entry_and_is_read_again():
    value = Wide(((1, 2), (3,)), (Operation.BF16_KK,), {"b": 1.5, "a": 2.0})
    text = write_json(value)
    assert text == (
        '{\n"kinds":[\n"bf16_kk"\n],\n"names":{"a":2.0,"b":1.5},\n"nothing":[],\n"rows":[\n[1,2],\n[3]\n]\n}\n'
    )
    assert json.loads(text) == plain_json(value)
