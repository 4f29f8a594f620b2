"""The family `exported_gemm`: kernels that somebody else exported from CuTe DSL, as objects and headers in a folder.

The environment variable EXPORTED_KERNELS names the folder. Its `kernels.toml` says of each kernel what neither its
object nor its header tells:

    [[kernel]]
    object = "their_gemm.o"   # what `export_to_c` wrote, for the target's host and architecture
    header = "their_gemm.h"   # beside it; D = A @ B^T, of rows that are contiguous, and a stream
    ptx = "their_gemm.ptx"    # may be left out: without it the interpreter does not execute the kernel
    target = "thor"           # whose GPU and host it is for
    type = "bf16"             # or fp16
    threads = 128             # of a block
    smem_bytes = 0            # dynamic shared memory of a block
    tile = [1, 8]             # rows and columns of D that a block computes, for the cost model

A candidate is named by its object's hash, so that another object is another kernel. The kernels stay where they are: of
this package nothing has to be changed or installed anew.
"""

import hashlib
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from aot.compile.exported import Exported
from aot.core.candidate import Candidate, Reason, Rejected, Resources
from aot.core.constraints import Grammar
from aot.core.errors import CompileError
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import Layout, Operation
from aot.core.target import Target
from aot.core.types import BF16, FP16
from aot.families import Defaults

FOLDER = "EXPORTED_KERNELS"
"""The environment variable that names the folder."""
KEYS = {"object", "header", "target", "type", "threads", "smem_bytes", "tile"}


@dataclass(frozen=True)
class ExportedKnobs(Knobs):
    """Which kernel it is."""

    object: Annotated[str, Grammar(r"[0-9a-f]{12}", "12 digits of a SHA-256")]
    """The first 12 digits of its object's SHA-256."""


def kernels() -> dict[str, dict[str, Any]]:
    """Read `kernels.toml`: each kernel by its object's hash.

    Raises:
        CompileError: a kernel lacks a key, or a file of it is missing.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return {}
    path = Path(folder, "kernels.toml")
    found = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("kernel", []):
        missing = sorted(KEYS - entry.keys())
        files = [path.parent / entry[x] for x in ("object", "header", "ptx") if x in entry]
        absent = [x.name for x in files if not x.is_file()]
        if missing or absent:
            raise CompileError(
                f"{path}: a kernel lacks {', '.join(missing + absent)}; expected {', '.join(sorted(KEYS))}"
            )
        found[hashlib.sha256(files[0].read_bytes()).hexdigest()[:12]] = entry | {"folder": path.parent}
    return found


def _kernel(candidate: Candidate) -> dict[str, Any]:
    """Return what the folder says of a kernel.

    Raises:
        CompileError: it is not there.
    """
    found = kernels().get(ExportedKnobs.of(candidate).object)
    if found is None:
        raise CompileError(_absent(candidate))
    return found


def _absent(candidate: Candidate) -> str:
    where = os.environ.get(FOLDER) or "any folder"
    return f"{candidate.name}: its object is not in {where}; set {FOLDER} to the folder that has it"


class ExportedGemm(Defaults):
    """The family."""

    name = "exported_gemm"
    knobs = ExportedKnobs
    compilers = ("ziglang",)
    types = (BF16, FP16)
    layouts = (Layout.KK,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate what the folder has."""
        del operation, target
        for digest in kernels():
            yield Candidate(self.name, ExportedKnobs(digest))

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Refuse kernels of another device or type, and those that are not there."""
        kernel = kernels().get(ExportedKnobs.of(candidate).object)
        if kernel is None:
            return Rejected(Reason.COMBINATION, _absent(candidate))
        expected = {"target": target.name, "type": operation.types.a.tag}
        for key, value in expected.items():
            if kernel[key] != value:
                return Rejected(Reason.COMBINATION, f"{kernel['object']} is for {key} {kernel[key]}, got {value}")
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Tell what a block takes; a stage, for the cost model, is all of its shared memory or 8 elements a thread."""
        del operation, target
        kernel = _kernel(candidate)
        return Resources(kernel["smem_bytes"], kernel["smem_bytes"] or 32 * kernel["threads"], kernel["threads"], 1)

    def tiling(self, candidate: Candidate) -> GemmKnobs:
        """Describe a block's part of D to the cost model, in the words that it knows."""
        tile_m, tile_n = _kernel(candidate)["tile"]
        return GemmKnobs(tile_m, tile_n, use_tma_store=False)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Exported:
        """Take the object and its header."""
        del operation, target
        kernel = _kernel(candidate)
        folder = kernel["folder"]
        ptx = (folder / kernel["ptx"]).read_text(encoding="utf-8") if "ptx" in kernel else ""
        content, header = (folder / kernel["object"]).read_bytes(), (folder / kernel["header"]).read_text("utf-8")
        return Exported.of(content, header, kernel["threads"], kernel["smem_bytes"], ptx, kernel["object"])


FAMILY = ExportedGemm()
