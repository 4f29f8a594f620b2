"""Run products through packs of kernels that one environment has, on a GPU beside torch, and say which pack answers.

    aot build --target h200 --pack --dist build/packs
    aot build --target h200 --selection few.json --pack --pack-name few-gemm --dist build/packs
    aot build --target h200 --operations e4m3_bf16_kk --pack --pack-name aot-gemm-sm90a-fp8 --dist build/packs
    python -m research.bench.packs build/packs --more aot-gemm-sm90a-fp8 --users few-gemm -o build/bench/packs.json

from the repository's root, with a Python that has torch. It makes a virtual environment over that Python's packages
for all, installs with neither index nor dependencies, and runs the products after each step: what the lock pins; packs
for other architectures and of more operations beside it; and the users' packs, which go first. A pack for another host
is given to pip, which has to refuse it. At last the packs for other architectures are alone.

Exit code 0 if every product that was computed is about as near to float64 as torch's, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import site
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot.core.whole_file import write_whole

ROOT = Path(__file__).parents[2]
TOLERANCE = 1.25
"""How many times torch's error a product's may be. An assumption: both round a sum once, in orders of their own."""
BATCHES, CALLS = 30, 100
"""Of calls that are timed on the host."""
FEW, MODEL = (4096, 4096), (4096, 11008)
PRODUCTS = (
    *((f"linear m {m} n {n} k {k}", "linear", "bfloat16", m, n, k) for n, k in (FEW, MODEL) for m in (1, 16, 64, 300)),
    ("linear of float16", "linear", "float16", 16, *FEW),
    ("linear with a bias", "bias", "bfloat16", 16, *FEW),
    ("matmul", "matmul", "bfloat16", 16, *FEW),
    ("linear of FP8 with factors of rows", "fp8", "bfloat16", 16, *FEW),
    ("linear of sizes that no table names", "linear", "bfloat16", 77, 1016, 520),
    ("linear of operands that are not aligned", "linear", "bfloat16", 5, 333, 77),
)
"""Name, what is called, element type, m, n and k."""


@dataclass(frozen=True)
class Product:
    """What one product gave."""

    name: str
    pack: str = ""
    """The distribution whose kernel computed it."""
    kernel: str = ""
    error: float = 0.0
    """The root of the mean square error against float64, over that of the result."""
    torch_error: float = 0.0
    host_us: float = 0.0
    """Median wall-clock time of one enqueued call."""
    refused: str = ""
    """The class and text of the error where it was not computed."""

    @property
    def is_right(self) -> bool:
        """Say whether it is about as near to float64 as torch's."""
        return bool(self.refused) or self.error <= TOLERANCE * self.torch_error


@dataclass(frozen=True)
class Environment:
    """What one environment has, says and computes."""

    packages: tuple[str, ...]
    said: str
    """By `python -m aot_gemm 16 4096 4096`."""
    products: tuple[Product, ...]


def _error(found: Any, exact: Any) -> float:
    import torch

    return float(torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact))


def _host_us(call: Callable[[], Any]) -> float:
    """Return the median time that one call takes the host, over batches that the GPU's queue holds."""
    import torch

    times = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter_ns() - start) / CALLS / 1000)
    return statistics.median(times)


def compute(name: str, call: str, dtype: str, m: int, n: int, k: int) -> Product:
    """Compute a product by the package and by torch, both on the GPU."""
    import aot_gemm  # type: ignore[import-not-found]  # of the environment, which is not this one
    import torch

    generator = torch.Generator("cuda").manual_seed(m * n + k)
    x, weight, bias = (
        torch.randn(*shape, device="cuda", generator=generator).to(getattr(torch, dtype))
        for shape in ((m, k), (n, k), (n,))
    )
    exact, by_torch = x.double() @ weight.double().t(), x @ weight.t()
    options: dict[str, Any] = {"layout": "kn"} if call == "matmul" else {"bias": call == "bias"}
    factors: dict[str, Any] = {}
    if call == "fp8":
        x, weight = (tensor.to(torch.float8_e4m3fn) for tensor in (x, weight))
        factors = {f"scale_{side}": torch.rand(rows, device="cuda") + 0.5 for side, rows in (("x", m), ("w", n))}
        exact = x.double() @ weight.double().t() * factors["scale_x"].double()[:, None] * factors["scale_w"].double()
        by_torch, dtype = exact.to(torch.bfloat16), "float8_e4m3fn"
    if call == "bias":
        exact, by_torch = exact + bias.double(), torch.nn.functional.linear(x, weight, bias)
    try:
        if call == "matmul":
            found = aot_gemm.matmul(x, weight.t().contiguous())
        else:
            found = aot_gemm.linear(x, weight, bias if call == "bias" else None, **factors)
        torch.cuda.synchronize()
        plan = aot_gemm.plan(m, n, k, dtype, **options)
    except aot_gemm.AotGemmError as error:
        return Product(name, refused=f"{type(error).__name__}: {error}")
    out, fixed = torch.empty_like(found), weight.t().contiguous()
    calls = {
        "matmul": lambda: aot_gemm.matmul(x, fixed, out=out),
        "bias": lambda: aot_gemm.linear(x, weight, bias, out=out),
        "fp8": lambda: aot_gemm.linear(x, weight, out=out, **factors),
        "linear": lambda: aot_gemm.linear(x, weight, out=out),
    }
    return Product(name, plan.pack, plan.kernel, _error(found, exact), _error(by_torch, exact), _host_us(calls[call]))


def in_environment(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the Python of an environment from the repository's root, and keep what it says."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([python, *words], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


def new_environment(folder: Path) -> Path:
    """Make an environment that also finds what this Python does, such as torch; return its Python."""
    venv.create(folder, system_site_packages=True)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (own / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def pip(python: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run pip for an environment, which needs none of its own."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def install(python: Path, *words: str | Path) -> None:
    """Install into an environment, from nothing but what is named."""
    done = pip(python, "install", "-q", "--no-index", "--no-deps", *words)
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(map(str, words))}: {done.stderr}")


def distribution_of(wheel: Path) -> str:
    """Return the name of a wheel's distribution."""
    return wheel.name.split("-")[0].replace("_", "-")


def is_for_this_host(wheel: Path) -> bool:
    """Say whether a wheel is for this machine's processor, or for any."""
    return wheel.stem.endswith((platform.machine(), "-any"))


def ask(python: Path, packages: tuple[str, ...], *, products: bool = True) -> Environment:
    """Have an environment say which packs it has, and compute the products."""
    said = in_environment(python, "-m", "aot_gemm", "16", "4096", "4096")
    print(f"{' + '.join(packages)}\n{said.stdout}{said.stderr}")
    if not products:
        return Environment(packages, said.stdout + said.stderr, ())
    done = in_environment(python, "-m", "research.bench.packs", "--products")
    if done.returncode:
        raise SystemExit(f"the products with {', '.join(packages)} failed:\n{done.stdout}{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Environment(packages, said.stdout + said.stderr, tuple(Product(**x) for x in found["products"]))


def run(folder: Path, lock: str, more: tuple[str, ...], users: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """Install the wheels of a folder step by step, and ask what answers after each."""
    wheels = {distribution_of(x): x for x in sorted(folder.glob("*.whl"))}
    pinned = [line.split("==")[0] for line in (folder / f"{lock}.lock").read_text().splitlines()]
    others = [x for x in wheels if x not in (*pinned, *more, *users)]
    here = [x for x in others if is_for_this_host(wheels[x])]
    python = new_environment(scratch)
    install(python, "--find-links", folder, "--require-hashes", "-r", folder / f"{lock}.lock")
    found = [ask(python, tuple(pinned))]
    for name in (*here, *more, *users):
        install(python, wheels[name])
        found.append(ask(python, (*found[-1].packages, name)))
    refused = {x: pip(python, "install", "--no-index", "--no-deps", wheels[x]).stderr for x in others if x not in here}
    pip(python, "uninstall", "-q", "-y", lock, *more, *users)
    alone = ask(python, (pinned[0], *here), products=False) if here else None
    return {
        "environments": [asdict(x) for x in found],
        "refused_by_pip": refused,
        "without_a_pack_for_this_gpu": None if alone is None else asdict(alone),
        "wheels": {name: path.name for name, path in wheels.items()},
        "is_right": all(x.is_right for environment in found for x in environment.products),
    }


def summary(found: dict[str, Any]) -> str:
    """Say in lines which pack computed what in each environment."""
    lines = []
    for environment in found["environments"]:
        lines.append(" + ".join(environment["packages"]))
        for values in environment["products"]:
            x = Product(**values)
            what = (
                x.refused[:110]
                if x.refused
                else f"{x.pack:20} {x.error:.2e} (torch {x.torch_error:.2e}) {x.host_us:5.1f} us {x.kernel}"
            )
            lines.append(f"  {'' if x.is_right else 'WRONG '}{x.name:42} {what}")
    lines += [f"pip refuses {name}: {text.strip()[:160]}" for name, text in found["refused_by_pip"].items()]
    return "\n".join(lines)


def _compute_all() -> None:
    import torch

    found = [asdict(compute(*x)) for x in PRODUCTS]
    print(json.dumps({"device": torch.cuda.get_device_name(), "products": found}))


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="wheels and locks that `aot build --pack` made")
    parser.add_argument("--lock", default="aot-gemm-sm90a", help="the pack whose lock is installed first")
    parser.add_argument("--more", nargs="*", default=[], help="packs of more operations for this GPU, to be added")
    parser.add_argument("--users", nargs="*", default=[], help="distributions that are users' packs, to be added last")
    parser.add_argument("-o", "--out", type=Path, help="where to write what was found")
    parser.add_argument("--products", action="store_true", help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.products:
        _compute_all()
        return 0
    if values.folder is None:
        parser.error("the folder with the wheels is missing")
    import torch

    with tempfile.TemporaryDirectory(prefix="aot-packs-") as scratch:
        found = run(values.folder, values.lock, tuple(values.more), tuple(values.users), Path(scratch))
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **found}
    print(summary(found))
    if values.out:
        write_whole(values.out, json.dumps(found, indent=1) + "\n")
    return 0 if found["is_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
