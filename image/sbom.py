"""The bill of materials of the image, as CycloneDX 1.5: what a scanner for known holes reads."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

Component = dict[str, Any]


def debian(control: str, package: Path) -> Component:
    """Describe a Debian package. control: its fields as `dpkg-deb --field` prints them."""
    fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", control, re.MULTILINE))
    name, version = fields["Package"], fields["Version"]
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={fields['Architecture']}&distro=debian-12"
    return _component(name, version, purl, hashlib.sha256(package.read_bytes()).hexdigest())


def wheel(installed: Component) -> Component:
    """Describe a wheel. installed: an entry of pip's installation report."""
    name, version = re.sub(r"[-_.]+", "-", installed["metadata"]["name"]).lower(), installed["metadata"]["version"]
    hashes = installed["download_info"]["archive_info"]["hashes"]
    component = _component(name, version, f"pkg:pypi/{name}@{version}", hashes["sha256"])
    expression = installed["metadata"].get("license_expression")
    return {**component, "licenses": [{"expression": expression}]} if expression else component


def document(version: str, components: list[Component]) -> str:
    """Give the document, the same for the same contents. version: gpuplugin's."""
    ours = {"type": "application", "name": "gpuplugin", "version": version, "purl": f"pkg:pypi/gpuplugin@{version}"}
    ours["bom-ref"] = ours["purl"]
    ordered = sorted(components, key=lambda component: component["purl"])
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": ours},
        "components": ordered,
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": [component["bom-ref"] for component in ordered]}],
    }
    return json.dumps(bill, indent=1) + "\n"


def _component(name: str, version: str, purl: str, sha256: str) -> Component:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }
