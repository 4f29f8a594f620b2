"""Say which packs of kernels there are, which answers here, and which kernel a product gets: `python -m aot_gemm`."""

from __future__ import annotations

import argparse
import sys

from . import _files, errors
from ._version import __version__


def _lines_of_packs() -> list[str]:
    """Return a line for each pack: what it is, and whether it answers here, or why not."""
    from . import _packs

    packs = _packs.found()
    answers = [pack for pack, _ in _packs.answering()] if packs else []
    lines = []
    for pack in packs:
        status, reason = _packs.refusal(pack)
        for_what = "" if pack.answers != _packs.TUNED or len(answers) == 1 else " for tuned sizes"
        if pack not in answers:
            what = f"cannot: {reason}"
        elif status == 0:
            what = f"answers here{for_what}" + ("" if pack == answers[0] else ", for what the ones before it do not")
        else:
            what = f"answers queries{for_what}: {reason}"
        lines.append(f"{pack}: {what}")
    return lines or ["no pack of kernels is installed"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {_files.MODULE}", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="M N K", help="sizes of a product to explain")
    parser.add_argument("--dtype", default="bfloat16", help="element type of the product (default: bfloat16)")
    return parser


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = _parser()
    values = parser.parse_args()
    if len(values.sizes) not in (0, 3):
        parser.error(f"got {len(values.sizes)} sizes; expected m, n and k, or none")
    sys.stdout.write(f"{_files.MODULE.replace('_', '-')} {__version__}\n")
    try:
        own = [f"kernels in the package itself, {_files.DIRECTORY}"]
        sys.stdout.write("\n".join(own if _files.OWN.has_kernels else _lines_of_packs()) + "\n")
        if values.sizes:
            from ._explain import explain

            sys.stdout.write(f"{explain(*values.sizes, values.dtype)}\n")
    except errors.AotGemmError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
