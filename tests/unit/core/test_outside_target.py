"""Targets from other packages: the example, and what is wrong with others."""

from __future__ import annotations

import re

import pytest

from aot.core.errors import TargetError
from aot.core.target import _outside, load_target, target_names
from tests.example_family import EXAMPLES, example_family
from tests.unit.invoked import succeed

FILE = EXAMPLES / "target" / "orin_nano" / "orin_nano.toml"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put packages with a target each where entry points are looked for."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(distribution, name, package="", text=None):
        folder = tmp_path / f"{distribution}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[aot.targets]\n{name} = {package or distribution}\n")
        if not package:
            (tmp_path / distribution).mkdir()
        if text is not None:
            (tmp_path / distribution / f"{name}.toml").write_text(text)
        _outside.cache_clear()

    yield put
    _outside.cache_clear()
    load_target.cache_clear()


@pytest.mark.slow
def test_a_package_of_one_file_brings_a_target():
    ours = target_names()
    with example_family("target", "orin_nano"):
        assert target_names() == sorted((*ours, "orin_nano"))
        found = load_target("orin_nano")
        assert (found.arch, found.num_sms, found.platform_tag) == ("sm_87", 8, "manylinux_2_28_aarch64")
        assert "orin_nano" in succeed("targets")
        spaces = [succeed("space", "--target", x, "--operations", "bf16_kk") for x in ("orin", "orin_nano")]
        assert "mma_sync" in spaces[1]
        assert spaces[0].replace("orin", "orin_nano").split() == spaces[1].split()
    assert target_names() == ours


def test_a_target_of_a_name_that_there_is_already_is_refused(install):
    install("mine", "thor", text=FILE.read_text(encoding="utf-8"))
    expected = "the target 'thor' of mine has the name of one of ours; uninstall mine, or name its target otherwise"
    with pytest.raises(TargetError, match=f"^{re.escape(expected)}$"):
        target_names()


def test_two_targets_of_one_name_are_refused(install):
    for name in ("mine", "yours"):
        install(name, "nano")
    with pytest.raises(TargetError, match=r"has the name of that of (mine|yours); uninstall (mine|yours), or"):
        target_names()


@pytest.mark.parametrize(
    ("package", "text", "message"),
    [
        ("", None, "the target 'nano' of mine has no file: expected nano.toml in its package 'mine'"),
        ("nowhere", None, "cannot be read: its package 'nowhere' cannot be imported, ModuleNotFoundError"),
        ("", "name = 3", "nano.toml"),
        ("", FILE.read_text(encoding="utf-8"), "is of the target 'orin_nano'; expected nano, as the file is called"),
    ],
)
def test_a_target_that_cannot_be_read_is_refused_where_it_is_asked_for(install, package, text, message):
    install("mine", "nano", package, text)
    assert "nano" in target_names()
    with pytest.raises(TargetError, match=re.escape(message)):
        load_target("nano")
