"""The software bill of materials of a wheel, as CycloneDX writes it: the same bytes for the same wheel."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from cyclonedx.model.component import Component as Entry
    from cyclonedx.model.license import License
    from packageurl import PackageURL

    from aot.package.contents import Component

NAMESPACE = uuid.UUID("9c170f2c-e7f6-4472-b750-f3a45ab4ae60")
"""Of the serial numbers, which are made of the wheels' hashes. Source: drawn at random, once."""
INDENT = 2


def _purl(name: str, version: str, subpath: str = "") -> PackageURL:
    from packageurl import PackageURL

    return PackageURL("pypi", None, name, version, None, subpath or None)


def _licences(expression: str) -> list[License]:
    from cyclonedx.contrib.license.factories import LicenseFactory

    return [LicenseFactory().make_from_string(expression)] if expression else []


def _entry(component: Component) -> Entry:
    """Make the entry of what is inside a wheel."""
    from cyclonedx.model.component import Component as Entry

    is_part = component.name == "glibc"  # the compiler's package has that library's sources with it
    purl = _purl(component.distribution, component.version, "lib/libc/glibc" if is_part else "")
    return Entry(
        name=component.name if is_part else component.distribution,
        version=component.version,
        bom_ref=str(purl),
        purl=purl,
        description=component.what,
        licenses=_licences(component.licence),
    )


def requirement(name: str, version: str) -> Entry:
    """Make the entry of a package that is not inside, but installed with a wheel."""
    from cyclonedx.model.component import Component as Entry

    purl = _purl(name, version)
    return Entry(name=name, version=version, bom_ref=str(purl), purl=purl)


def inside(found: Iterable[Component]) -> list[Entry]:
    """Make the entries of what is inside a wheel."""
    return [_entry(x) for x in found]


def bill(name: str, version: str, content: bytes, licence: str, entries: Iterable[Entry], date: datetime) -> str:
    """Write the bill of a wheel as JSON of CycloneDX 1.6.

    Args:
        name: the wheel's distribution.
        version: the wheel's.
        content: the wheel's bytes, of which the hash and the serial number are made.
        licence: the wheel's, as an SPDX expression.
        entries: what is inside, or installed with it.
        date: of the commit that it was built from.
    """
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component as Entry
    from cyclonedx.model.component import ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    digest = hashlib.sha256(content).hexdigest()
    purl = _purl(name, version)
    root = Entry(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=_licences(licence),
    )
    found = list(entries)
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, digest),
        metadata=BomMetaData(component=root, timestamp=date),
        components=found,
    )
    bom.register_dependency(root, found)
    return f"{JsonV1Dot6(bom).output_as_string(indent=INDENT)}\n"
