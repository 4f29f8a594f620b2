import pytest

from aot.core.toml_lines import entry_lines

TEXT = '''# a = [
a = 1 # b = 2
b = [1, # one ]
  [2, 3],
]
"quoted.[key" = """
c = 5
"""
d.e = 1979-05-27 07:32:00
[t]
f = { g = "}", h = [ { i = '#' } ] }
[[t.rows]]
j = 1
[[t.rows]]
[[t.rows.inner]]
k = 2
'''


def test_every_entry_has_its_line():
    assert entry_lines(TEXT) == {
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, 0): 4,
        ("b", 1, 1): 4,
        ("quoted", "[key"): 6,
        ("d", "e"): 9,
        ("t",): 10,
        ("t", "f"): 11,
        ("t", "f", "g"): 11,
        ("t", "f", "h"): 11,
        ("t", "f", "h", 0): 11,
        ("t", "f", "h", 0, "i"): 11,
        ("t", "rows"): 12,
        ("t", "rows", 0): 12,
        ("t", "rows", 0, "j"): 13,
        ("t", "rows", 1): 14,
        ("t", "rows", 1, "inner"): 15,
        ("t", "rows", 1, "inner", 0): 15,
        ("t", "rows", 1, "inner", 0, "k"): 16,
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# only this"])
def test_an_empty_document_has_no_entries(text):
    assert entry_lines(text) == {}
