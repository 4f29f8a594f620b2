"""`aot tune` of operations on rows, as it is called: like that of products, alone or beside them."""

import pytest

from aot.core import errors
from aot.core.operation import Operation
from aot.kinds.rows.catalogue import row_operation
from aot.tune.bundle import Bundle
from tests.unit.invoked import aot, succeed

BOTH = (row_operation("bf16_rms_norm"), row_operation("bf16_rotary"))


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def requests(monkeypatch):
    """Make no bundle; return the requests."""
    asked = []

    def make(request, target, directory, workplace):
        asked.append(request)
        return Bundle(directory, 3 << 20), []

    monkeypatch.setattr("aot.cli.tune.make_tuning_bundle", make)
    return asked


def test_rows_alone_are_tuned_without_problems_of_products(requests):
    words = ["--target", "h200", "--kernels", "row_looped_*", "--prune", "1.5", "--bundle", "b"]
    text = succeed("tune", "--operations", "bf16_rms_norm,bf16_rotary", *words)
    (request,) = requests
    assert request.operations == BOTH
    assert (request.patterns.includes, request.ratio) == (("row_looped_*",), 1.5)
    assert text == "b: 3.0 MiB\non the device: python b/run.py --out results.sqlite\n"


def test_rows_may_be_named_beside_products(requests):
    succeed("tune", "--target", "h200", "--operations", "bf16_kk,bf16_rms_norm", "--limit", "3", "--bundle", "b")
    (request,) = requests
    assert (request.operations, request.limit) == ((Operation.BF16_KK, BOTH[0]), 3)


def test_rows_are_measured_here_and_by_ssh_as_products_are(requests, monkeypatch, workplace):
    measured, remote = [], []
    monkeypatch.setattr("aot.cli.tune.check_this_machine", lambda target, say: None)
    monkeypatch.setattr("aot.cli.tune.measure_here", lambda *words, **_: measured.append(words[:3]) or 0)
    text = succeed("tune", "--operations", "bf16_rms_norm", "--target", "h200", "--budget-seconds", "5")
    results = "build/tuning/h200/results.sqlite"
    assert [(str(x), str(y), z) for x, y, z in measured] == [("build/tuning/h200", results, 5.0)]
    assert text.endswith(f"measured into {results}; next: aot import {results}\n")

    class Remote:
        def __init__(self, url, *rest, **_):
            remote.append(url)

        def inspect(self, scratch):
            """Find the device as it should be."""

        def measure(self, bundle, words, path, show):
            remote.append((words, str(path)))
            return 75

    monkeypatch.setattr("aot.cli.tune.RemoteTuning", Remote)
    words = ["tune", "--operations", "bf16_rms_norm", "--target", "h200", "--on", "ssh://a@b", "--no-reference"]
    assert aot(*words).exit_code == 75
    assert remote == ["ssh://a@b", (["--no-reference"], results)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shapes", "representative"], "--shapes means nothing for bf16_rms_norm; leave it out, or name products"),
        (["--limit", "3"], "--limit means nothing for bf16_rms_norm"),
        (["--selection", "s.json"], "a selection has kernels of products alone; leave --selection out"),
        (["--dtype", "bfloat16"], "--dtype means nothing with --operations"),
    ],
)
def test_options_of_products_are_refused(requests, words, text):
    result = aot("tune", "--operations", "bf16_rms_norm", *words)
    assert (result.exit_code, requests) == (2, [])
    assert text in result.stderr


def test_what_names_no_operation_is_refused():
    result = aot("tune", "--operations", "bf16_norm")
    assert result.exit_code == errors.OperationError.exit_code
    assert "no operation is called 'bf16_norm'" in result.stderr
