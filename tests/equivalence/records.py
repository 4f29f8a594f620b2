"""What the committed records say of the kernels that were executed."""

from functools import cache

from aot.core.execution import executions_path, read_executions

AGAIN = {
    "thor": "python -m aot emulate --target thor --record",
    "h200": "python -m aot emulate --target h200 --modes random --max-instructions 20000 --record --unrecorded",
}
"""What makes the records: that of an H200 has 966 kernels under one schedule: more than an hour of one core."""


@cache
def record_of(target):
    return {x.kernel: x for x in read_executions(executions_path(target), target)}


def check_ptx(target, kernel):
    """Hold the hash of a kernel's PTX against the record."""
    recorded = record_of(target)[kernel.name].ptx_sha256
    assert kernel.ptx_sha256 == recorded, f"{kernel.name} is another than the record's: {AGAIN[target]}"
