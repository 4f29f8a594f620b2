"""Shrink results of benches to what pages cite: conditions, sizes, medians and errors, a line for each row.

    python -m research.bench.compact RESULT.json...

rewrites files in place. Left out are kernels, spreads, ratios of times, and what a bench says of itself. A list of rows
becomes {"columns": [name, ...], "rows": [[value, ...], ...]}, in which `us.wheel` is `wheel` of a row's `us`.
`expanded` makes rows of it again.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

LEFT_OUT = re.compile(
    r"kernels?|description|num_launches|.*(spread|speedup|proposals|screened|rank|seconds)(_behind|_mixed)?"
)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Put the entries of a row's dictionaries beside the row's own, as `us.wheel`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if LEFT_OUT.fullmatch(name):
            continue
        if isinstance(value, dict) and value:
            found |= {f"{name}.{inner}": x for inner, x in value.items()}
        else:
            found[name] = value
    return {name: x for name, x in found.items() if not LEFT_OUT.fullmatch(name)}


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    return {"columns": columns, "rows": [[row.get(name) for name in columns] for row in flat]}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, dict) for x in value)


def compact(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what no page cites."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and "columns" not in value:
            found[name] = compact(value)
        elif not LEFT_OUT.fullmatch(name):
            found[name] = _table(value) if _is_rows(value) else value
    return found


def expanded(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with its rows as dictionaries again; one that was never shrunk is returned as it is."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and set(value) == {"columns", "rows"}:
            found[name] = [_row(value["columns"], row) for row in value["rows"]]
        else:
            found[name] = expanded(value) if isinstance(value, dict) else value
    return found


def _row(columns: list[str], values: list[Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, value in zip(columns, values, strict=True):
        name, _, inner = column.partition(".")
        if not inner:
            row[name] = value
        elif value is not None:
            row.setdefault(name, {})[inner] = value
    return row


def text(result: dict[str, Any]) -> str:
    """Return a shrunk result as JSON, a line for each of its entries and rows."""
    return f"{_object(result)}\n"


def _object(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"columns", "rows"}:
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value["rows"])
        return f'{{"columns": {json.dumps(value["columns"])}, "rows": [\n{rows}\n]}}'
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {_object(x)}" for name, x in value.items()) + "\n}"
    return json.dumps(value)


def read_result(path: Path) -> Any:
    """Read a result, shrunk or as a bench wrote it; what is no object is returned as it is."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return expanded(content) if isinstance(content, dict) else content


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    for path in parser.parse_args().results:
        shrunk = compact(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(text(shrunk), encoding="utf-8")
