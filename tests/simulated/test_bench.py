"""`aot bench` on simulated devices: receipts, their repetition on another machine, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from aot.bench.receipt import parse_receipt, read_receipt
from aot.core.errors import DeviceError, PackageError, ReceiptError, VerificationError
from aot.measure.dispatched import DispatchedLibrary
from aot.measure.protocol import PROTOCOL
from aot.measure.tuning_set import read_tuning_set
from tests.runtime.host import record_build
from tests.simulated import device as simulated
from tests.simulated.device import Faults, make_device
from tests.simulated.machines import H200

ROOT = Path(__file__).parents[2]
SIZES = ((8, 136, 72), (96, 264, 40))
MODULE = "aot_gemm"

pytestmark = pytest.mark.parametrize("machine", [H200], indirect=True, ids=["h200"])


@pytest.fixture(scope="module")
def wheel(tuning, tmp_path_factory):
    """Give the folder of an installed package whose library is the bundle's, over the simulated driver."""
    folder = tmp_path_factory.mktemp("installed") / MODULE
    folder.mkdir()
    shutil.copyfile(tuning.directory / "kernels.so", folder / f"lib{MODULE}.so.1")
    (folder / "manifest.json").write_text(json.dumps({"package": "aot-gemm", "tables": [{"target": "h200"}]}))
    record_build(folder)
    return folder


@pytest.fixture(scope="module")
def cublas(driver):
    library = driver.parent / "libcublas.so.13"
    return simulated.compile_shared([simulated.HERE / "cublas.cc"], library, H200.target, includes=[simulated.HERE])


def fallback_of(tuning):
    """Return the kernel that answers every product of a bundle's library, whose table has no other."""
    (name,) = (x.name for x in read_tuning_set(tuning.directory).kernels if x.is_fallback)
    return name


class Machine:
    """A device on which the wheel's product takes `wheel_us` and cuBLAS's `cublas_us`."""

    def __init__(self, folder, driver, tuning, wheel_us, cublas_us, noise=0.01):
        self.device = make_device(folder, driver, H200, tuning, integrated=False)
        own = {fallback_of(tuning): wheel_us, "cublas": cublas_us}
        shapes = [x for x in tuning.set.problems if (x.m, x.n, x.k) in SIZES]
        self.device.times = {(name, x): us for name, us in own.items() for x in shapes}
        self.device.describe(noise=noise)
        self.driver = driver

    def bench(self, *words, code=0):
        environment = {"AOT_SIMULATED_DEVICE": str(self.device.file), "LD_LIBRARY_PATH": str(self.driver.parent)}
        environment |= {"PATH": self.device.environment["PATH"], "PYTHONPATH": ":".join([str(ROOT), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-m", "aot", "bench", *map(str, words)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done


@pytest.fixture
def here(tmp_path, driver, tuning, cublas):
    return Machine(tmp_path / "here", driver, tuning, wheel_us=20.0, cublas_us=30.0)


def sizes():
    return [word for m, n, k in SIZES for word in ("--size", f"{m}x{n}x{k}")]


@pytest.mark.walk
def test_a_receipt_has_the_times_of_both_and_is_repeated_on_another_machine(here, wheel, tmp_path, driver, tuning):
    path = tmp_path / "receipt.json"
    done = here.bench(wheel, "--receipt", path, "--library", "cublas", *sizes())
    assert "library / wheel, by rounds" in done.stdout
    receipt = read_receipt(path)
    assert [(x.problem.m, x.problem.n, x.problem.k) for x in receipt.products] == list(SIZES)
    for product in receipt.products:
        assert product.kernel == fallback_of(tuning)
        assert product.library == "cuBLAS 13.2.1"
        assert median(product.wheel_us) == pytest.approx(20.0, rel=0.02)
        assert median(product.library_us) == pytest.approx(30.0, rel=0.02)
        assert len(product.wheel_us) == len(product.library_us) == 7
    library = DispatchedLibrary(wheel / f"lib{MODULE}.so.1")
    assert (receipt.wheel.version, receipt.wheel.table) == (library.version, "h200")
    assert len(receipt.wheel.choices_sha256) == 64
    conditions = receipt.machine.conditions
    assert (conditions.device, conditions.num_sms, conditions.protocol) == ("NVIDIA H200", 132, PROTOCOL)
    assert (conditions.power_mode, conditions.sm_clock_mhz) == ("700 W", 1980)
    assert receipt.machine.sm_clock_mhz_after == 1980
    assert conditions.driver == "580.65.06 (CUDA 13.0)"

    there = Machine(tmp_path / "there", driver, tuning, wheel_us=25.0, cublas_us=26.0)
    there.device._lines[0] = "name NVIDIA H200 NVL"
    there.device.describe()
    done = there.bench(wheel, "--repeat", path, "--library", "cublas", "--json")
    found = json.loads(done.stdout)
    assert len(found["rows"]) == len(found["beyond_noise"]) == len(SIZES)
    for row in found["rows"]:
        assert row["speedup_then"]["median"] == pytest.approx(1.5, rel=0.03)
        assert row["speedup_now"]["median"] == pytest.approx(1.04, rel=0.03)
        assert row["wheel_us_is_apart"]
    (difference,) = (x for x in found["differences"] if x["what"] == "device")
    assert (difference["then"], difference["now"]) == ("NVIDIA H200", "NVIDIA H200 NVL")
    assert not [x for x in found["differences"] if "sha256" in x["what"]]

    assert not [x for x in found["differences"] if x["what"] == "wheel's choices_sha256"]

    again = here.bench(wheel, "--repeat", path, "--library", "cublas")
    assert f"0 of {len(SIZES)} ratios differ by more than the noise of their rounds" in again.stdout
    assert "wheel, machine and library are the same" in again.stdout


@pytest.mark.walk
def test_products_are_drawn_from_a_shape_set(here, wheel, tmp_path):
    path, shapes = tmp_path / "receipt.json", tmp_path / "shapes.toml"
    shapes.write_text(
        'version = 1\noperations = ["bf16_kk"]\nm = [8, 96]\n[[model]]\nname = "x"\n'
        'weights = [{ name = "y", n = 136, k = 72 }]\n'
    )
    words = ["--library", "cublas", "--shapes", shapes, "--limit", 1, "--seed", 3]
    done = here.bench(wheel, "--receipt", path, *words)
    assert done.stdout.splitlines()[-3].split()[:2] == ["operation", "products"]
    assert done.stdout.splitlines()[-1].split()[:2] == ["bf16_kk", "1"]
    assert len(read_receipt(path).products) == 1
    done = here.bench(wheel, *words, "--operations", "bf16_kk,tf32_kk", code=DeviceError.exit_code)
    assert "has no kernels of tf32_kk; name those that it has with --operations" in done.stderr
    done = here.bench(wheel, "--size", "8x136x72", *words, code=2)
    assert "--size means nothing with --shapes" in done.stderr


def test_without_a_library_the_wheel_alone_is_timed(here, wheel, tmp_path):
    path = tmp_path / "receipt.json"
    here.bench(wheel, "--receipt", path, "--library", "none", "--size", "8x136x72")
    (product,) = read_receipt(path).products
    assert (product.library, product.library_us) == (None, ())


def test_a_wrong_result_of_the_wheel_gives_no_receipt(here, wheel, tmp_path, tuning):
    path = tmp_path / "receipt.json"
    here.device.describe(Faults({fallback_of(tuning): ("wrong", 96)}))
    done = here.bench(wheel, "--receipt", path, "--library", "cublas", *sizes(), code=VerificationError.exit_code)
    assert "wrong result on sampled rows" in done.stderr
    assert not path.exists()


def test_a_wrong_result_of_the_library_leaves_it_out_of_that_product(here, wheel, tmp_path):
    path = tmp_path / "receipt.json"
    here.device.describe(Faults({"cublas": ("wrong", 96)}))
    done = here.bench(wheel, "--receipt", path, "--library", "cublas", *sizes())
    assert "warning: bf16_kk m96 n264 k40 is timed without the library: wrong result on sampled rows" in done.stderr
    assert [x.library for x in read_receipt(path).products] == ["cuBLAS 13.2.1", None]


def test_a_damaged_wheel_is_not_measured(here, wheel, tmp_path):
    folder = shutil.copytree(wheel, tmp_path / MODULE)
    with (folder / f"lib{MODULE}.so.1").open("ab") as file:
        file.write(b"\0")
    done = here.bench(folder, "--receipt", tmp_path / "receipt.json", code=PackageError.exit_code)
    assert "_build.json says {'num_bytes'" in done.stderr


@pytest.mark.walk
def test_a_signed_receipt_is_checked_by_its_key(here, wheel, tmp_path):
    pytest.importorskip("cryptography", reason="NOT TESTED: signatures need cryptography, an extra")
    keys = {}
    for name in ("own", "other"):
        keys[name] = (tmp_path / f"{name}.pem", tmp_path / f"{name}.pub")
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", keys[name][0]], check=True)
        subprocess.run(["openssl", "pkey", "-in", keys[name][0], "-pubout", "-out", keys[name][1]], check=True)
    path = tmp_path / "receipt.json"
    words = ["--receipt", path, "--library", "none", "--size", "8x136x72", "--key", keys["own"][0]]
    here.bench(wheel, *words)
    signed = parse_receipt(path.read_bytes(), "receipt").signature
    done = here.bench("--check", path, "--signed-by", keys["own"][1])
    assert f"signed by the key {signed.public_key}" in done.stdout
    done = here.bench("--check", path, "--signed-by", keys["other"][1], code=ReceiptError.exit_code)
    assert f"is signed by the key {signed.public_key}; expected" in done.stderr
