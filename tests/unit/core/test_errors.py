import pytest

from aot.core import errors
from aot.core.errors import AotError, is_of_the_machine

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
    "OutputError": 15,
    "ResourceError": 16,
    "CoverageError": 17,
    "FamilyError": 19,
    "FleetError": 20,
    "OperationError": 18,
    "FormatError": 22,
    "CheckpointError": 23,
    "ReceiptError": 21,
}
"""Users' scripts rely on them: a code is never given to another error. 2 is click's, for usage."""


def test_each_error_has_its_exit_code():
    found = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert [name for name, kind in found.items() if not issubclass(kind, AotError)] == []
    assert {name: kind.exit_code for name, kind in found.items()} == CODES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DSLRuntimeError: cannot write x.o: No space left on device", True),
        ("LLVM ERROR: out of memory", True),
        ("std::bad_alloc", True),
        ("[Errno 122] Disk quota exceeded", True),
        ("Too many open files", True),
        ("shared memory exceeds the limit of 232448 bytes", False),
        ("unable to infer the layout of space X", False),
    ],
)
def test_what_the_machine_is_to_blame_for_is_told_by_the_text(text, expected):
    assert is_of_the_machine(text) is expected
