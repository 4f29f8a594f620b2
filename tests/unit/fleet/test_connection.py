"""What is said where a cluster cannot be had."""

import shutil
import subprocess
import sys

import pytest

from aot.core.errors import DependencyError, FleetError
from aot.fleet import connection
from aot.fleet.connection import connected, own_scheduler, security_of
from tests.unit.invoked import aot

pytestmark = pytest.mark.slow


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


def make_certificates(folder, authority):
    """Make a certificate and key of an authority, as docs/fleet.md says."""
    folder.mkdir()

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    if not authority.exists():
        authority.mkdir()
        openssl("req", "-x509", *key, "-subj", "/CN=fleet", "-keyout", authority / "key", "-out", authority / "ca.pem")
    openssl("req", *key, "-subj", "/CN=desk", "-keyout", folder / "key.pem", "-out", folder / "csr")
    signed = ["-CA", authority / "ca.pem", "-CAkey", authority / "key", "-CAcreateserial", "-days", "2"]
    openssl("x509", "-req", "-in", folder / "csr", *signed, "-out", folder / "cert.pem")
    shutil.copyfile(authority / "ca.pem", folder / "ca.pem")
    return folder


@pytest.mark.skipif(shutil.which("openssl") is None, reason="NOT TESTED WITH TLS: there is no openssl")
def test_a_scheduler_with_certificates_answers_only_who_has_one_of_its_authority(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="NOT TESTED: install aot-kernels[fleet]")
    ours = make_certificates(tmp_path / "ours", tmp_path / "authority")
    others = make_certificates(tmp_path / "others", tmp_path / "another")
    monkeypatch.setattr(connection, "CONNECT_S", 2.0)
    with own_scheduler(security_of(ours)) as address:
        assert address.startswith("tls://127.0.0.1:")
        with connected(address, security_of(ours)) as client:
            assert client.scheduler_info()["workers"] == {}
        for security in (security_of(others), security_of(None)):
            with pytest.raises(FleetError, match="no scheduler answers at tls://"), connected(address, security):
                pass
