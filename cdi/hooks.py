"""The hooks of NVIDIA's toolkit, for those who ask for them: what binding files alone cannot do.

They put the libraries into the container's own loader cache (an image that lists another libcuda there would find that
one first), put CUDA's compatibility libraries of an image before the host's older driver, and keep the driver's
libraries from making device nodes in the container. Links are not made by hooks: the libraries are bound under every
name already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdi.spec import Hook

if TYPE_CHECKING:
    from collections.abc import Iterable

TOOLKIT: Final = "nvidia-ctk"
"""The toolkit's program that has the hooks below a verb of its own; the other, ``nvidia-cdi-hook``, has them alone."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """path: of the toolkit's program, on the host · disabled: names of hooks that are left out, or ``all``."""

    path: str
    disabled: tuple[str, ...] = ()

    def of(self, version: str, folders: Iterable[str]) -> tuple[Hook, ...]:
        """Give the hooks. version: of the driver · folders: where its libraries are in the container."""
        wanted = {
            "enable-cuda-compat": (f"--host-driver-version={version}",),
            "update-ldcache": tuple(word for folder in folders for word in ("--folder", folder)),
            "disable-device-node-modification": (),
        }
        return tuple(
            self._hook(name, arguments)
            for name, arguments in wanted.items()
            if name not in self.disabled and "all" not in self.disabled
        )

    def _hook(self, name: str, arguments: tuple[str, ...]) -> Hook:
        program = self.path.rpartition("/")[2]
        verb = (program, "hook") if program == TOOLKIT else (program,)
        return Hook(hook_name="createContainer", path=self.path, args=(*verb, name, *arguments))
