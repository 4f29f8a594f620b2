"""A wheel that was deflated harder: the same members, smaller, and laid out as it is read."""

from __future__ import annotations

import random
import zipfile
from typing import TYPE_CHECKING

from aot.package.wheel_archive import deflate_harder, read_wheel

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS = {
    "aot_gemm/py.typed": b"",
    "aot_gemm/libaot_gemm.so.1": "".join(f"{random.Random(i).gauss(0, 9):.2f} of {i}, " for i in range(9000)).encode(),
    "aot_gemm-0.1.0.dist-info/RECORD": b"aot_gemm/py.typed,,0\n" * 50,
}


def _wheel(path: Path) -> Path:
    """Write an archive as scikit-build-core does."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in MEMBERS.items():
            member = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            member.external_attr = (0o100644 if name.endswith("RECORD") else 0o100755) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return path


def test_members_stay_and_the_wheel_is_smaller(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path / "x.whl")
    before = wheel.stat().st_size
    deflate_harder(wheel)
    assert wheel.stat().st_size < before
    assert read_wheel(wheel) == MEMBERS
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == list(MEMBERS)
        modes = [x.external_attr >> 16 for x in archive.infolist()]
        assert modes == [0o100755, 0o100755, 0o100644]


def test_equal_wheels_are_deflated_to_equal_bytes(tmp_path: Path) -> None:
    first, second = (_wheel(tmp_path / f"{x}.whl") for x in "ab")
    for wheel in (first, second, second):
        deflate_harder(wheel)
    assert first.read_bytes() == second.read_bytes()
