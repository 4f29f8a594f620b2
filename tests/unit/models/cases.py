"""Configurations of every family, and the Linears that transformers 5.23.0 builds of them.

`python -m tests.unit.models.cases`, where transformers is installed, writes expected.json anew from its configurations.
"""

from __future__ import annotations

import json
from pathlib import Path

from aot.models.configuration import Configuration
from aot.models.linears import linears

FILE = Path(__file__).with_name("expected.json")
CASES = json.loads(FILE.read_text())


def configuration(name):
    return Configuration(CASES[name]["config"], f"{name}.json")


def listed(parts, ways=1):
    """List what is compared: names, n, k, which rows, whether there is a bias, and the count."""
    return sorted(
        [
            sorted(x.name.split(", ")),
            x.n,
            x.k,
            x.rows.is_batch,
            x.rows.is_expert,
            x.rows.num_tokens,
            x.has_bias,
            x.count,
        ]
        for x in linears(parts, ways=ways)
    )


def main():
    from aot.models.walk import parts_of

    texts = []
    for name, case in CASES.items():
        parts = parts_of(configuration(name))
        lines = ",\n".join(map(json.dumps, listed(parts)))
        texts.append(
            f'{json.dumps(name)}: {{\n"config": {json.dumps(case["config"])},\n"linears": [\n{lines}\n],\n'
            f'"halves": {json.dumps(listed(parts, 2))}\n}}'
        )
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n")


if __name__ == "__main__":
    main()
