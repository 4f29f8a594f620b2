import pytest

from aot import errors
from aot.errors import AotError

CODES = {
    "AotError": 1,
    "ShapeFileError": 3,
    "TargetError": 4,
    "CandidateError": 5,
    "CompileError": 6,
    "DeviceError": 7,
    "StoreError": 8,
    "SelectionError": 9,
    "ManifestError": 10,
    "PackageError": 11,
    "VerificationError": 12,
    "RemoteError": 13,
    "DependencyError": 14,
}
"""Users' scripts rely on them: a code is never given to another error. 2 is click's, for usage."""


def test_each_error_has_its_exit_code():
    found = {name: kind.exit_code for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert found == CODES


@pytest.mark.parametrize("name", CODES)
def test_every_error_is_one_of_ours(name):
    assert issubclass(getattr(errors, name), AotError)
