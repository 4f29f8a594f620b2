import json
from dataclasses import replace

import pytest

from aot.bench.receipt import Product, content_sha256, parse_receipt, read_receipt, receipt_text, sealed
from aot.core.errors import ReceiptError
from tests.unit.bench.receipts import PROBLEM, product_of, receipt_of

RECEIPT = receipt_of()


def document(receipt=RECEIPT):
    return json.loads(receipt_text(receipt))


def test_a_receipt_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "receipt.json"
    path.write_text(receipt_text(RECEIPT))
    assert read_receipt(path) == RECEIPT
    # How the JSON is laid out is nothing that the hash is of.
    path.write_text(json.dumps(document(), indent=4, sort_keys=False))
    assert read_receipt(path) == RECEIPT


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x["products"][0]["wheel_us"].__setitem__(1, 19.5),
        lambda x: x["machine"]["conditions"].__setitem__("sm_clock_mhz", 1410),
        lambda x: x["wheel"].__setitem__("sha256", "00" * 32),
        lambda x: x["wheel"].__setitem__("tables_sha256", "00" * 32),
        lambda x: x["products"].append(x["products"][0]),
        lambda x: x.__setitem__("date", "2026-11-28"),
        lambda x: x.__setitem__("sha256", "00" * 32),
        lambda x: x.__setitem__("sha256", None),
    ],
    ids=["time", "clock", "wheel", "table", "products", "date", "hash", "no hash"],
)
def test_a_receipt_that_was_changed_is_refused(change):
    changed = document()
    change(changed)
    with pytest.raises(ReceiptError, match=r"r\.json: its content has sha256 [0-9a-f]{64}, it says .*it was changed"):
        parse_receipt(json.dumps(changed), "r.json")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"receipt_version": 2}, "receipt_version: expected 1, got 2"),
        ({"products": []}, "it has no products"),
        ({"machine": None}, "machine: expected an object of Machine, got None"),
        ({"note": "fast"}, "note: there is no such key in Receipt"),
    ],
)
def test_what_is_no_receipt_is_refused(change, expected):
    with pytest.raises(ReceiptError, match=expected):
        parse_receipt(json.dumps(document() | change), "r.json")


def test_what_is_no_file_or_no_json_is_refused(tmp_path):
    with pytest.raises(ReceiptError, match="No such file or directory; give the path of a receipt"):
        read_receipt(tmp_path / "none.json")
    with pytest.raises(ReceiptError, match="not JSON"):
        parse_receipt(b"{", "r.json")


@pytest.mark.parametrize(
    ("wheel_us", "library", "library_us", "expected"),
    [
        ((1.0, 1.0), None, (), "wheel_us of bf16_kk m16 n4096 k4096 needs 3 rounds or more"),
        ((1.0, 0.0, 1.0), None, (), "wheel_us of .* all above 0"),
        ((1.0, 1.0, 1.0), "torch", (), "library and library_us of .*: one is there without the other"),
        ((1.0, 1.0, 1.0), None, (1.0, 1.0, 1.0), "one is there without the other"),
        ((1.0, 1.0, 1.0), "torch", (1.0, 1.0), "library_us of .* needs 3 rounds"),
    ],
)
def test_rounds_that_tell_no_ratio_are_refused(wheel_us, library, library_us, expected):
    with pytest.raises(ValueError, match=expected):
        Product(PROBLEM, "kernel", wheel_us, library, library_us)


def test_the_hash_is_of_all_but_itself_and_the_signature():
    assert content_sha256(replace(RECEIPT, sha256=None)) == RECEIPT.sha256
    assert sealed(RECEIPT) == RECEIPT
    assert content_sha256(receipt_of(product_of(wheel_us=(20.0, 20.5, 21.1)))) != RECEIPT.sha256
