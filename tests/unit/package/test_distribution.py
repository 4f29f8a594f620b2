"""Names and versions of wheels, by the rules of the tools that install them."""

from dataclasses import replace
from itertools import pairwise

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from aot.core.errors import PackageError
from aot.core.strict_json import decode
from aot.package.distribution import Package, WheelVersion, check_name, check_version, selection_hash, wheel_version
from aot.select.coverage import Coverage
from tests.unit.selections import SELECTION
from tests.unit.twins import CONDITIONS


@pytest.mark.parametrize("name", ["aot-gemm", "a", "my-model-2", "match", "x" * 64])
def test_names_that_can_be_installed_and_imported(name):
    assert check_name(name) == name
    assert decode(Package, name) == name
    file = f"{name.replace('-', '_')}-1.0-py3-none-manylinux_2_28_x86_64.whl"
    assert parse_wheel_filename(file)[0] == name
    assert name.replace("-", "_").isidentifier()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("class", "--package 'class' is a keyword of Python, so that it cannot be imported; expected lower-case words"),
        ("json", "--package 'json' would hide the module json that Python has already"),
        ("torch", "--package 'torch' would hide the module torch"),
        ("x" * 300, f"--package '{'x' * 64}...' (300 characters, at most 64); expected"),
        ("", "--package '' (0 characters, at most 64); expected lower-case words with hyphens between, such as aot-"),
        *((x, f"--package {x!r} (") for x in ("A", "a_b", "a--b", "-a", "a-", "1a", "a.b", "ä", "a b", "a\n", "../a")),
    ],
)
def test_other_names_are_refused_with_the_option_that_gave_them(name, message):
    with pytest.raises(PackageError) as caught:
        check_name(name)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("give another --package")


@pytest.mark.parametrize("version", ["0.1.0", "1", "1.2rc1", "2026.11.22.post1", "1.0.dev3"])
def test_versions_that_stay_as_they_are(version):
    assert check_version(version) == version


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("true", "--version 'true' is no version of PEP 440; expected one such as 1.2.0 or 1.2.0rc1"),
        ("", "--version '' is no version of PEP 440"),
        ("1" * 100, f"--version '{'1' * 30}' is no version of PEP 440"),
        ("1.0+mine", "--version '1.0+mine' has a local part, +mine; what the table is stands there; leave it out"),
        ("v1.0-1", "--version 'v1.0-1' is not in normal form; expected '1.0.post1'"),
        ("1!2.0", "--version '1!2.0' has an epoch; expected a version without one, such as 1.2.0"),
    ],
)
def test_other_versions_are_refused(version, message):
    with pytest.raises(PackageError) as caught:
        check_version(version)
    assert str(caught.value).startswith(message)


def selection(provenance, *dates, **changes):
    conditions = tuple(replace(CONDITIONS, date=date) for date in dates)
    return replace(SELECTION, provenance=provenance, conditions=conditions, **changes)


def test_measured_sorts_above_predicted_and_later_above_earlier():
    ascending = [
        selection("predicted"),
        selection("measured"),
        selection("measured", "2026-09-30"),
        selection("measured", "2026-01-01", "2026-11-21"),
        selection("measured", "2027-01-01"),
    ]
    for record in ("a", "b", "c"):  # whatever the hash
        versions = [Version(wheel_version("0.1.0", replace(x, record=record))) for x in ascending]
        assert all(low < high for low, high in pairwise(versions))
    assert Version(wheel_version("0.1.1", ascending[0])) > versions[-1]


def test_a_version_names_its_selection_and_survives_as_it_is():
    found = wheel_version("0.1.0", selection("measured", "2026-11-21"))
    digest = selection_hash(selection("measured", "2026-11-21"))
    assert found == f"0.1.0+h200.1.measured.20261121.h{digest}"
    assert wheel_version("0.1.0", selection("predicted")).startswith("0.1.0+h200.0.predicted.h")
    assert str(Version(found)) == found
    assert decode(WheelVersion, found) == found
    assert str(parse_wheel_filename(f"aot_gemm-{found}-py3-none-any.whl")[1]) == found


def test_a_version_of_several_tables_says_which_are_measured():
    h100, h200 = selection("predicted", target="h100"), selection("measured", "2026-11-21")
    digest = selection_hash(h100, h200)
    mixed = wheel_version("0.1.0", h100, h200)
    assert mixed == f"0.1.0+h100.h200.1.measured.20261121.h200.h{digest}"
    assert str(Version(mixed)) == mixed
    assert decode(WheelVersion, mixed) == mixed
    later = replace(selection("measured", "2026-11-22"), target="h100")
    assert wheel_version("0.1.0", later, h200).startswith("0.1.0+h100.h200.2.measured.20261122.h")
    assert wheel_version("0.1.0", h100, replace(h200, provenance="predicted")).startswith(
        "0.1.0+h100.h200.0.predicted.h"
    )
    assert wheel_version("1", replace(h100, target="thor"), replace(h100, target="thor_6sm")).startswith(
        "1+thor.thor.6sm.0.predicted.h"
    )


def test_more_measured_tables_sort_above_fewer_and_then_the_later():
    def pair(first, second):
        return replace(first, target="h100"), replace(second, target="h200")

    ascending = [
        pair(selection("predicted"), selection("predicted")),
        pair(selection("predicted"), selection("measured", "2026-12-31")),
        pair(selection("measured", "2027-01-01"), selection("predicted")),
        pair(selection("measured", "2026-01-01"), selection("measured", "2026-01-02")),
        pair(selection("measured", "2026-01-03"), selection("measured", "2026-01-01")),
    ]
    for record in ("a", "b", "c"):  # whatever the hash
        versions = [Version(wheel_version("1", *(replace(x, record=record) for x in two))) for two in ascending]
        assert all(low < high for low, high in pairwise(versions))


def test_no_two_selections_have_one_version():
    (section,) = SELECTION.table.sections
    column = replace(section.grid.columns[0], m_edges=(2,))
    changed = replace(section, grid=replace(section.grid, columns=(column,)))
    others = [
        SELECTION,
        replace(SELECTION, record="other"),
        replace(SELECTION, kernels=SELECTION.kernels[:1]),
        replace(SELECTION, table=replace(SELECTION.table, sections=(changed,))),
        replace(SELECTION, provenance="predicted"),
    ]
    assert len({wheel_version("1", x) for x in others}) == len(others)
    assert wheel_version("1", SELECTION) == wheel_version("1", replace(SELECTION))
    assert selection_hash(SELECTION, SELECTION) != selection_hash(SELECTION)


@pytest.mark.parametrize(
    ("counts", "word"),
    [((1649, 6919), "0.predicted"), ((0, 12), "0.predicted"), ((6, 6), "0.predicted"), ((7, 6), "1.measured.20261121")],
)
def test_a_version_says_measured_where_most_of_what_the_table_was_made_for_is(counts, word):
    chosen = selection("measured", "2026-11-21")
    found = Coverage(*counts, "bf16_kk m1 n8 k8", {}, {})
    digest = selection_hash(chosen)
    assert wheel_version("1", chosen, coverages=[found]) == f"1+h200.{word}.h{digest}"
    told = replace(chosen, coverage=found)
    assert wheel_version("1", told) == f"1+h200.{word}.h{selection_hash(told)}"


def test_what_the_general_kernel_answers_is_not_measured():
    found = Coverage(3, 0, "", {"n 7 is not a multiple of 8": 3}, {})
    assert ".0.predicted.h" in wheel_version("1", selection("measured", "2026-11-21"), coverages=[found])


@pytest.mark.parametrize("date", ["", "today", "2026-1-1", "\uff12026-11-21", "20261121extra"])
def test_a_date_that_is_none_counts_as_the_earliest(date):
    assert ".measured.0.h" in wheel_version("1", selection("measured", date))
