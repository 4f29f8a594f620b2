"""What is said where a cluster cannot be had."""

import sys

import pytest

from aot.core.errors import DependencyError, FleetError
from aot.fleet.connection import security_of
from tests.unit.invoked import aot


@pytest.fixture
def without_distributed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)


@pytest.mark.parametrize(
    "words", [["compile", "--cluster", "local"], ["tune", "--target", "h200", "--cluster", "tcp://desk:8786"]]
)
def test_a_cluster_needs_an_extra_and_says_which(without_distributed, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    done = aot(*words)
    assert done.exit_code == DependencyError.exit_code, done.output
    assert "pip install 'aot-kernels[fleet]'" in done.output


def test_a_folder_of_certificates_has_three_files(tmp_path):
    (tmp_path / "ca.pem").touch()
    with pytest.raises(FleetError, match=r"lacks cert\.pem, key\.pem; --cluster-tls takes a folder with ca\.pem, cert"):
        security_of(tmp_path)


def test_certificates_are_for_every_role_and_encryption_is_required(tmp_path):
    pytest.importorskip("distributed", reason="NOT TESTED: install aot-kernels[fleet]")
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch()
    found = security_of(tmp_path)
    assert found.require_encryption
    assert found.tls_ca_file == str(tmp_path / "ca.pem")
    for role in ("client", "scheduler", "worker"):
        assert getattr(found, f"tls_{role}_cert") == str(tmp_path / "cert.pem")
        assert getattr(found, f"tls_{role}_key") == str(tmp_path / "key.pem")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compile", "--cluster-tls", "."], "--cluster-tls means nothing without --cluster; leave it out, or use both"),
        (["tune", "--on", "ssh://a", "--on", "ssh://b"], "several --on need --cluster local"),
        (
            ["tune", "--cluster", "tcp://a:1", "--on", "ssh://b"],
            "let the device join: aot worker tcp://a:1 --on ssh://b",
        ),
        (["tune", "--cluster", "local", "--bundle", "b"], "--bundle means nothing with --cluster"),
        (["tune", "--cluster", "local", "--record", "r"], "--record means nothing with --cluster; leave it out"),
        (["worker", "tcp://a:1", "--no-gpu", "--gpu", "0"], "--gpu means nothing with --no-gpu"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_done(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = aot(*words)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
