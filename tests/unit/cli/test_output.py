"""What commands print for programs: JSON alone on standard output, of the facts that the text is made of."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import click
import pytest

from aot.cli.main import main
from aot.cli.output import plain
from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target, target_names
from tests.unit.invoked import SHAPES, aot, succeed


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    colour: Colour
    sizes: tuple[int, ...]


TILE = gemm_candidate("sm100_tgv", 64, 8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (math.inf, None),
        (math.nan, None),
        (Colour.RED, "red"),
        (Operation.BF16_KK, "bf16_kk"),
        (Path("a/b"), "a/b"),
        (Thing(Colour.RED, (1, 2)), {"colour": "red", "sizes": [1, 2]}),
        ({Colour.RED: [Thing(Colour.RED, ())]}, {"red": [{"colour": "red", "sizes": []}]}),
        (TILE, TILE.name),
        ({KernelKey(Operation.BF16_KK, TILE): 1}, {f"bf16_kk_{TILE.name}": 1}),
        (Problem(Operation.BF16_KK, 1, 2, 3), "bf16_kk m1 n2 k3"),
    ],
)
def test_values_become_what_json_has(value, expected):
    found = plain(value)
    assert found == expected
    assert json.loads(json.dumps(found)) == expected


def test_a_value_without_a_rule_is_an_error():
    with pytest.raises(TypeError, match="no rule for object as JSON; expected a dataclass or what JSON has"):
        plain(object())


def facts(*arguments):
    """Run a command with --json; all of its standard output is one document."""
    return json.loads(succeed(*arguments, "--json"))


def commands(group, *names):
    """Yield every command by its names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        yield (*names, name), command


def test_every_command_that_prints_facts_prints_them_as_json():
    without = {names for names, command in commands(main) if not any("--json" in x.opts for x in command.params)}
    assert without == {("completion",), ("worker",)}, "completion prints what a shell reads, and worker no facts"


def test_targets():
    found = facts("targets")["targets"]
    assert [x["name"] for x in found] == list(target_names())
    (h200,) = (x for x in found if x["name"] == "h200")
    assert (h200["num_sms"], h200["arch"]) == (132, load_target("h200").arch)


def test_space_counts_and_lists():
    counted = facts("space", "--target", "thor", "--kernels", "sm100_tgv*")
    (family,) = (x for x in counted["operations"]["bf16_kk"] if x["family"] == "sm100_tgv")
    listed = facts("space", "--target", "thor", "--kernels", "sm100_tgv*", "--list")["operations"]["bf16_kk"]
    own = [x for name, x in listed.items() if name.startswith("sm100_tgv")]
    assert sum("resources" in x for x in own) == family["num_accepted"] > 0
    assert sum("message" in x for x in own) == sum(family["num_rejected"].values()) == len(own) - family["num_accepted"]
    assert {x["reason"] for name, x in listed.items() if not name.startswith("sm100_tgv")} == {"excluded by --kernels"}


def test_shapes_and_their_problems(tmp_path):
    (tmp_path / "tiny.toml").write_text(SHAPES)
    found = facts("shapes", "--shapes", tmp_path / "tiny.toml", "--problems")
    assert found["num_problems"] == {"bf16_kk": 2}
    first = {"operation": "bf16_kk", "m": 1, "n": 4096, "k": 4096, "flops": 2 * 4096**2, "launches": None}
    assert first.items() <= found["problems"][0].items()
    assert [x["name"] for x in found["models"]] == ["tiny"]
    assert "problems" not in facts("shapes", "--shapes", tmp_path / "tiny.toml")


def test_notes_go_to_standard_error():
    result = aot("shapes", "--json")
    assert json.loads(result.stdout)["num_problems"] == {
        x.tag: len(load_shape_set("representative").problems(x)) for x in load_shape_set("representative").operations
    }
    assert "shipped shape sets: " in result.stderr


def test_shared_memory_of_a_kernel_and_of_all():
    usage = facts("smem", "--tile", "128x128")["usage"]
    assert (usage["kernel"]["tile_m"], usage["kernel"]["tile_n"], usage["a_bytes"]) == (128, 128, 128 * 128)
    table = facts("smem")
    assert table["limit_bytes"] == 232_448
    assert "128x128" in table["num_stages_fit"]


def test_doctor():
    found = facts("doctor")
    assert set(found) == {"machine", "abilities", "next"}
    assert found["next"].startswith("aot ")
    assert {"build wheels", "run kernels", "tune here"} <= {x["name"] for x in found["abilities"]}
    text = succeed("doctor")
    assert text.endswith(f"next: {found['next']}\n")
    assert all(x["why"] in text for x in found["abilities"])
