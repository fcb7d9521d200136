"""Whether an image suits containers whose libraries are only bound, told from its root folder.

Binding needs the image's own loader to look where the libraries are put and to take those and no others. What stands in
the way of that can be seen in the image, though not when a document is written, since any image may come later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuplugin.discovery import ldcache
from gpuplugin.discovery.device_nodes import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuplugin.discovery.places import Place

GLIBC_LOADERS: Final = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
COMPAT_FOLDERS: Final = "/usr/local"
_HOOKS: Final = "let containers run the hooks of NVIDIA's toolkit (--nvidia-cdi-hook-path)"


def unsuited(image: Place, machine: str, bound: Iterable[str]) -> tuple[str, ...]:
    """Say what keeps containers of this image from finding the driver's libraries, or the right ones; () for nothing.

    machine: as uname says it · bound: the folders that libraries are bound into.
    """
    return (*_loader(image, machine), *_other_libcuda(image, bound), *_compatibility(image))


def _loader(image: Place, machine: str) -> Iterator[str]:
    wanted = GLIBC_LOADERS.get(machine)
    if wanted is None or image.resolve(wanted) is not None:
        return
    musl = [name for name in names_in(image.see("/lib")) if name.startswith("ld-musl-")]
    if musl:
        yield f"it is made with musl (/lib/{musl[0]}); the driver's libraries need glibc: use an image that has it"
    else:
        yield f"it has no {wanted}, so nothing in it can load the driver's libraries: use an image with glibc"


def _other_libcuda(image: Place, bound: Iterable[str]) -> Iterator[str]:
    try:
        listed = ldcache.paths(image.see("/etc/ld.so.cache").read_bytes())
    except (OSError, ValueError):
        return
    good = {image.resolve(folder) or folder for folder in bound}
    for path in listed:
        folder, _, name = path.rpartition("/")
        if name == "libcuda.so.1" and (image.resolve(folder) or folder) not in good:
            yield f"its loader's cache has {path}, which comes before the host's: take it out of the image, or {_HOOKS}"


def _compatibility(image: Place) -> Iterator[str]:
    for name in names_in(image.see(COMPAT_FOLDERS)):
        folder = f"{COMPAT_FOLDERS}/{name}/compat"
        linked = image.see(f"{COMPAT_FOLDERS}/{name}").is_symlink()
        if name.startswith("cuda") and not linked and image.resolve(f"{folder}/libcuda.so.1") is not None:
            yield f"it brings CUDA's forward compatibility ({folder}), which an older driver needs a hook for: {_HOOKS}"
