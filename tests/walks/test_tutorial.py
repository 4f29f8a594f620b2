"""Every command of docs/tutorial.md, run as it is written, but for those of a GPU and the one that set this up."""

from __future__ import annotations

from tests.package.test_tutorial import PAGE
from tests.walks.page import run_commands


def test_every_command_runs_as_it_is_written(tmp_path):
    done = run_commands(PAGE, tmp_path)
    wheel, recorded, built = done[1], done[3], done[7]
    assert wheel.stdout.splitlines()[-1].startswith("on the thor: pip install dist/aot_gemm-0.1.0+thor.")
    assert "computed 63 times" in recorded.stdout
    assert "the selection is build/selections/thor.json, made here last" in built.stderr
    assert "problems: n 7 is not a multiple of 8; rows of zeros" in built.stderr
    assert sorted(x.name.partition("-")[0] for x in (tmp_path / "dist").iterdir()) == ["aot_gemm", "my_policy_gemm"]
