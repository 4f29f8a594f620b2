"""docs/fleet.md: its files are what they are said to be, and their commands have the options that they are given."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from aot.cli.main import main
from aot.fleet.connection import CERTIFICATES, security_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")

SERVICE = {
    "build": dict,
    "command": list,
    "depends_on": list,
    "deploy": dict,
    "environment": dict,
    "image": str,
    "ports": list,
    "restart": str,
    "volumes": list,
}
"""What a service has here, and its type. Source: the Compose Specification, services."""
RESTARTS = ("no", "always", "on-failure", "unless-stopped")
SBATCH = ("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time")
"""Source: sbatch(1)."""


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


def check_command(words):
    """Parse a command line of ours, or of Dask's; nothing is run."""
    program, *rest = words
    if program == "aot":
        # A command keeps the names of its --help, which are the parent's, from the first context that it is given.
        parent = main.make_context("aot", ["--help"], resilient_parsing=True)
        _, command, words = main.resolve_command(parent, rest)
        command.make_context(rest[0], words, parent, resilient_parsing=False).close()
        return
    assert (program, rest[0]) == ("dask", "scheduler")
    scheduler = pytest.importorskip("distributed.cli.dask_scheduler", reason="NOT TESTED: install aot-kernels[fleet]")
    scheduler.main.make_context("scheduler", rest[1:]).close()


def test_the_compose_file_has_a_scheduler_and_workers_with_all_gpus():
    found = yaml.safe_load(block("yaml"))
    assert set(found) == {"name", "services", "volumes"}
    assert set(found["services"]) == {"scheduler", "workers"}
    for service in found["services"].values():
        assert {key: type(value) for key, value in service.items()} == {key: SERVICE[key] for key in service}
        assert service.get("restart", "no") in RESTARTS
        assert all(isinstance(word, str) for word in service["command"])
        assert set(service.get("depends_on", [])) <= set(found["services"])
        named = {x.partition(":")[0] for x in service.get("volumes", [])}
        assert named <= set(found["volumes"])
    workers = found["services"]["workers"]
    assert workers["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    ]
    assert found["services"]["scheduler"]["image"] == workers["image"]
    # The one port that is open beyond the containers is this host's alone.
    assert [x for service in found["services"].values() for x in service.get("ports", [])] == ["127.0.0.1:8786:8786"]


@pytest.mark.parametrize("service", ["scheduler", "workers"])
def test_the_commands_of_the_compose_file_can_be_run(service, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = yaml.safe_load(block("yaml"))["services"][service]["command"]
    check_command(["work" if word == "/work" else word for word in words])


def test_the_image_of_the_compose_file_installs_the_extra():
    text = yaml.safe_load(block("yaml"))["services"]["scheduler"]["build"]["dockerfile_inline"]
    assert [line.split()[0] for line in text.splitlines()] == ["FROM", "COPY", "RUN"]
    assert shlex.split(text.splitlines()[2])[1:] == ["pip", "install", "-c", "/aot/constraints.txt", "/aot[fleet]"]


def test_the_slurm_script_is_one_and_its_commands_can_be_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = block("bash")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    options = re.findall(r"^#SBATCH --([a-z-]+)=\S+$", text, re.MULTILINE)
    assert tuple(options) == SBATCH
    assert text.count("#SBATCH") == len(options)
    calls = [shlex.split(line.removesuffix(" &").removeprefix("srun ")) for line in text.splitlines()]
    found = [words for words in calls if words[:1] in (["aot"], ["dask"])]
    assert [words[:2] for words in found] == [["dask", "scheduler"], ["aot", "worker"], ["aot", "tune"]]
    for words in found:
        check_command(["tcp://host:8786" if word == "$address" else word for word in words])


def test_every_command_of_dask_on_the_page_can_be_run(tmp_path, monkeypatch):
    (tmp_path / "fleet").mkdir()
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / "fleet" / name).touch()
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"(dask scheduler [^`\n#]*)", PAGE)
    assert len(lines) >= 3
    for line in lines:
        check_command(shlex.split(line.removesuffix(" &\n").replace(" &", "")))


@pytest.mark.slow
def test_the_certificates_of_the_page_are_those_that_a_cluster_takes(tmp_path):
    commands = [x[2:] for x in PAGE.splitlines() if x.startswith(("$ mkdir", "$ openssl"))]
    assert len(commands) == 4
    for command in commands:
        subprocess.run(command, shell=True, check=True, capture_output=True, cwd=tmp_path)
    security = security_of(tmp_path / "fleet")
    assert security.require_encryption
    assert {*CERTIFICATES} <= {x.name for x in (tmp_path / "fleet").iterdir()}
    assert security.get_connection_args("worker")["ssl_context"] is not None
