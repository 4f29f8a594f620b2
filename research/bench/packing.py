"""A checkpoint of some billions of weights, made up here, packed by `aot pack` on some cores, timed and checked.

    python -m research.bench.packing --layout gptq --layout nvfp4 --layout bf16:nvfp4 --cpus 8 -o packing.json

needs numpy, click, tqdm and taskset, and no GPU; of 8 billion weights in bfloat16 23 GB, of others 11 GB, in a folder
or in /dev/shm. The Linears are those of Llama 3.1 8B, of as many layers as have the weights asked for, with random
codes, and its embeddings in bfloat16, which are copied. The command has the cores that are asked for; what makes the
checkpoint and what watches have all. Seconds are the command's, from its start to its end. Memory is that of all its
processes: resident shares (Pss, of which what is mapped of files is a part), and what is private and of no file, both
sampled; where the system has no shares, what is mapped counts for each process. Of each kind of Linear of one layer
all is unpacked, and compared with what was written, which is taken out of its words here by itself, or rounded as the
toolchain states it. Exits with 1 where a bit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from aot.checkpoint.reading import wide_of
from aot.core.block_quantization import own_factor
from aot.core.element import ElementType
from aot.core.packed_folder import read_folder
from aot.core.safetensors_file import header_bytes, read_header
from aot.core.weight_packing import unpack
from aot.core.weight_rounding import rounded

HIDDEN, INNER, HEADS, VOCABULARY = 4096, 14336, 1024, 128256
"""Source: meta-llama/Llama-3.1-8B, config.json; the third is 8 heads for keys of 128."""
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HEADS, HIDDEN),
    "self_attn.v_proj": (HEADS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
OF_LAYER = sum(n * k for n, k in LINEARS.values())
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "bf16": {},
}
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight columns lies in a word, from the lowest bits on. Source: vLLM, quant_utils.awq_pack."""
LAYERS_A_FILE = 4
SAMPLE_S = 0.1


def tensors_of(layout: str, layer: int) -> dict[str, tuple[str, np.ndarray]]:
    """Return the type and the elements' bits of each tensor of a layer, the same at each call."""
    rng = np.random.default_rng(layer)
    found: dict[str, tuple[str, np.ndarray]] = {}
    for linear, (n, k) in LINEARS.items():
        name = f"model.layers.{layer}.{linear}."
        if layout in {"gptq", "awq"}:
            shape = (k // 8, n) if layout == "gptq" else (k, n // 8)
            found[name + "qweight"] = "I32", _random(rng, shape, np.uint32)
            zeros = (k // 128, n // 8)
            is_gptq = layout == "gptq"
            held = np.full(zeros, 0x77777777, np.uint32) if is_gptq else _random(rng, zeros, np.uint32)
            found[name + "qzeros"] = "I32", held
            found[name + "scales"] = "F16", _random(rng, (k // 128, n), np.uint16) & np.uint16(0x3BFF)
            if is_gptq:
                found[name + "g_idx"] = "I32", (np.arange(k) // 128).astype(np.uint32)
        elif layout == "nvfp4":
            found[name + "weight"] = "U8", _random(rng, (n, k // 2), np.uint8)
            found[name + "weight_scale"] = "F8_E4M3", _random(rng, (n, k // 16), np.uint8) % np.uint8(0x7F)
            found[name + "weight_scale_2"] = "F32", np.float32(2.0**-9).reshape(()).view(np.uint32)
        else:
            wide = rng.standard_normal((n, k), np.float32).view(np.uint32) >> np.uint32(16)
            found[name + "weight"] = "BF16", wide.astype(np.uint16)
    return found


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(rng.bytes(count), kind).reshape(shape)


def write_file(task: tuple[Path, str, tuple[int, ...]]) -> None:
    """Write a file of some layers; or, where there is none, of the embeddings."""
    path, layout, layers = task
    tensors = {name: x for layer in layers for name, x in tensors_of(layout, layer).items()}
    if not layers:
        rng = np.random.default_rng(0)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            wide = rng.standard_normal((VOCABULARY, HIDDEN), np.float32).view(np.uint32) >> np.uint32(16)
            tensors[name] = "BF16", wide.astype(np.uint16)
    with path.open("wb") as file:
        file.write(header_bytes((name, dtype, x.shape) for name, (dtype, x) in tensors.items()))
        for _, x in tensors.values():
            file.write(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)


def make(folder: Path, layout: str, count: int) -> int:
    """Write a checkpoint; return how many weights can be packed."""
    folder.mkdir()
    numbers = range(-(-count // OF_LAYER))
    runs = [tuple(numbers[i : i + LAYERS_A_FILE]) for i in range(0, len(numbers), LAYERS_A_FILE)]
    tasks = [(folder / f"model-{i:05}.safetensors", layout, run) for i, run in enumerate([(), *runs])]
    with get_context("spawn").Pool(min(len(tasks), os.cpu_count() or 1)) as pool:
        pool.map(write_file, tasks, 1)
    config: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": len(numbers)}
    if CONFIGURATIONS[layout]:
        config["quantization_config"] = CONFIGURATIONS[layout]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return OF_LAYER * len(numbers)


def _processes(root: int) -> list[int]:
    """Return a process and all that it has started."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for process in found:
        found += [x for x, parent in parents.items() if parent == process]
    return found


def _memory(root: int) -> tuple[int, int]:
    """Return bytes of a process and all that it started: resident, by shares if the system has them, and private."""
    resident = private = 0
    for process in _processes(root):
        with suppress(OSError):  # it has ended
            path = Path(f"/proc/{process}/smaps_rollup")
            if path.exists():
                held = dict(re.findall(r"^(\w+):\s+(\d+) kB", path.read_text(), re.MULTILINE))
                resident += int(held["Pss"]) * 1024
                private += int(held["Anonymous"]) * 1024
            else:
                pages = list(map(int, Path(f"/proc/{process}/statm").read_text().split()))
                resident += pages[1] * resource.getpagesize()
                private += (pages[1] - pages[2]) * resource.getpagesize()
    return resident, private


def run(checkpoint: Path, output: Path, form: str | None, cpus: int) -> dict[str, Any]:
    """Run the command on some cores; return how long it took and what it held.

    Raises:
        SystemExit: it failed.
    """
    cores = sorted(os.sched_getaffinity(0))[:cpus]
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "aot", "pack", str(checkpoint)]
    command += ["-o", str(output), "--json", *(["--format", form] if form else [])]
    most = (0, 0)
    start, before = time.monotonic(), os.times()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=said, stderr=log)
        while process.poll() is None:
            most = tuple(map(max, most, _memory(process.pid)))
            time.sleep(SAMPLE_S)
        seconds, after = time.monotonic() - start, os.times()
        said.seek(0)
        log.seek(0)
        if process.returncode:
            raise SystemExit(f"aot pack ended with {process.returncode}: {log.read().decode()[-2000:]}")
        document = json.loads(said.read())
    return {
        "cores": len(cores),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(sum(after[2:4]) - sum(before[2:4]), 2),
        "peak_resident_bytes": most[0],
        "peak_anonymous_bytes": most[1],
        "command": document,
    }


def expected_of(layout: str, tensors: dict[str, tuple[str, np.ndarray]], name: str) -> tuple[np.ndarray, ...]:
    """Take codes (n, k), factors and zero points out of a checkpoint's tensors."""
    prefix = f"{name}."
    held = {key.removeprefix(prefix): x for key, (_, x) in tensors.items() if key.startswith(prefix)}
    shifts = np.arange(8, dtype=np.uint32) * 4
    if layout == "gptq":
        codes = (held["qweight"].T[:, :, None] >> shifts) & 15
        return codes.reshape(len(codes), -1), held["scales"].T
    if layout == "awq":
        places = shifts[list(AWQ_PLACES)]
        codes, zeros = (
            ((held[x][:, :, None] >> places) & 15).reshape(len(held[x]), -1).T for x in ("qweight", "qzeros")
        )
        return codes, held["scales"].T, zeros
    halves = held["weight"]
    return np.stack((halves & 15, halves >> 4), 2).reshape(len(halves), -1), held["weight_scale"]


def check(layout: str, folder: Path, layer: int) -> dict[str, bool]:
    """Unpack the Linears of a layer; say of each whether it is what was written, bit for bit."""
    listed, found = read_folder(folder), {}
    stored = {name: x for file in listed.shards for name, x in read_header(folder / file).items()}
    tensors = tensors_of(layout, layer)
    for linear in LINEARS:
        name = f"model.layers.{layer}.{linear}"
        packed = listed.layers[name]
        if packed.form is None:
            raise SystemExit(f"{name} is {packed.format}, whose elements lie as torch has them; give another format")
        parts = unpack(packed.form, np.array(stored[f"{name}.qweight"].bits()), *packed.shape)
        if layout == "bf16":
            wide = wide_of(tensors[f"{name}.weight"][1], "BF16")
            own = own_factor(np.abs(wide).max()) if packed.form.is_nvfp4 else None
            again = rounded(packed.form, wide, ElementType.BFLOAT16, own).parts
            expected = tuple(x for x in (again.codes, again.factors, again.zeros) if x is not None)
        else:
            expected = expected_of(layout, tensors, name)
        got = [x for x in (parts.codes, parts.factors, parts.zeros) if x is not None]
        found[f"{packed.format} {linear}"] = all(map(np.array_equal, got, expected)) and len(got) == len(expected)
    return found


def measure(layout: str, form: str | None, folder: Path, values: argparse.Namespace) -> dict[str, Any]:
    """Make a checkpoint, pack it, compare a layer, and remove both."""
    source, output = folder / "checkpoint", folder / "packed"
    start = time.monotonic()
    count = make(source, layout, int(values.weights))
    made = time.monotonic() - start
    found = run(source, output, form, values.cpus)
    found |= {"weights": count, "seconds_to_make": round(made, 2), "checked": check(layout, output, values.layer)}
    size = found["command"]["bytes_after"] + found["command"]["bytes_before"]
    right = sum(found["checked"].values())
    print(
        f"{layout}{f' to {form}' if form else ''}: {count:,} weights in {found['seconds']:.1f} s of {found['cores']} "
        f"cores ({found['cpu_seconds']:.0f} s of processors), {found['peak_resident_bytes'] / 1e6:.0f} MB resident, "
        f"{found['peak_anonymous_bytes'] / 1e6:.0f} MB of no file; {size / 1e9:.1f} GB read and written; "
        f"{right} of {len(found['checked'])} Linears are bit for bit",
        flush=True,
    )
    for path in (source, output):
        shutil.rmtree(path)
    return found


def _folder(asked: Path | None) -> Path:
    """Return where to write: as asked, or where the most is free."""
    places = [asked] if asked else [Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108 - memory, if it has room
    best = max((x for x in places if x.is_dir()), key=lambda x: shutil.disk_usage(x).free)
    return Path(tempfile.mkdtemp(prefix="packing-", dir=best))


def main() -> None:
    """Measure each layout that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", action="append", required=True, help=f"{', '.join(CONFIGURATIONS)}, or bf16:FORMAT")
    parser.add_argument("--weights", type=float, default=8e9)
    parser.add_argument("--cpus", type=int, default=8)
    parser.add_argument("--layer", type=int, default=0, help="the one that is compared")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    values = parser.parse_args()
    folder = _folder(values.folder)
    document: dict[str, Any] = {
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "numpy": np.__version__,
        "folder": str(folder.parent),
        "runs": {},
    }
    try:
        for asked in values.layout:
            layout, _, form = asked.partition(":")
            document["runs"][asked] = measure(layout, form or None, folder, values)
            values.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder)
    if not all(all(x["checked"].values()) for x in document["runs"].values()):
        sys.exit(1)


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
