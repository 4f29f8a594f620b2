"""The knobs of a family that has its own: their text, their JSON, and what of it is refused."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from aot.core.candidate import Candidate, gemm_candidate
from aot.core.constraints import Range, Schedule
from aot.core.errors import CandidateError
from aot.core.json_text import json_line
from aot.core.knobs import GemmKnobs, Knobs, PlainKnobs, SplitK, split_mode
from aot.core.strict_json import DecodeError, decode


@dataclass(frozen=True)
class Own(Knobs):
    width: Annotated[int, Range(8, 1024)]
    order: Schedule = "rows"
    is_eager: bool = False
    mode: SplitK = SplitK.NONE


WIDE = Candidate("own", Own(64, is_eager=True))
TEXT = '{"family":"own","knobs":{"is_eager":true,"mode":"none","order":"rows","width":64}}'


def test_a_candidates_name_is_its_knobs_text():
    assert WIDE.name == "own_is_eager_mode_none_order_rows_width64"
    assert Candidate("own", Own(8)).name == "own_mode_none_order_rows_width8"
    assert gemm_candidate("sm90_quack", 128, 256, 2, schedule="pingpong").name == "sm90_quack_128x256_c2x1_pingpong"
    assert Candidate("own", PlainKnobs((("is_eager", False),))).name == "own_plain"


def test_what_is_written_is_read_as_it_was_without_the_family():
    assert json_line(WIDE) == TEXT
    read = decode(Candidate, json.loads(TEXT))
    assert (read, hash(read), read.name) == (WIDE, hash(WIDE), WIDE.name)
    assert Own.of(read) == Own(64, is_eager=True)
    assert Candidate("own", Own(8)) < Candidate("own", Own(64)) < WIDE


def test_knobs_of_tiled_products_lie_beside_the_family():
    candidate = gemm_candidate("simt", 64, 64, use_tma_store=False)
    assert list(candidate.as_json()) == ["family", *GemmKnobs.__annotations__]
    assert decode(Candidate, candidate.as_json()) == candidate
    assert candidate.gemm is candidate.knobs
    with pytest.raises(CandidateError, match="there is no such key in GemmKnobs; it has tile_m"):
        _ = WIDE.gemm


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "expected 1 to 16 knobs, got 0"),
        (dict.fromkeys("abcdefghijklmnopq", 1), "expected 1 to 16 knobs, got 17"),
        ({"Width": 1}, "expected the name of a knob, such as block, got 'Width'"),
        ({"width": -1}, "width: expected a switch, a word of lower case, or a number from 0 on, got -1"),
        ({"width": 1.5}, "width: expected a switch, a word of lower case, or a number from 0 on, got 1.5"),
        ({"width": None}, "width: expected a switch, a word of lower case, or a number from 0 on, got None"),
        ({"width": "a b"}, "width: expected a switch, a word of lower case, or a number from 0 on, got 'a b'"),
        ([1], r"expected an object of Knobs, got \[1\]"),
    ],
)
def test_what_no_kernel_is_named_by_is_refused(knobs, message):
    with pytest.raises(DecodeError, match=f"^knobs: {message}$"):
        decode(Candidate, {"family": "own", "knobs": knobs})


def test_a_key_beside_the_knobs_is_refused():
    with pytest.raises(DecodeError, match="there is no such key in Candidate; it has family"):
        decode(Candidate, {"family": "own", "knobs": {"width": 8}, "tile_m": 8})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {**Own(8).__dict__, "mode": "none", "width": 7},
            "order_rows_width7: width: expected a whole number from 8 to 1024, got 7; the knobs of own are width, o",
        ),
        (
            {"width": 8, "height": 8},
            "height: there is no such key in Own; it has width, order, is_eager, mode; the kno",
        ),
        (
            {"width": 8},
            "own_width8: Own needs the key is_eager, which is missing; the knobs of own are width, order, is",
        ),
        ({**Own(8).__dict__, "mode": "loose"}, "mode: expected one of none, serial, parallel, separate, tail, cluster"),
    ],
)
def test_a_family_reads_its_own_strictly(values, message):
    candidate = decode(Candidate, {"family": "own", "knobs": values})
    with pytest.raises(CandidateError, match=message):
        Own.of(candidate)


def test_only_knobs_of_tiled_products_split_k():
    assert split_mode(WIDE.knobs) is SplitK.NONE
    assert split_mode(GemmKnobs(8, 8, split_k=2, split_k_mode=SplitK.SERIAL)) is SplitK.SERIAL
