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
