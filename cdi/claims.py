"""What only the containers of one claim get (an MPS client's folders, an IMEX channel, a NIC): a file for each claim.

It is there from when the claim is prepared until it is not, whoever else writes in that folder: the document of GPUs is
never made longer by it, and a node that starts again knows from its record of claims which files to keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdi import writer
from cdi.names import CLAIM_KIND, CLAIM_PREFIX, claim_file_name, qualified_name
from cdi.spec import Device, Spec, encode, with_minimum_version
from cdi.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cdi.spec import ContainerEdits


def publish(folder: Path, claim: str, devices: Mapping[str, ContainerEdits]) -> Mapping[str, str]:
    """Write a claim's file; gives each device's qualified name, by the names in `devices`.

    claim: its UID, which no other claim ever has. Devices whose edits do nothing have no name, since runtimes refuse
    such; a claim without any has no file. Raises CdiInvalid and CdiUnwritable; what was there before is then as it was.
    """
    given = {name: edits for name, edits in devices.items() if not edits.empty}
    if not given:
        withdraw(folder, [claim])
        return {}
    named = tuple(Device(name=f"{claim}-{name}", container_edits=edits) for name, edits in given.items())
    spec = with_minimum_version(Spec(version="", kind=CLAIM_KIND, devices=named))
    name = claim_file_name(claim)
    validate(spec, f"CDI document for {folder / name}")
    writer.write(folder, name, encode(spec))
    return {name: qualified_name(CLAIM_KIND, f"{claim}-{name}") for name in given}


def withdraw(folder: Path, claims: Iterable[str]) -> None:
    """Remove the files of claims; those that have none are as they should be. Raises CdiUnwritable."""
    for claim in claims:
        writer.remove(folder, claim_file_name(claim))


def keep_only(folder: Path, claims: Iterable[str]) -> tuple[Path, ...]:
    """Remove the files of all claims but these, as after a start; returns them. Raises CdiUnwritable."""
    return writer.prune(folder, {claim_file_name(claim) for claim in claims}, CLAIM_PREFIX)
