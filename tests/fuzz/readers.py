"""Damage the files of every format and read them: python -m tests.fuzz.readers --cases 100000

Each case gives a value or the format's own error, in one line of printable text. Prints a line for each reader, and the
seed of the first case that gave anything else; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from aot.checkpoint.layers import find_layers
from aot.checkpoint.packing import Request, pack_checkpoint
from aot.checkpoint.reading import LayerReader
from aot.checkpoint.shards import tasks_of
from aot.checkpoint.source import open_checkpoint
from aot.core.element import ElementType
from aot.core.errors import CheckpointError, ShapeFileError, StoreError
from aot.core.packed_folder import FILE, read_folder
from aot.core.shape_set import parse_shape_set
from aot.measure.store import open_store, read_store
from aot.models.configuration import read_configuration
from aot.models.families import parts_of
from aot.models.linears import linears
from aot.models.shape_text import Ladder, shape_text
from aot.select.selection import read_selection
from aot.select.times.record import from_store, read_record
from tests.checkpoints import quantised, write_folder
from tests.fuzz.mutations import anything, damaged_bytes, damaged_document
from tests.seeds import SEEDS, json_bytes, store_bytes
from tests.unit.models.cases import CASES

COMPRESSED = {"selection": ("s.json.gz", read_selection), "record": ("r.jsonl.gz", read_record)}
"""What is read compressed where its name says so."""


@dataclass
class Tally:
    """What the cases of one reader gave."""

    num_read: int = 0
    num_refused: int = 0
    others: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def damaged(random, name):
    """Return damaged content of a format, by its document or by its bytes."""
    seed = SEEDS[name]
    if random.randrange(3):
        content = seed.written(damaged_document(random, seed.document))
        return damaged_bytes(random, content) if random.randrange(8) == 0 else content
    return damaged_bytes(random, random.choice((seed.written(seed.document), *seed.committed())))


def read_document(random, name, folder):
    """Damage and read a file of a format of documents."""
    content = damaged(random, name)
    if name in COMPRESSED and random.randrange(10) == 0:
        path, reader = COMPRESSED[name]
        (folder / path).write_bytes(
            damaged_bytes(random, gzip.compress(content, 1)) if random.randrange(2) else gzip.compress(content, 1)
        )
        return reader(folder / path)
    return SEEDS[name].read(content, folder)


def damaged_store(random):
    """Return a store with other bytes, or with other values in its cells."""
    if random.randrange(3) == 0:
        return damaged_bytes(random, store_bytes())
    connection = sqlite3.connect(":memory:")
    connection.deserialize(store_bytes())
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for _ in range(random.choice((1, 1, 2, 3))):
        table = random.choice(tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        value = anything(random, 0)
        value = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        value = float(value) if isinstance(value, int) and abs(value) >= 2**63 else value
        cast = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        try:
            if random.randrange(8) == 0:
                connection.execute(f"DELETE FROM {table}")
            else:
                connection.execute(f"UPDATE OR REPLACE {table} SET {random.choice(columns)} = {cast}", (value,))
        except sqlite3.Error:
            pass  # not a value that the column can have
    connection.commit()
    content = connection.serialize()
    connection.close()
    return content


def use(store, record):
    """Ask a store everything."""
    for _, item in store.measurements():
        store.latest(item.problem), store.searches(item.problem), store.is_finished(item.problem)
        store.reference_times(1, item.problem)
    answers = (store.in_flight(), store.verified(), store.quarantined(), store.voided(), store.targets())
    return record, answers, store.conditions()


def read_damaged_store(random, _, folder):
    """Damage a store, import it, read all of it, and open it to write."""
    for name in ("r-wal", "r-shm", "r-journal"):
        (folder / name).unlink(missing_ok=True)
    content, refusals = damaged_store(random), []
    (folder / "r").write_bytes(content)
    for attempt in (
        lambda: from_store(folder / "r"),
        lambda: read_all(read_store, folder),
        lambda: read_all(open_store, folder),
    ):
        if (folder / "r").read_bytes() != content:
            raise AssertionError("the store was written")
        try:
            attempt()
        except StoreError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def read_all(opened, folder):
    with opened(folder / "r") as store:
        return use(store, None)


def read_damaged_configuration(random, _, folder):
    """Damage a model's configuration, and make a shape set of it."""
    document = random.choice(list(CASES.values()))["config"]
    content = json_bytes(damaged_document(random, document))
    if random.randrange(4) == 0:
        content = damaged_bytes(random, content)
    (folder / "config.json").write_bytes(content)
    config = read_configuration(folder)
    config.check_repeats()
    found = linears(parts_of(config), ways=random.choice((1, 1, 2)))
    element = config.element or ElementType.BFLOAT16
    return parse_shape_set(shape_text(config.model_type, config.where, found, Ladder((1,), (333,), (3,)), element), "x")


@cache
def checkpoint_files():
    """Return the files of a small checkpoint that is quantised in four ways, and the list of one that is packed."""
    wide, tensors = (np.arange(16 * 256, dtype=np.float32).reshape(16, 256) % 97 - 48) / 40, []
    for layout in ("gptq", "compressed", "nvfp4", "deepseek"):
        tensors += [(f"{layout}.proj.{end}", *rest) for end, *rest in quantised(layout, wide)[0]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "c"
        write_folder(folder, "gptq", tensors, num_files=2)
        pack_checkpoint(Request(folder, Path(name) / "o"), 1)
        found = {x.name: x.read_bytes() for x in folder.iterdir()}
        return {**found, FILE: (Path(name) / "o" / FILE).read_bytes()}


def with_damaged_header(random, content):
    """Damage a file of tensors by the document of its header, or by its bytes."""
    count = int.from_bytes(content[:8], "little")
    if random.randrange(4) == 0:
        return damaged_bytes(random, content)
    text = json_bytes(damaged_document(random, json.loads(content[8 : 8 + count])))
    return len(text).to_bytes(8, "little") + text + content[8 + count :]


def read_damaged_checkpoint(random, _, folder):
    """Damage a file of a checkpoint, and read all of it as `aot pack` does; or the list of a packed folder."""
    files = dict(checkpoint_files())
    damaged_name = random.choice(sorted(files))
    if damaged_name.endswith(".safetensors"):
        files[damaged_name] = with_damaged_header(random, files[damaged_name])
    else:
        content = json_bytes(damaged_document(random, json.loads(files[damaged_name])))
        files[damaged_name] = damaged_bytes(random, content) if random.randrange(4) == 0 else content
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if damaged_name == FILE:
        return read_folder(folder)
    found = find_layers(open_checkpoint(folder))
    for layer in found.layers:
        reader = LayerReader(layer)
        list(reader.qweight()), reader.scale()
    return [x.tensors for x in tasks_of(found, folder)[0].parts]


READERS = {
    **{name: (read_document, seed.error) for name, seed in SEEDS.items()},
    "store": (read_damaged_store, StoreError),
    "configuration": (read_damaged_configuration, ShapeFileError),
    "checkpoint": (read_damaged_checkpoint, CheckpointError),
}


def try_case(name, number, folder, tally):
    """Read one damaged file and note what became of it."""
    reader, expected = READERS[name]
    start = time.perf_counter()
    try:
        reader(Random(f"{name} {number}"), name, folder)
    except expected as error:
        text = str(error)
        tally.num_refused += 1
        if not text.isprintable() or len(text) > 3000:
            tally.others.append(f"case {number}: the message {text[:300]!r} of {len(text)} characters")
    except Exception:  # noqa: BLE001 - what is looked for
        tally.others.append(f"case {number}:\n{traceback.format_exc()}")
    else:
        tally.num_read += 1
    tally.slowest_s = max(tally.slowest_s, time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat one")
    parser.add_argument("--reader", choices=list(READERS), action="append")
    values = parser.parse_args()
    num_others = 0
    for name in values.reader or READERS:
        tally, start = Tally(), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for number in range(values.first, values.first + values.cases):
                try_case(name, number, Path(folder), tally)
        print(
            f"{name}: {values.cases:,} cases, {tally.num_read:,} read, {tally.num_refused:,} refused, "
            f"{len(tally.others)} anything else; slowest {tally.slowest_s * 1e3:.0f} ms, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        num_others += len(tally.others)
        print(*tally.others[:3], sep="\n", end="" if not tally.others else "\n", file=sys.stderr)
    return 1 if num_others else 0


if __name__ == "__main__":
    sys.exit(main())
