"""`aot deb`, up to what it says of files that are no wheels. tests/package makes packages."""

import json
from types import SimpleNamespace

import pytest

from tests.unit.invoked import aot


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SOURCE_DATE_EPOCH", "DEBFULLNAME", "DEBEMAIL"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "x.whl"
    path.write_bytes(b"no wheel")
    return path


def refused(*arguments):
    result = aot("deb", *arguments)
    assert result.exit_code not in (0, 70), result.output
    return result.stderr


def test_a_file_that_is_no_wheel_is_refused(wheel):
    assert "x.whl is not a wheel" in refused(wheel, "--maintainer", "Ann Lee <ann@company.com>")


def test_without_a_maintainer_the_error_says_how_to_give_one(wheel):
    assert "give --maintainer, or DEBFULLNAME and DEBEMAIL" in refused(wheel)


def test_the_maintainer_is_that_of_the_environment(wheel, monkeypatch):
    monkeypatch.setenv("DEBFULLNAME", "Ann Lee")
    monkeypatch.setenv("DEBEMAIL", "ann@company.com")
    assert "x.whl is not a wheel" in refused(wheel)


@pytest.mark.parametrize("value", ["yesterday", "-1", "1.5", "9" * 30, "253402300800", "\u0661"])
def test_a_time_that_is_none_is_refused(wheel, monkeypatch, value):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    text = refused(wheel, "--maintainer", "Ann Lee <ann@company.com>")
    assert "expected whole seconds since 1970" in text


def test_packages_are_told_in_words_and_as_json(wheel, monkeypatch):
    packages = [SimpleNamespace(name="a.deb"), SimpleNamespace(name="b.deb")]
    monkeypatch.setattr("aot.package.debian.packages_of", lambda *_: packages)
    monkeypatch.setattr("aot.package.deb_file.to_bytes", lambda *_: b"x" * 2**19)
    words = ["deb", wheel, "--maintainer", "Ann Lee <ann@company.com>"]
    assert aot(*words).stdout == "dist/a.deb: 0.50 MiB\ndist/b.deb: 0.50 MiB\n"
    assert json.loads(aot(*words, "--json").stdout) == {"num_bytes": {"dist/a.deb": 2**19, "dist/b.deb": 2**19}}
