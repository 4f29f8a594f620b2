"""What `aot release` prints."""

import json
from types import SimpleNamespace

from tests.unit.invoked import aot


def test_a_release_is_told_in_words_and_as_json(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEBEMAIL", raising=False)
    stand_ins = {
        "read_source": lambda: SimpleNamespace(commit="abc"),
        "toolchain_version": lambda: "1.2.3",
        "_wheel": lambda *_: SimpleNamespace(selections={}),
        "build_toolchain_wheel": lambda folder, verbose: folder,
        "assemble": lambda *_: None,
        "put": lambda *_: None,
        "read_folder": lambda _: {"b.whl": b"12345", "SHA256SUMS": b"1" * 2000},
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"aot.cli.release.{name}", stand_in)
    result = aot("release", "h200", "-o", "out")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "out/SHA256SUMS: 2,000 bytes",
        "out/b.whl: 5 bytes",
        "built from commit abc; next: aot reproduce out",
    ]
    found = json.loads(aot("release", "h200", "-o", "out", "--json").stdout)
    sizes = {"SHA256SUMS": 2000, "b.whl": 5}
    assert found == {"folder": "out", "commit": "abc", "version": "1.2.3", "num_bytes": sizes}


def test_a_second_build_is_told_in_words_and_as_json(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    differing = []
    stand_ins = {
        "other_surroundings": lambda: "umask 027",
        "build_again": lambda folder, *_: folder,
        "read_folder": lambda _: {"b.whl": b"12345", "SHA256SUMS": b"1" * 2000},
        "compare_all": lambda *_: differing,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"aot.cli.release.{name}", stand_in)
    same = "2 files, 2,005 bytes: the second build, in umask 027, gives the same bytes\n"
    assert (aot("reproduce", "out").exit_code, aot("reproduce", "out").stdout) == (0, same)
    facts = {"num_files": 2, "num_bytes": 2005, "surroundings": "umask 027", "differences": []}
    assert json.loads(aot("reproduce", "out", "--json").stdout) == facts
    differing.append("b.whl: byte 3")
    for words, expected in (([], "differs: b.whl: byte 3\n"), (["--json"], None)):
        result = aot("reproduce", "out", *words)
        assert result.exit_code == 12
        assert "1 differences between two builds of one commit" in result.stderr
        if expected is None:
            assert json.loads(result.stdout) == {**facts, "differences": ["b.whl: byte 3"]}
        else:
            assert result.stdout == expected


def test_a_wheelhouse_is_told_in_words_and_as_json(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    monkeypatch.setattr("aot.cli.release.fill", lambda folder, *_, **__: (folder / "a.whl").write_bytes(b"x" * 2**20))
    following = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={tmp_path / 'w'} make setup wheel"
    assert aot("wheelhouse", "w").stdout == f"w: 1 wheels, 1 MiB\nnext, without a network: {following}\n"
    facts = {"folder": "w", "wheels": ["a.whl"], "num_bytes": 2**20, "next": following}
    assert json.loads(aot("wheelhouse", "w", "--json").stdout) == facts
