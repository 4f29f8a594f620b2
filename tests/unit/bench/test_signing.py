import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from aot.bench.receipt import parse_receipt, receipt_text, sealed
from aot.bench.signing import check_signature, public_key_of, signed
from aot.cli.main import main
from aot.core.errors import DependencyError, ReceiptError
from tests.unit.bench.receipts import product_of, receipt_of

RECEIPT = receipt_of()


@pytest.fixture
def keys(tmp_path):
    """Give the files of a private key and of its public half."""
    pytest.importorskip("cryptography", reason="NOT TESTED: signatures need cryptography, an extra")
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    own, public = tmp_path / "key.pem", tmp_path / "key.pub"
    own.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return own, public


def test_a_signature_is_of_its_key_and_survives_the_file(keys):
    own, public = keys
    found = parse_receipt(receipt_text(signed(RECEIPT, own)), "r.json")
    assert check_signature(found, "r.json") == check_signature(found, "r.json", public_key_of(public))
    assert found.signature.public_key == public_key_of(public)
    assert found.sha256 == RECEIPT.sha256


def test_a_signature_of_another_receipt_or_key_is_refused(keys):
    own, _ = keys
    found = signed(RECEIPT, own)
    other = replace(sealed(receipt_of(product_of(wheel_us=(10.0, 10.0, 10.0)))), signature=found.signature)
    with pytest.raises(ReceiptError, match=r"r\.json: its signature is not one of the key [0-9a-f]{64} over its hash"):
        check_signature(other, "r.json")
    with pytest.raises(ReceiptError, match=f"is signed by the key {found.signature.public_key}; expected {'00' * 32}"):
        check_signature(found, "r.json", "00" * 32)


def test_a_missing_signature_is_refused_where_a_signer_is_asked_for():
    assert check_signature(RECEIPT, "r.json") is None
    with pytest.raises(ReceiptError, match=r"r\.json is not signed; expected a signature of the key 00"):
        check_signature(RECEIPT, "r.json", "00" * 32)


def test_a_file_that_is_no_key_is_refused(keys, tmp_path):
    own, public = keys
    with pytest.raises(ReceiptError, match="is no private key in PEM without a password"):
        signed(RECEIPT, public)
    with pytest.raises(ReceiptError, match="is no public key in PEM"):
        public_key_of(own)
    with pytest.raises(ReceiptError, match="No such file or directory"):
        signed(RECEIPT, tmp_path / "none.pem")


def test_a_key_of_another_kind_is_refused(keys, tmp_path):
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    path = tmp_path / "x25519.pem"
    other = X25519PrivateKey.generate()
    path.write_bytes(other.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    with pytest.raises(ReceiptError, match="is a X25519PrivateKey; expected one of Ed25519"):
        signed(RECEIPT, path)


def test_without_cryptography_signing_says_what_to_install(monkeypatch, tmp_path):
    for name in ("cryptography", "cryptography.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DependencyError, match="pip install cryptography, or sign nothing"):
        signed(RECEIPT, tmp_path / "key.pem")
    assert check_signature(RECEIPT, "r.json") is None


def test_a_key_is_looked_at_before_anything_is_measured(tmp_path):
    pytest.importorskip("cryptography", reason="NOT TESTED: signatures need cryptography, an extra")
    (tmp_path / "key.pem").write_text("none\n")
    done = CliRunner().invoke(main, ["bench", str(tmp_path), "--key", str(tmp_path / "key.pem")])
    assert done.exit_code == ReceiptError.exit_code
    assert "is no private key in PEM without a password" in done.output
