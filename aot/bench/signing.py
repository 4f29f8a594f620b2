"""Sign a receipt's hash with an Ed25519 key, and check who signed: the only module that imports `cryptography`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from aot.bench.receipt import Signature
from aot.core.errors import DependencyError, ReceiptError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from aot.bench.receipt import Receipt

_Key = TypeVar("_Key")
_PURPOSE = b"aot bench receipt 1\n"
"""In front of the hash, so that no signature of anything else is one of a receipt."""
_HOW = "make a key with `openssl genpkey -algorithm ed25519`, and its public half with `openssl pkey -pubout`"


def _needed(error: ImportError) -> DependencyError:
    return DependencyError(f"{error}, which signs and checks signatures; pip install cryptography, or sign nothing")


def _content(path: Path) -> bytes:
    """Read a key's file.

    Raises:
        ReceiptError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReceiptError(f"{path}: {error.strerror}; {_HOW}") from error


def _key(
    path: Path, what: str, load: Callable[[bytes], object], kind: type[_Key], unsupported: type[Exception]
) -> _Key:
    """Read a key of Ed25519 from PEM.

    Raises:
        ReceiptError: it is none.
    """
    try:
        found = load(_content(path))
    except (ValueError, TypeError, unsupported) as error:
        raise ReceiptError(f"{path} is no {what}: {error}; {_HOW}") from error
    if not isinstance(found, kind):
        raise ReceiptError(f"{path} is a {type(found).__name__}; expected one of Ed25519; {_HOW}")
    return found


def _private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key; errors as `signed`."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise _needed(error) from error
    what = "private key in PEM without a password"

    def load(content: bytes) -> object:
        return load_pem_private_key(content, password=None)

    return _key(path, what, load, Ed25519PrivateKey, UnsupportedAlgorithm)


def public_key_of(path: Path) -> str:
    """Read a public key from PEM; return its 32 bytes in hexadecimal digits, as a receipt has them.

    Raises:
        DependencyError: `cryptography` is not installed.
        ReceiptError: it is none of Ed25519.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise _needed(error) from error
    return _text(_key(path, "public key in PEM", load_pem_public_key, Ed25519PublicKey, UnsupportedAlgorithm))


def check_key(path: Path) -> None:
    """Look at a private key before anything is measured that it is to sign; errors as `signed`."""
    _private_key(path)


def _text(key: Ed25519PublicKey) -> str:
    found: str = key.public_bytes_raw().hex()
    return found


def _message(receipt: Receipt) -> bytes:
    return _PURPOSE + (receipt.sha256 or "").encode()


def signed(receipt: Receipt, key: Path) -> Receipt:
    """Return a sealed receipt with the signature of a private key, in PEM.

    Raises:
        DependencyError: `cryptography` is not installed.
        ReceiptError: the key is none of Ed25519.
    """
    own = _private_key(key)
    return replace(receipt, signature=Signature(_text(own.public_key()), own.sign(_message(receipt)).hex()))


def check_signature(receipt: Receipt, where: str, signer: str | None = None) -> str | None:
    """Check a receipt's signature; return the public key that it is of, None of a receipt without one.

    Args:
        receipt: one whose hash was compared with its content.
        where: its file, for messages.
        signer: the public key that it has to be signed by, in hexadecimal digits; None: any, or none.

    Raises:
        DependencyError: it is signed, and `cryptography` is not installed.
        ReceiptError: the signature is wrong, of another key, or missing where a signer is asked for.
    """
    found = receipt.signature
    if found is None:
        if signer is not None:
            raise ReceiptError(f"{where} is not signed; expected a signature of the key {signer}; ask for a signed one")
        return None
    if signer not in (None, found.public_key):
        raise ReceiptError(
            f"{where} is signed by the key {found.public_key}; expected {signer}; it is another's, or the key is old"
        )
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise _needed(error) from error
    try:
        own = Ed25519PublicKey.from_public_bytes(bytes.fromhex(found.public_key))
        own.verify(bytes.fromhex(found.signature), _message(receipt))
    except (InvalidSignature, ValueError) as error:
        raise ReceiptError(
            f"{where}: its signature is not one of the key {found.public_key} over its hash; do not trust it, get the "
            "receipt again from who signed it"
        ) from error
    return found.public_key
