"""The bill of materials says what it must, and the pure parts of making the image hold."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "image"))

import rootfs  # noqa: E402
import sbom  # noqa: E402

CONTROL = """Package: libc6
Source: glibc
Version: 2.36-9+deb12u14
Architecture: amd64
Description: GNU C Library: Shared libraries
 Package: not this one
"""


@pytest.fixture
def package(tmp_path: Path) -> sbom.Component:
    file = tmp_path / "libc6.deb"
    file.write_bytes(b"content")
    return sbom.debian(CONTROL, file)


@pytest.fixture
def wheel() -> sbom.Component:
    return sbom.wheel(
        {
            "metadata": {"name": "PyYAML_x", "version": "6.0", "license_expression": "MIT"},
            "download_info": {"archive_info": {"hashes": {"sha256": "ab" * 32}}},
        }
    )


def test_packages_are_named_as_scanners_know_them(package: sbom.Component, wheel: sbom.Component):
    assert package["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12"
    assert wheel["purl"] == "pkg:pypi/pyyaml-x@6.0"
    assert wheel["licenses"] == [{"expression": "MIT"}]


def test_document_is_cyclonedx_and_refers_to_nothing_that_it_lacks(package: sbom.Component, wheel: sbom.Component):
    bill = json.loads(sbom.document("1.2.3", [wheel, package]))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert bill["metadata"]["component"]["version"] == "1.2.3"
    references = {component["bom-ref"] for component in [*bill["components"], bill["metadata"]["component"]]}
    assert len(references) == 3
    for dependency in bill["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= references
    for component in bill["components"]:
        assert component["type"] == "library"
        assert re.fullmatch("[0-9a-f]{64}", component["hashes"][0]["content"])


def test_document_is_the_same_for_the_same_contents_in_any_order(package: sbom.Component, wheel: sbom.Component):
    assert sbom.document("1", [wheel, package]) == sbom.document("1", [package, wheel])


def test_what_only_builds_does_not_run():
    run, build = rootfs.lock(build=False), rootfs.lock(build=True)
    assert "setuptools==" not in run
    assert build.startswith("setuptools==")
    whole = (CHECKOUT / "requirements.lock").read_text()
    assert sorted(run.split() + build.split()) == sorted(whole.split())


def test_the_packages_are_in_order_and_each_once():
    names = [line for line in (CHECKOUT / "image/packages.txt").read_text().splitlines() if not line.startswith("#")]
    assert names == sorted(set(names))


def test_the_containerfile_names_no_registry_and_runs_as_nobody():
    text = (CHECKOUT / "Containerfile").read_text()
    froms = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert froms == ["${BASE}", "scratch"]
    assert re.search(r"^ARG BASE=[a-z]+:[a-z0-9.-]+$", text, re.MULTILINE)
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
