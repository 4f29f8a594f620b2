"""Write the golden files anew: python -m tests.golden.update. Read the difference before committing it."""

from __future__ import annotations

import shutil
from difflib import unified_diff
from pathlib import Path

from aot.kinds.rows.catalogue import row_operation
from aot.package.build import read_templates, write
from aot.package.choices import CHOICES_FILE
from aot.package.file_set import FileSet
from aot.package.render import render, runtime_file
from tests.golden.manifest import golden_manifest
from tests.runtime.rows import with_rows

ROWS = row_operation("bf16_rms_norm"), row_operation("bf16_e4m3_quantize")
"""What the golden manifest has of row operations for three files more, of which what differs is kept."""
OF_ALL_TEMPLATES = (CHOICES_FILE, runtime_file("aot_gemm"))
"""What changes with any copied file."""
EXPECTED = Path(__file__).with_name("expected")


def golden_files() -> FileSet:
    """Render the golden manifest; only what rendering changes, the plain files are copies."""
    templates = read_templates()
    copied = {path for path in templates if not path.endswith(".j2")}
    files = FileSet()
    for path, content in render(golden_manifest(), templates).items():
        if path not in copied and path not in OF_ALL_TEMPLATES:
            files.add(path, content)
    rows = render(with_rows(golden_manifest(), ROWS), templates)
    for path in ("src/kernels.cc", "src/table.cc", "README.md"):
        files.add(f"rows/{path}.diff", _difference(files[path], rows[path]))
    return files


def _difference(one: bytes, other: bytes) -> bytes:
    """List the lines that go and those that come; a line of @@ parts what is apart."""
    lines = unified_diff(one.decode().splitlines(), other.decode().splitlines(), n=0, lineterm="")
    return "".join(f"{x[:2] if x[0] == '@' else x}\n" for x in [*lines][2:]).encode()


if __name__ == "__main__":
    shutil.rmtree(EXPECTED, ignore_errors=True)
    write(golden_files(), EXPECTED)
