"""Real kernel objects, compiled without a GPU into the same store that `aot` uses, and manifests of them."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cache
from io import BytesIO

from elftools.elf.elffile import ELFFile

from aot.core.candidate import Accepted, KernelKey, gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Section
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import family_of
from aot.families.simt import FAMILY as FALLBACK
from aot.package.build import build_wheel
from aot.package.manifest import device_table, to_json
from aot.space.legality import check
from tests import native
from tests.compiling import compile_kernels
from tests.golden.manifest import golden_manifest, round_trip, row, with_table

BF16 = Operation.of(ElementType.BFLOAT16)
BIG = gemm_candidate("sm90_quack", 128, 256, 2, 1, "cooperative")
SMALL = gemm_candidate("sm90_quack", 64, 16, schedule="pingpong", swap_ab=True)
SPLIT = gemm_candidate("sm90_quack", 64, 64, schedule="pingpong", split_k=4, split_k_mode="serial")
EARLY = gemm_candidate("sm90_prefetch_b", 64, 16, schedule="pingpong", swap_ab=True)
EARLY_SPLIT = gemm_candidate("sm90_prefetch_b", 64, 64, schedule="pingpong", split_k=4, split_k_mode="serial")
_CUDA = 190
_KPARAM_INFO = 0x17


def _candidates(target):
    (fallback,) = FALLBACK.candidates(BF16, target)
    if target.arch == "sm_90a":
        return [fallback, BIG, SMALL, EARLY, EARLY_SPLIT, SPLIT]
    family = family_of(gemm_candidate("sm100_persistent", 128, 128))
    legal = (x for x in family.candidates(BF16, target) if isinstance(check(x, BF16, target), Accepted))
    return [fallback, next(legal)]


@cache
def compiled(target_name):
    """Compile a few kernels of a target; gives the manifest's entries and the objects by name."""
    target = load_target(target_name)
    keys = [KernelKey(BF16, x) for x in _candidates(target)]
    artifacts = compile_kernels(keys, target)
    return tuple(x.kernel for x in artifacts), {x.kernel.name: x.path for x in artifacts}


def small_manifest(target_name):
    """Make the manifest of a wheel of those kernels: the fallback first, then one ladder and one column of a grid."""
    kernels, objects = compiled(target_name)
    target = load_target(target_name)
    last = len(kernels) - 1
    ladder = Ladder(4096, 4096, (16, 256), (row(last, last, 9.0, 1), row(1, 1, 19.0, last)))
    section = Section(BF16, (ladder,), Grid((4096,), (4096,), (Column((64,), (1,)),)), 0)
    device = vars(device_table(target, DispatchTable((section,))))
    manifest = with_table(golden_manifest(), kernels, device.pop("table"), **device)
    manifest = replace(manifest, arch=target.arch, platform_tag=target.platform_tag)
    return round_trip(manifest), objects


def small_wheel(target_name):
    """Build the wheel of that manifest, once for all tests and for as long as nothing changes that it is built of."""
    manifest, objects = small_manifest(target_name)
    root = native.ROOT
    built_of = [*(root / "aot").rglob("*.py"), *(x for x in (root / "templates").rglob("*") if x.is_file())]
    parts = [
        native.digest(root, [*built_of, root / "constraints.txt", root / "LICENSE"]),
        to_json(manifest),
        *(native.digest(path.parent, [path]) for _, path in sorted(objects.items())),
    ]
    folder = native.once(".wheel", parts, lambda path: build_wheel(manifest, objects, path, load_target(target_name)))
    (wheel,) = folder.iterdir()
    return wheel


def cubin(path):
    """Give the device code inside a kernel's object: from its header to the end of its last table."""
    content = path.read_bytes()
    content = content[content.find(b"\x7fELF", 4) :]
    header = ELFFile(BytesIO(content)).header
    assert header.e_machine in {"EM_CUDA", _CUDA}
    tables = [(header[f"e_{x}off"], header[f"e_{x}num"] * header[f"e_{x}entsize"]) for x in ("sh", "ph")]
    return content[: max(start + size for start, size in tables)]


def parameter_sizes(path, *, of_places=False):
    """Read the sizes in bytes of a kernel's parameters, in order, from the cubin inside its object.

    Where there are several kernels, of the one that has most: a GEMM has more than what clears or reduces for it. What
    writes the places of groups does not count, as they are its parameters; `of_places` asks for that one.
    """
    elf = ELFFile(BytesIO(cubin(path)))
    found = []
    for section in elf.iter_sections():
        sizes = {}
        if ("write_places" in section.name) != of_places:
            continue
        data = section.data() if section.name.startswith(".nv.info.") else b""
        offset = 0
        while offset + 4 <= len(data):
            kind, attribute, size = struct.unpack_from("<BBH", data, offset)
            if kind == 4 and attribute == _KPARAM_INFO:
                _, ordinal, _, flags = struct.unpack_from("<IHHI", data, offset + 4)
                sizes[ordinal] = flags >> 18
            offset += 4 + (size if kind == 4 else 0)
        found.append([sizes[ordinal] for ordinal in sorted(sizes)])
    return max(found, key=len)
