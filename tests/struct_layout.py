"""Compares the structs that Python states for ctypes with those of the C header, through the C compiler."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

INCLUDE = Path(__file__).parents[1] / "templates" / "include"


def layout_of_ctypes(struct):
    """Return the size of a ctypes struct, and the name, offset and size of each field."""
    fields = [(name, getattr(struct, name).offset, getattr(struct, name).size) for name, _ in struct._fields_]
    return ctypes.sizeof(struct), fields


def layout_of_header(struct, c_name, folder):
    """Return what the C compiler says of the struct of that name in aot_gemm.h, of the fields that Python has."""
    value = f"(({c_name}*)0)"
    lines = "".join(
        f'  printf("{name} %zu %zu\\n", offsetof({c_name}, {name}), sizeof({value}->{name}));\n'
        for name, _ in struct._fields_
    )
    includes = '#include <stdio.h>\n#include "aot_gemm.h"\n'
    (folder / "layout.c").write_text(f'{includes}int main(void) {{\n  printf("%zu\\n", sizeof({c_name}));\n{lines}}}\n')
    subprocess.run(["gcc", "-Werror", f"-I{INCLUDE}", "layout.c", "-o", "layout"], cwd=folder, check=True)
    done = subprocess.run([folder / "layout"], capture_output=True, text=True, check=True)
    size, *fields = done.stdout.splitlines()
    return int(size), [(name, int(offset), int(count)) for name, offset, count in map(str.split, fields)]
