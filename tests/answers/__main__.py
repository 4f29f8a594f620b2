"""Ask the installed libraries, and keep what they say: `python -m tests.answers`."""

import gzip
import json

from tests.answers import ASKED, HERE, installed

for name, ask in ASKED.items():
    text = json.dumps({"versions": installed(), "answers": ask()}, separators=(",", ":"))
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
