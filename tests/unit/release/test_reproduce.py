"""A second build runs elsewhere, in other surroundings, and asks for what the first was asked for."""

from __future__ import annotations

import json
import os
import time

import pytest

from aot.core.errors import PackageError
from aot.release import reproduce
from aot.release.compare import compare_all, read_folder
from aot.release.reproduce import Surroundings, build_again, other_surroundings, read_request
from tests.unit.release.repository import repository

MAKEFILE = """release:
\t@mkdir -p build/release
\t@echo "made $(RELEASE) by $(BUILDER)"
\t@echo "$$(umask) $$TZ $$LC_ALL" > build/release/surroundings
\t@echo "$$DEBFULLNAME,$$DEBEMAIL" > build/release/maintainer
\t@echo equal > build/release/equal
\t@echo "$(RELEASE) $(BUILDER)" > build/release/asked
\t@touch build/release/SHA256SUMS
"""


def release(folder, commit, targets=("thor", "h200,h100"), builder="urn:me", maintainer=""):
    """Write a release's provenance, as far as it is read again."""
    definition = {
        "externalParameters": {"targets": list(targets), **({"maintainer": maintainer} if maintainer else {})},
        "resolvedDependencies": [{"uri": "pkg:pypi/x@1"}, {"name": "source", "digest": {"gitCommit": commit}}],
    }
    predicate = {"buildDefinition": definition, "runDetails": {"builder": {"id": builder}}}
    folder.mkdir(exist_ok=True)
    (folder / "provenance.intoto.jsonl").write_text(json.dumps({"predicate": predicate}))
    return folder


def test_the_second_build_is_made_in_other_surroundings_of_the_same_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("MAKEFLAGS", "--dry-run")
    monkeypatch.setenv("DEBFULLNAME", "Somebody Else")
    commit = repository(tmp_path / "repository", {"Makefile": MAKEFILE})
    (tmp_path / "repository" / "Makefile").write_text("release:\n\tfalse\n")
    said = []
    first = release(tmp_path / "first", commit, maintainer="Ann Lee <ann@company.com>")
    (tmp_path / "scratch").mkdir()
    surroundings = Surroundings("077", "C", "Pacific/Chatham")
    again = build_again(first, tmp_path / "scratch", surroundings, said.append, tmp_path / "repository")
    assert again.parents[1].relative_to(tmp_path / "scratch").as_posix() == "again/at/another/depth"
    assert (again / "surroundings").read_text() == "0077 Pacific/Chatham C\n"
    assert (again / "asked").read_text() == "thor h200,h100 urn:me\n"
    assert (again / "maintainer").read_text() == "Ann Lee,ann@company.com\n"
    assert "made thor h200,h100 by urn:me\n" in said
    assert again.stat().st_mode & 0o777 == 0o700
    (first / "equal").write_text("equal\n")
    (first / "surroundings").write_text("0022 UTC C\n")
    differences = [str(x) for x in compare_all(read_folder(first), read_folder(again))]
    assert "surroundings: line 1 is '0022 UTC C', then '0077 Pacific/Chatham C'" in differences
    assert not [x for x in differences if x.startswith("equal")]


def test_a_release_without_debian_packages_is_built_again_without(tmp_path, monkeypatch):
    monkeypatch.setenv("DEBEMAIL", "somebody@else")
    commit = repository(tmp_path / "repository", {"Makefile": MAKEFILE})
    (tmp_path / "scratch").mkdir()
    first, surroundings = release(tmp_path / "first", commit), Surroundings("077", "C", "UTC")
    again = build_again(first, tmp_path / "scratch", surroundings, str, tmp_path / "repository")
    assert (again / "maintainer").read_text() == ",\n"


def test_other_surroundings_differ_in_every_part(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Chatham")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    present = os.umask(0o077)
    try:
        found = other_surroundings()
    finally:
        os.umask(present)
    assert (found.umask, found.zone) == ("027", "America/St_Johns")
    assert found.locale in {"tr_TR.UTF-8", "de_DE.UTF-8", "C"}
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert other_surroundings().zone == "Pacific/Chatham"


def test_a_build_that_leaves_no_release_is_an_error(tmp_path):
    commit = repository(tmp_path / "repository", {"Makefile": "release:\n\t@true\n"})
    (tmp_path / "scratch").mkdir()
    first, surroundings = release(tmp_path / "first", commit), Surroundings("077", "C", "UTC")
    with pytest.raises(PackageError, match=r"^the second build left no SHA256SUMS in build/release; expected a rel"):
        build_again(first, tmp_path / "scratch", surroundings, str, tmp_path / "repository")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"provenance.intoto.jsonl cannot be read: FileNotFoundError"),
        ("{}", r"cannot be read: KeyError\('predicate'\); make the release with `make release`"),
        ("[1]", r"cannot be read: TypeError"),
        ("nothing", r"cannot be read: JSONDecodeError"),
    ],
)
def test_what_is_no_release_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "provenance.intoto.jsonl").write_text(text)
    with pytest.raises(PackageError, match=message):
        read_request(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"targets": ["thor; rm -r x"]}, {"targets": ["$(shell id)"]}, {"builder": "a b"}, {"commit": "--upload-pack=x"}],
)
def test_a_request_that_a_shell_would_obey_is_refused(tmp_path, changes):
    folder = release(tmp_path, **({"commit": "a" * 40} | changes))
    with pytest.raises(PackageError, match=r"asks for .*; expected names; make the release with `make release`"):
        read_request(folder)


def test_a_locale_that_is_not_installed_is_not_taken():
    assert reproduce._has_locale("C")
    assert not reproduce._has_locale("xx_XX.UTF-8")
