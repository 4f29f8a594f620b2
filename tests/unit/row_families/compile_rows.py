"""Compiles row kernels for a target, in a process of its own: CuTe DSL reads the architecture when it is imported.

Called with a target, a folder, and pairs of a tag and a candidate's name; writes NAME.o of each.
"""

import os
import sys

from aot.core.row_candidate import RowKernelKey
from aot.core.row_operation import RowOperation
from aot.core.target import load_target
from aot.row_families import row_families


def candidate_of(operation, name):
    """Give the candidate of a name."""
    return next(x for family in row_families().values() for x in family.candidates(operation) if x.name == name)


def main(target_name, folder, *pairs):
    target = load_target(target_name)
    os.environ["CUTE_DSL_ARCH"] = target.arch
    from cutlass import cute

    for tag, name in zip(pairs[::2], pairs[1::2], strict=True):
        key = RowKernelKey(RowOperation(tag), candidate_of(RowOperation(tag), name))
        entry = row_families()[key.candidate.family].entry(key.candidate, key.operation)
        host = f"llvm -mtriple={target.host_triple} -mcpu={target.host_cpu}"
        options = f"--gpu-arch {target.arch} --host-target '{host}'"
        compiled = cute.compile(entry.function, *entry.arguments, options=options)
        compiled.export_to_c(file_path=folder, file_name=key.name, function_prefix=key.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
