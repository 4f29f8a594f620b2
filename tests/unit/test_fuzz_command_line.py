"""A short run of the fuzz of the command line, over every command: see tests/fuzz/command_line.py."""

from collections import Counter

import pytest

from aot.cli.main import COMMANDS
from tests.compiling import EVERY
from tests.fuzz.command_line import fuzz

pytestmark = pytest.mark.slow
NUM_CASES = 600 if EVERY else 40


def test_no_command_line_gives_a_traceback_or_writes_elsewhere():
    codes = Counter()
    fuzz(NUM_CASES, 20261122, lambda code, words: codes.update([(words[0] if words else "", code)]))
    assert {name for name, _ in codes} >= set(COMMANDS)
    assert {code for _, code in codes} >= {0, 2}
