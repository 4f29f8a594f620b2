"""A small valid document of every file format, how it is written, and the one function that reads it."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.bench import receipt
from aot.compile import artifact
from aot.core import captured, execution, shape_set, target
from aot.core.candidate import Candidate, KernelKey
from aot.core.constraints import (
    Arch,
    Count,
    Error,
    Extent,
    Index,
    KernelName,
    Label,
    Microseconds,
    Positive,
    TargetName,
    Text,
    Version,
)
from aot.core.errors import ManifestError, ReceiptError, SelectionError, ShapeFileError, StoreError, TargetError
from aot.core.json_text import plain_json
from aot.core.measurement import Conditions, LibraryTime, Measurement, Outcome, Status
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError, text_of
from aot.core.strict_toml import toml_string
from aot.core.tile_order import TileOrder
from aot.families import family_of
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.rows.candidate import RowKernelKey, row_candidate
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.dispatch import fallback_table
from aot.kinds.rows.tuned import TunedRowKernel
from aot.measure import tuning_set
from aot.measure.store import open_store
from aot.package import device_report
from aot.package.manifest import Manifest, from_json, to_json
from aot.report import searches
from aot.select import selection
from aot.select.coverage import Coverage
from aot.select.runs import Run
from aot.select.times import record
from aot.space import calibration
from aot.space.cost import DEFAULTS
from research.studies import census, prior
from tests.golden.manifest import BIG, FALLBACK, KK, SMALL, golden_manifest
from tests.runtime.rows import with_rows
from tests.unit.bench.receipts import receipt_of

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = golden_manifest()
ROWS = with_rows(GOLDEN, (row_operation("bf16_rms_norm"),))


@dataclass(frozen=True)
class Seed:
    """A format: `kind` is what its document is decoded to, `read` takes the content and a folder to write it to."""

    kind: Any
    document: Any
    written: Callable[[Any], bytes]
    read: Callable[[bytes, Path], Any]
    error: type[Exception] | tuple[type[Exception], ...]
    committed: Callable[[], tuple[bytes, ...]] = tuple
    """Gives what the repository has of the format, or a small part of it: read when it is asked for."""


def json_bytes(document):
    return json.dumps(document).encode()


def toml_value(value):
    """Write a value inline; what JSON has and TOML has not, null, as an empty list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_string(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return toml_string(value) if isinstance(value, str) else "[]" if value is None else repr(value)


def toml_bytes(document):
    if not isinstance(document, dict):
        return toml_value(document).encode(errors="surrogatepass")
    lines = (f"{toml_string(key)} = {toml_value(value)}\n" for key, value in document.items())
    return "".join(lines).encode(errors="surrogatepass")


def from_file(name, reader):
    """Read content from a file of a folder."""

    def read(content, folder):
        (folder / name).write_bytes(content)
        return reader(folder / name)

    return read


def from_text(parser):
    """Read the content of a file that the package ships, and that is read as text."""
    return lambda content, folder: parser(text_of(content), str(folder / "x.toml"))


def plain(value):
    return plain_json(value)


SELECTION = selection.Selection(
    selection.SELECTION_VERSION,
    "h200",
    "measured",
    "h200",
    GOLDEN.tables[0].conditions,
    GOLDEN.tables[0].regrets,
    (selection.Curve(KK, (selection.CurvePoint(4, 0.0125, 0.5, 0.01, 40_000, True),)),),
    GOLDEN.tables[0].heldout,
    tuple(kernel.key for kernel in GOLDEN.kernels),
    GOLDEN.tables[0].table,
    (selection.AgainstReference(KK, False, 3, 1, 1.025, 1, 0, 0.975, "bf16_kk m3 n4096 k4096"),),
    Coverage(2, 1, "bf16_kk m3 n4096 k4096", {"n 7 is not a multiple of 8": 1}, {"no kernels of fp16": 2}),
    (selection.Price(KK, 3, 1.25, 1.125, 1.5, "bf16_kk m3 n4096 k4096"),),
    "h100",
    selection.Stepped(
        (
            RowKernelKey(row_operation("bf16_silu_mul"), row_candidate("row_scalar", 256, 1, 1, 4)),
            RowKernelKey(row_operation("bf16_silu_mul"), row_candidate("row_registers", 128, 1, 8, 1)),
        ),
        fallback_table([row_operation("bf16_silu_mul")] * 2),
    ),
    (
        Run(
            {"--target": ("h200",), "--record": ("h200.jsonl.gz",), "--no-curve": ()},
            {"--max-kernels": ("24",)},
            {"aot/records/h200.jsonl.gz": "6" * 64},
            (KK,),
        ),
    ),
)


def with_mig(document):
    """Name the MIG slice that the golden conditions are not of."""
    return {**document, "conditions": [{**x, "mig": "1g.18gb"} for x in document["conditions"]]}


def written(manifest):
    return json.loads(to_json(manifest))


LOSSES = {"rows": [1, 16], "weight_bytes": [4194304, 67108864], "parts": [[0.1, -0.02], [0.0, 0.05]]}

GOLDEN_MANIFEST = {
    **written(GOLDEN),
    "tables": [{**with_mig(x), "captured": LOSSES} for x in written(GOLDEN)["tables"]],
}


@dataclass(frozen=True)
class HeaderKernel:
    """A kernel of a record: its candidate is of the operation's kind."""

    operation: Operation
    candidate: Candidate
    tile_order: TileOrder | None = None


@dataclass(frozen=True)
class RecordHeader:
    """A record's first line."""

    version: Version
    target: TargetName
    conditions: tuple[Conditions, ...]
    kernels: tuple[HeaderKernel, ...]


@dataclass(frozen=True)
class RecordRow:
    """A time, of a product."""

    kernel: Index
    m: Extent
    n: Extent
    k: Extent
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    num_rounds: Count
    relative_error: Error
    status: Text | None = None


@dataclass(frozen=True)
class LibraryLine:
    """A library's time of a product."""

    library: Label
    operation: Operation
    m: Extent
    n: Extent
    k: Extent
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    num_rounds: Positive


@dataclass(frozen=True)
class RecordDocument:
    """A record's lines; rows with the names that their values have by their place."""

    header: RecordHeader
    rows: tuple[RecordRow, ...]
    library_times: tuple[LibraryLine, ...]


def record_lines(document):
    if not isinstance(document, dict):
        return json_bytes(document)
    lines = [document.get("header")]
    for rows in (document.get("rows"), document.get("library_times")):
        lines += rows if isinstance(rows, list) else [rows]
    values = [lines[0], *(list(line.values()) if isinstance(line, dict) else line for line in lines[1:])]
    return "\n".join(map(json.dumps, values)).encode()


OPERATION = "bf16_kk"
ROW = {"kernel": 0, "m": 1, "n": 64, "k": 64, "median_us": 10.0, "low_us": 9.5, "high_us": 10.5, "num_rounds": 7}
LIBRARY_TIME = {key: value for key, value in ROW.items() if key != "kernel"}
RECORD = {
    "header": {
        "version": record.RECORD_VERSION,
        "target": "h200",
        "conditions": GOLDEN_MANIFEST["tables"][0]["conditions"],
        "kernels": [{"operation": OPERATION, "candidate": plain(x)} for x in (BIG, FALLBACK)],
    },
    "rows": [{**ROW, "relative_error": 1e-3}, {**ROW, "kernel": 1, "relative_error": 0, "status": "failed: wrong"}],
    "library_times": [{"library": "torch 2.11.0", "operation": OPERATION, **LIBRARY_TIME}],
}


@dataclass(frozen=True)
class TunedEntry:
    """A kernel of a bundle."""

    name: KernelName
    kind: Label
    kernel: TunedKernel


@dataclass(frozen=True)
class RowEntry(TunedEntry):
    """A kernel of an operation on rows."""

    kernel: TunedRowKernel


@dataclass(frozen=True)
class ProblemEntry:
    """A problem of a bundle, beside its sizes."""

    operation: Label
    sizes: dict[Label, Extent]
    kernels: tuple[Index, ...] | None
    predicted_us: tuple[tuple[Index, Microseconds], ...] | None


@dataclass(frozen=True)
class TunedKernels:
    """kernels.json."""

    version: Version
    target: TargetName
    arch: Arch
    kernels: tuple[TunedEntry, ...]


@dataclass(frozen=True)
class RowKernels(TunedKernels):
    """The same of operations on rows."""

    kernels: tuple[RowEntry, ...]


@dataclass(frozen=True)
class TunedProblems:
    """problems.json."""

    version: Version
    target: TargetName
    arch: Arch
    problems: tuple[ProblemEntry, ...]
    predicted_by: Text | None = None


@dataclass(frozen=True)
class TuningDocument:
    """The two files of a bundle."""

    kernels: TunedKernels
    problems: TunedProblems


def tuned(candidate):
    kernel = TunedKernel(KernelKey(KK, candidate), "0" * 64, is_fallback=family_of(candidate).is_fallback)
    return {"name": kernel.name, "kind": "gemm", "kernel": plain(kernel)}


HEAD = {"version": tuning_set.TUNING_SET_VERSION, "target": "h200", "arch": "sm_90a"}
SIZES = {"n": 64, "k": 64, "num_groups": 1}
TUNING = {
    "kernels": {**HEAD, "kernels": [tuned(BIG), tuned(FALLBACK)]},
    "problems": {
        **HEAD,
        "problems": [
            {"operation": OPERATION, "sizes": {**SIZES, "m": 1}, "kernels": [0], "predicted_us": [[0, 9.5]]},
            {"operation": OPERATION, "sizes": {**SIZES, "m": 2}, "kernels": None, "predicted_us": None},
        ],
        "predicted_by": "cost-model-v1",
    },
}


def tuning_files(document):
    if not isinstance(document, dict):
        return json_bytes([document, document])
    return json_bytes([document.get("kernels"), document.get("problems")])


def read_tuning(content, folder):
    """Read both files; content that is no list of two is what both hold."""
    try:
        kernels, problems = map(json_bytes, json.loads(content))
    except (ValueError, TypeError, RecursionError):
        kernels, problems = content, content
    (folder / tuning_set.KERNELS_FILE).write_bytes(kernels)
    (folder / tuning_set.PROBLEMS_FILE).write_bytes(problems)
    return tuning_set.read_tuning_set(folder)


@cache
def store_bytes():
    """Return a store with a row of every table, at rest, in the mode that a data base in memory can be made of."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "r")
        kernel = TunedKernel(KernelKey(KK, BIG), "0" * 64)
        failing = TunedKernel(KernelKey(KK, SMALL), "1" * 64)
        problem = Problem(KK, 1, 64, 64)
        with open_store(path) as store:
            run = store.add_run("h200", 1, replace(GOLDEN.tables[0].conditions[0], mig="1g.18gb"))
            store.add_clocks(run, 1500, 3000)
            number, other = store.kernel_id(kernel), store.kernel_id(failing)
            store.add_measurement(run, number, Measurement(kernel.key, problem, 9.0, 8.0, 10.0, 1, 1e-3))
            store.void(run, problem, "throttled")
            store.add_measurement(run, number, Measurement(kernel.key, problem, 10.0, 9.5, 10.5, 7, 1e-3))
            status = Status(Outcome.FAILED, "wrong")
            store.add_measurement(run, other, Measurement(failing.key, problem, 0.0, 0.0, 0.0, 0, 0.0, status))
            store.add_verified(run, number, 1e-3)
            store.quarantine(run, other, "wrong")
            store.add_reference_time(run, number, problem, 10.0)
            store.add_separator_time(run, 2.5)
            store.add_library_time(run, LibraryTime("torch 2.11.0", problem, 11.0, 10.5, 11.5, 7))
            store.finish(run, problem)
            store.add_search(run, problem, "model", 1, 1, "the budget is spent", 2.5)
            store.set_in_flight(run, number, "timing")
        content = path.read_bytes()
    # The versions of the file format for reading and writing: 1 is a rollback journal, 2 a log.
    # Source: SQLite database file format, section 1.3.
    return content[:18] + b"\x01\x01" + content[20:]


AOT = Path(target.__file__).parents[1]


def committed_text(path, *others):
    return lambda: ((AOT / path).read_bytes(), *others)


@cache
def committed_record(num_rows=20):
    """Return the first rows of a committed record, with their kernels."""
    lines = gzip.decompress((AOT / "records" / "h200_quack.jsonl.gz").read_bytes()).decode().splitlines()
    header, rows = json.loads(lines[0]), [json.loads(line) for line in lines[1 : num_rows + 1]]
    used = sorted({row[0] for row in rows})
    header = {**header, "conditions": header["conditions"][:2], "kernels": [header["kernels"][i] for i in used]}
    lines = [header, *([used.index(row[0]), *row[1:]] for row in rows)]
    return ("\n".join(map(json.dumps, lines)).encode(),)


@cache
def committed_selection():
    """Return the committed selection with one section of two short ladders and a grid of one column."""
    found = json.loads(gzip.decompress((AOT / "selections" / "h200.json.gz").read_bytes()))
    section = found["table"]["sections"][0]
    ladders = [{**x, "m_edges": x["m_edges"][:2], "rows": x["rows"][:2]} for x in section["ladders"][:2]]
    grid = {key: parts[:1] for key, parts in section["grid"].items()}
    grid["columns"] = [{key: steps and steps[:2] for key, steps in x.items()} for x in grid["columns"]]
    rows, named = [row for ladder in ladders for row in ladder["rows"]], grid["columns"][0]["kernels"]
    kernels = (row[key] for row in rows for key in ("kernel", "general", "runner_up"))
    used = sorted({section["fallback"], *named, *kernels})
    named[:] = map(used.index, named)
    for row in rows:
        row.update({key: used.index(row[key]) for key in ("kernel", "general", "runner_up")})
    section = {**section, "ladders": ladders, "grid": grid, "fallback": used.index(section["fallback"])}
    found |= {"kernels": [found["kernels"][i] for i in used], "table": {"sections": [section]}}
    found |= {key: found[key][:1] for key in ("conditions", "regrets", "heldout", "references")}
    return (json_bytes({**found, "curves": [{**x, "points": x["points"][:2]} for x in found["curves"][:1]]}),)


SPAN = {"least": 1.0, "middle": 1.5, "most": 2.0}
CENSUS_ROW = {
    "operation": "bf16_kk",
    "family": "sm100_tgv",
    "num_candidates": 3,
    "num_accepted": 2,
    "rejected": {"shared memory exceeded": 1},
    "num_compiled": 1,
    "failures": {"bf16_kk_x": "CompileError: why"},
    "object_bytes": SPAN,
    "smem_bytes": SPAN,
    "registers": SPAN,
    "tmem_columns": 0,
    "num_spilling": 0,
    "spill_bytes": 0,
    "cpu_s": None,
    "total_cpu_s": 1.5,
}
CENSUS = {
    "version": census.CENSUS_VERSION,
    "target": "thor",
    "arch": "sm_110a",
    "toolchain": {"nvidia-cutlass-dsl": "4.8.1"},
    "rows": [CENSUS_ROW],
    "on_rows": [{**CENSUS_ROW, "operation": "bf16_rotary", "family": "row_rotary"}],
}
DEVICE_REPORT = {
    "version": device_report.REPORT_VERSION,
    "wheel": "aot_gemm-0.1.0-py3-none-manylinux_2_28_aarch64.whl",
    "wheel_sha256": "0" * 64,
    "target": "thor",
    "conditions": GOLDEN_MANIFEST["tables"][0]["conditions"][0],
    "kernels": [
        plain(device_report.CheckedKernel("bf16_kk_x", 0.5)),
        {"name": "y", "relative_error": None, "fault": "z", "is_left": True},
    ],
    "record": [],
}
SEARCHES = {
    "version": searches.CURVE_VERSION,
    "target": "h200",
    "record": "h200",
    "points": [plain(searches.CurvePoint("model", 0.1, 0.1, 9.0, 1.5, 0.01, 0.02, 0.03, 0.9, 9, 1))],
}
MODEL = {"name": "x", "weights": [{"name": "qkv", "n": 64, "k": 64}], "m": [1, 16]}
SHAPES = {
    "version": shape_set.VERSION,
    "dtypes": ["bfloat16"],
    "layouts": ["kk"],
    "epilogues": ["none", "bias"],
    "m": [1, 8],
    "dropped": 3,
    "model": [
        {
            **MODEL,
            "description": "a model",
            "dtypes": ["float16"],
            "layouts": ["kn"],
            "epilogues": ["none"],
            "counts": [3, 4],
        },
        {"name": "y", "weights": [{"name": "up", "n": 8, "k": 8}, {"name": "down", "n": 16, "k": 8}]},
    ],
}
NAMED_SHAPES = {
    "version": shape_set.VERSION,
    "operations": ["bf16_kk_silu", "e4m3_bf16_kk"],
    "m": [1, 8],
    "model": [{**MODEL, "operations": ["int8_bf16_kk"], "counts": [3, 4]}, MODEL],
}
POINT = {"dtype": "bfloat16", "m": 64, "n": 64, "k": 64}
PUBLISHED = {
    "target": "thor",
    "clock": {"lowest_hz": 1e9, "highest_hz": 1.5e9, "source": "a data sheet"},
    "rate": [{"figure": "flops_per_s", "value": 1e14, "source": "a page"}],
    "source": [
        {
            "name": "x",
            "address": "y",
            "also": "z",
            "layout": "kk",
            "conditions": "none",
            "cold_l2": True,
            "point": [{**POINT, "us": [1.5, 2.5]}, {**POINT, "tflops": 7.5}],
        },
        {
            "name": "x of an operation",
            "address": "y",
            "also": "",
            "operation": "e4m3_fp16_kk",
            "conditions": "none",
            "cold_l2": False,
            "point": [{"m": 1, "n": 16, "k": 16, "us": [1.5]}],
        },
    ],
}
CALIBRATION = {"version": 1, "target": "h200", "source": "a test", "constants": plain(DEFAULTS)}

MISS_LOG = b"# aot_gemm misses 1\ndropped 3\ngrid bf16_kk 72 80 48x3 300x1\nunaligned fp16_kn 24 33 16x1\n"
"""A wheel's, which is read as a shape set."""


@dataclass(frozen=True)
class RowTuningDocument:
    """The two files of a bundle, of operations on rows."""

    kernels: RowKernels
    problems: TunedProblems


ON_ROWS = ROWS.row_kernels[1]
ROW_TUNING = {
    "kernels": {
        **HEAD,
        "kernels": [
            {
                "name": ON_ROWS.name,
                "kind": "rows",
                "kernel": plain(TunedRowKernel(ON_ROWS.key, "0" * 64, ON_ROWS.limits, False)),
            }
        ],
    },
    "problems": {
        **HEAD,
        "problems": [
            {
                "operation": "bf16_rms_norm",
                "sizes": {"rows": 16, "cols": 4096},
                "kernels": [0],
                "predicted_us": [[0, 3.5]],
            }
        ],
        "predicted_by": "cost-model-v1",
    },
}


RECEIPT = plain(replace(receipt_of(mig="1g.12gb"), signature=receipt.Signature("ab" * 32, "cd" * 64)))


def sealed_bytes(document):
    """Write a receipt with the hash of what it says, unless that was damaged, so that reading it looks at the rest."""
    if not isinstance(document, dict) or document.get("sha256") != RECEIPT["sha256"]:
        return json_bytes(document)
    content = json.dumps({**document, "sha256": None, "signature": None}, sort_keys=True, separators=(",", ":"))
    return json_bytes({**document, "sha256": hashlib.sha256(content.encode()).hexdigest()})


SEEDS = {
    "receipt": Seed(
        receipt.Receipt,
        RECEIPT,
        sealed_bytes,
        from_file("r.json", receipt.read_receipt),
        ReceiptError,
    ),
    "selection": Seed(
        selection.Selection,
        with_mig(plain(SELECTION)),
        json_bytes,
        from_file("s.json", selection.read_selection),
        SelectionError,
        committed_selection,
    ),
    "manifest": Seed(
        Manifest, GOLDEN_MANIFEST, json_bytes, lambda content, _: from_json(content, "m.json"), ManifestError
    ),
    "report of a device": Seed(
        device_report.DeviceReport,
        DEVICE_REPORT,
        json_bytes,
        from_file("r.json", device_report.read_report),
        StoreError,
    ),
    "record": Seed(
        RecordDocument, RECORD, record_lines, from_file("r.jsonl", record.read_record), StoreError, committed_record
    ),
    "tuning set": Seed(TuningDocument, TUNING, tuning_files, read_tuning, StoreError),
    "census": Seed(census.Census, CENSUS, json_bytes, from_file("c.json", census.read_census), StoreError),
    "searches": Seed(
        searches.Searches,
        SEARCHES,
        json_bytes,
        from_file("s.json", lambda path: searches.read_searches(path, "h200")),
        StoreError,
    ),
    "result": Seed(
        artifact.StoredResult,
        {"seconds": 1.5, "kernel": plain(GOLDEN.kernels[3])},
        json_bytes,
        from_file("result.json", artifact.read_result),
        DecodeError,
    ),
    "result of rows": Seed(
        artifact.StoredResult,
        {"seconds": 1.5, "kernel": plain(ROWS.row_kernels[1])},
        json_bytes,
        from_file("result.json", artifact.read_result),
        DecodeError,
    ),
    "executions": Seed(
        execution._Executions,
        {
            "version": execution.EXECUTIONS_VERSION,
            "target": "thor",
            "executions": [plain(GOLDEN.executions[0])],
        },
        json_bytes,
        from_file("thor.json", lambda path: execution.read_executions(path, "thor")),
        StoreError,
    ),
    "captured": Seed(
        captured.Captured,
        {
            "captured_version": captured.CAPTURED_VERSION,
            "target": "h200",
            "device": "NVIDIA H200",
            "library": "torch 2.11.0",
            "wheel": "0.1.0+h200",
            "date": "2026-11-28",
            "num_products": 390,
            "losses": LOSSES,
        },
        json_bytes,
        from_file("h200.json", lambda path: captured.read_captured(path, "h200")),
        StoreError,
    ),
    "tuning set of rows": Seed(RowTuningDocument, ROW_TUNING, tuning_files, read_tuning, StoreError),
    "manifest with rows": Seed(
        Manifest, written(ROWS), json_bytes, lambda content, _: from_json(content, "m.json"), ManifestError
    ),
    "failed result": Seed(
        artifact.StoredResult,
        {"seconds": 1.5, "failure": "CompileError: why"},
        json_bytes,
        from_file("result.json", artifact.read_result),
        DecodeError,
    ),
    "target": Seed(
        target.Target,
        plain(target.load_target("thor")),
        toml_bytes,
        from_text(target.parse_target),
        (TargetError, DecodeError),
        committed_text("targets/h200.toml"),
    ),
    "published times": Seed(
        prior.Published,
        PUBLISHED,
        toml_bytes,
        from_text(prior.parse_published),
        (TargetError, DecodeError),
        committed_text("../research/studies/published/thor.toml"),
    ),
    "calibration": Seed(
        calibration._Calibration,
        CALIBRATION,
        toml_bytes,
        from_file("c.toml", lambda path: calibration.read_calibration(path, "h200")),
        TargetError,
    ),
    "shape set": Seed(
        shape_set._ShapeSet,
        SHAPES,
        toml_bytes,
        from_file("x.toml", lambda path: shape_set.load_shape_set(str(path))),
        ShapeFileError,
        committed_text("shapes/transposed.toml", MISS_LOG),
    ),
    "shape set by names": Seed(
        shape_set._ShapeSet,
        NAMED_SHAPES,
        toml_bytes,
        from_file("x.toml", lambda path: shape_set.load_shape_set(str(path))),
        ShapeFileError,
    ),
}
