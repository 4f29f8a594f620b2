"""The command `aot smem`, and the page about shared memory: what it quotes is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli import main as cli
from aot.cli.smem import TILES
from aot.core.errors import CandidateError, TargetError
from aot.space import smem

PAGE = Path(__file__).parents[3] / "docs" / "smem.md"
QUOTED = re.findall(r"^```console\n\$ aot (.*)\n((?:.*\n)*?)```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def aot(*arguments):
    return CliRunner().invoke(cli.main, list(arguments))


def test_one_kernel_part_by_part():
    result = aot("smem", "--tile", "128x256", "--dtype", "mxfp8", "--arch", "sm_120a", "--source", "bf16")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "part                  bytes  stages  in all\n"
        "-------------------  ------  ------  ------\n"
        "A                    16,384       2  32,768\n"
        "B                    32,768       2  65,536\n"
        "scale factors of A      512       2   1,024\n"
        "scale factors of B    1,024       2   2,048\n"
        "epilogue, D in bf16   4,096       2   8,192\n"
        "epilogue, C in bf16   4,096       2   8,192\n"
        "barriers              1,024       1   1,024\n"
        "alignment             1,024       1   1,024\n"
        "mxfp8_128x256x128 needs 119,808 bytes of shared memory with 2 stages of 50,688; sm_120a gives 101,376 a "
        "block; 1 stage fits; tile 128x128 holds 2\n"
    )


@pytest.mark.parametrize(
    ("arguments", "heading"),
    [
        (("--arch", "sm_110a"), "sm_110a: 232,448 bytes a block; stages that fit"),
        (("--arch", "sm_121a", "--out", "fp32"), "sm_121a: 101,376 bytes a block; stages that fit"),
        (
            ("--arch", "sm_103", "--source", "fp32", "--k-bytes", "256"),
            "sm_103: 232,448 bytes a block; stages that fit",
        ),
    ],
)
def test_the_table_is_of_what_is_counted(arguments, heading):
    result = aot("smem", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    first, header, _, *rows = result.stdout.splitlines()
    assert first == heading
    assert header.split() == ["tile", "nvfp4", "mxfp4", "mxfp8", "fp8", "fp16/bf16", "fp32/tf32"]
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    rest = (given.get("--out", "bf16"), given.get("--source", ""), int(given.get("--k-bytes", 128)))
    kinds = TILES[smem.ENGINES[smem.base_arch(given["--arch"])]]
    assert len(rows) == len(kinds)
    seen = set()
    for line, (tile_m, tile_n, use_2cta) in zip(rows, kinds, strict=True):
        cells = line.removeprefix(f"{tile_m}x{tile_n}").replace(" 2cta", "").split()
        for name, cell in zip(("nvfp4", "mxfp4", "mxfp8", "fp8", "fp16", "fp32"), cells, strict=True):
            try:
                fit = smem.count(smem.Kernel(given["--arch"], name, tile_m, tile_n, use_2cta, *rest)).num_stages_fit
                expected = str(fit) if fit >= 2 else "-"
            except CandidateError:
                expected = "n/a"
            assert cell == expected, (line, name)
            seen.add(cell)
    assert {"n/a", "2"} <= seen or given["--arch"] == "sm_110a"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ("--tile", "256"),
            CandidateError,
            "--tile is '256'; expected tile_m and tile_n, such as 256x128; leave it out for a table",
        ),
        (
            ("--tile", "256x-8"),
            CandidateError,
            "--tile is '256x-8'; expected tile_m and tile_n, such as 256x128; leave it out for a table",
        ),
        (
            ("--arch", "sm_999"),
            TargetError,
            (
                "no architecture 'sm_999'; expected one of sm_100, sm_103, sm_110, sm_120, sm_121; "
                "write for example sm_110a"
            ),
        ),
        (
            ("--tile", "128x128", "--dtype", "int8"),
            CandidateError,
            "no element type 'int8'; expected one of nvfp4, mxfp4, mxfp8, fp8, fp16, bf16, fp32, tf32",
        ),
        (("--out", "int8"), CandidateError, "D cannot be 'int8'; expected one of fp32, fp16, bf16, fp8"),
    ],
)
def test_bad_input_is_a_typed_error(arguments, error, message):
    result = aot("smem", *arguments)
    assert (result.exit_code, result.stderr) == (error.exit_code, f"aot: error: {message}\n")


def test_the_page_quotes_what_it_is_about():
    commands = [command for command, _ in QUOTED]
    assert any(command == "space --target thor --explain" for command in commands)
    assert any(command.startswith("space") and "--kernels" in command for command in commands)
    text = " ".join(command for command in commands if command.startswith("smem"))
    assert all(word in text for word in ("nvfp4", "fp8", "fp16", "fp32", "sm_110a", "sm_121a"))
    assert PAGE.read_text(encoding="utf-8").count("```console") == len(QUOTED)


@pytest.mark.parametrize(("command", "quoted"), QUOTED, ids=[command for command, _ in QUOTED])
def test_what_the_page_quotes_is_what_is_printed(command, quoted):
    assert aot(*shlex.split(command)).output == quoted
