"""Operations on rows of other packages: what entry points may give, and what is refused of them."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from aot.core.element import ElementType
from aot.core.errors import OperationError
from aot.core.strict_json import DecodeError
from aot.kinds.registry import all_operations, read_operation
from aot.kinds.rows import catalogue
from aot.kinds.rows.catalogue import GROUP, OWN_ROW_OPERATIONS, read_row_operation, row_operation, row_operations
from aot.kinds.rows.function import RowFunction
from aot.kinds.rows.operation import RowOperation
from aot.kinds.rows.signature import RowArgument

BF16 = ElementType.BFLOAT16
CUBE = RowFunction("cube", "somewhere:cube", flops=2, arithmetic="somewhere:cube_of")
OPERATIONS = (RowOperation("bf16_cube", BF16, CUBE),)


def forget():
    for found in (catalogue.outside_entries, catalogue.row_operations, all_operations):
        found.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """Have entry points of a package, whose values are attributes of this module."""

    def install(**found):
        entries = []
        for name, value in found.items():
            monkeypatch.setattr(catalogue, f"own_{name}", value, raising=False)
            entries.append(EntryPoint(name, f"aot.kinds.rows.catalogue:own_{name}", GROUP))
        monkeypatch.setattr(catalogue, "entry_points", lambda group: entries if group == GROUP else [])
        forget()

    yield install
    forget()


def test_another_package_has_lines_behind_ours(installed):
    installed(cube=OPERATIONS)
    found = row_operations()
    assert found == (*OWN_ROW_OPERATIONS, "bf16_cube")
    assert (found[-1].position, found[-1].function, row_operation("bf16_cube")) == (
        len(OWN_ROW_OPERATIONS),
        CUBE,
        found[-1],
    )
    assert read_operation("bf16_cube") is read_row_operation("bf16_cube") is found[-1]
    assert [x.value for x in found[-1].signature] == ["x", "y", "flags", "stream"]


def test_what_is_not_installed_is_unknown(installed):
    installed()
    with pytest.raises(OperationError, match="no operation on rows is called 'bf16_cube'"):
        row_operation("bf16_cube")
    with pytest.raises(DecodeError, match="expected the tag of an operation on rows, such as bf16_rms_norm, got"):
        read_row_operation("bf16_cube")


def test_a_package_that_cannot_be_loaded_stops_none_of_ours(installed, monkeypatch):
    installed(cube=OPERATIONS)
    monkeypatch.delattr(catalogue, "own_cube")
    assert row_operation("bf16_rms_norm").function.name == "rms_norm"
    with pytest.raises(OperationError, match="'cube' of an unnamed distribution cannot be loaded: AttributeError"):
        row_operation("bf16_cube")


def changed(**changes):
    return (RowOperation("bf16_cube", BF16, replace(CUBE, **changes)),)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({"rms_norm": OPERATIONS}, "have the name of one of ours"),
        ({"cube": ()}, "are tuple; expected a tuple of RowOperation, of one or more"),
        ({"cube": "bf16_cube"}, "are str; expected a tuple of RowOperation"),
        ({"square": OPERATIONS}, "have bf16_cube of a function 'cube'; expected the entry point's own name"),
        (
            {"cube": (RowOperation("cubes", BF16, CUBE),)},
            "have the tag 'cubes'; expected element types, and",
        ),
        ({"cube": OPERATIONS * 2}, "have the tag 'bf16_cube', which is another operation's"),
        ({"cube": changed(arguments=(RowArgument.COS,))}, "take cos; expected arguments of residual, weight"),
        ({"cube": changed(arguments=(RowArgument.RESIDUAL,))}, "take one of residual and residual_out"),
        ({"cube": changed(width=3)}, "have the width 3, 0 reductions and 2 FLOP; expected 1 or 2, 0 to 2"),
    ],
)
def test_what_is_no_catalogue_is_refused_by_its_name(installed, found, fault):
    installed(**found)
    with pytest.raises(OperationError) as refusal:
        row_operations()
    assert fault in str(refusal.value)
    assert str(refusal.value).endswith("; mend an unnamed distribution, or uninstall it")


def test_two_functions_of_one_name_are_refused(installed, monkeypatch):
    installed(cube=OPERATIONS)
    entries = catalogue.entry_points(GROUP) * 2
    monkeypatch.setattr(catalogue, "entry_points", lambda group: entries)
    with pytest.raises(OperationError, match="have the name of that of an unnamed distribution"):
        row_operations()


def test_a_tag_of_two_kinds_is_refused(installed):
    named = RowFunction("kk", "somewhere:kk")
    installed(kk=(RowOperation("bf16_kk", BF16, named),))
    with pytest.raises(OperationError, match="the tag 'bf16_kk' is that of two operations"):
        all_operations()
