"""``gpuplugin cdi``: CDI documents by hand, for people and for podman without Kubernetes.

Options are called as NVIDIA's ``nvidia-ctk cdi`` calls them, so that what people have in their scripts goes on working.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdi.names import DIRECTORIES

app = typer.Typer(
    name="cdi", help="CDI documents: write one, check them, compare, list what they define.", no_args_is_help=True
)

_FOLDERS = [Path(folder) for folder in DIRECTORIES]

Output = Annotated[Path | None, typer.Option(metavar="FILE", help="Write there, not to standard output.")]
Format = Annotated[
    str | None, typer.Option(metavar="yaml|json", help="Default: as the output's name ends, or else yaml.")
]
DriverRoot = Annotated[str, typer.Option(metavar="DIR", help="Where the driver's files are.")]
DevRoot = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where /dev with the device nodes is; default: the driver root.")
]
NameStrategy = Annotated[
    list[str], typer.Option(metavar="NAME", help="index, uuid, type-index; several times or with commas for more.")
]
Vendor = Annotated[str, typer.Option(metavar="NAME", help="Vendor of the kind.")]
Class = Annotated[
    str | None, typer.Option("--class", metavar="NAME", help="Class of the kind; default: gpu, or the mode's own.")
]
Mode = Annotated[str, typer.Option(metavar="NAME", help="gpu, or something beside GPUs: gdrcopy, gds, mofed, imex.")]
HookPath = Annotated[
    str | None,
    typer.Option(
        "--nvidia-cdi-hook-path",
        "--nvidia-ctk-path",
        "--hook-path",
        metavar="FILE",
        help="Program of NVIDIA's toolkit, on the host, whose hooks containers shall run. Default: none is needed.",
    ),
]
DisableHook = Annotated[list[str], typer.Option(metavar="NAME", help="A hook to leave out, or all; several times.")]
Simulate = Annotated[
    str | None, typer.Option(metavar="NAME", help="A simulated machine (`gpuplugin machines`) or the path of its file.")
]
SpecDir = Annotated[list[Path], typer.Option(metavar="DIR", help="Where documents are; several times for more.")]


@app.command()
def generate(  # noqa: PLR0913, PLR0917 - a verb's options are its parameters
    output: Output = None,
    format: Format = None,  # noqa: A002 - the option's name
    driver_root: DriverRoot = "/",
    dev_root: DevRoot = None,
    device_name_strategy: NameStrategy = ["index", "uuid"],  # noqa: B006 - typer's way to give a default
    vendor: Vendor = "nvidia.com",
    class_: Class = None,
    mode: Mode = "gpu",
    nvidia_cdi_hook_path: HookPath = None,
    disable_hook: DisableHook = [],  # noqa: B006
    simulate: Simulate = None,
) -> None:
    """Write the document of this machine's GPUs and MIG devices.

    Each by its index and its UUID, and `all`. What cannot be given to a container is left out, and said with its reason
    on standard error; the status is 1 where nothing is left.
    """
    from gpuplugin.cli import cdi_generate as verb  # noqa: PLC0415

    wanted = verb.Wish(
        driver_root=driver_root,
        dev_root=dev_root,
        strategies=device_name_strategy,
        vendor=vendor,
        class_=class_,
        mode=mode,
        hook_path=nvidia_cdi_hook_path,
        disabled_hooks=disable_hook,
        simulate=simulate,
    )
    raise typer.Exit(verb.write(wanted, output, format))


@app.command()
def diff(  # noqa: PLR0913, PLR0917 - likewise
    file: Annotated[Path | None, typer.Argument(help="Default: the file that defines the kind now.")] = None,
    driver_root: DriverRoot = "/",
    dev_root: DevRoot = None,
    device_name_strategy: NameStrategy = ["index", "uuid"],  # noqa: B006
    vendor: Vendor = "nvidia.com",
    class_: Class = None,
    mode: Mode = "gpu",
    nvidia_cdi_hook_path: HookPath = None,
    disable_hook: DisableHook = [],  # noqa: B006
    simulate: Simulate = None,
    spec_dir: SpecDir = _FOLDERS,
) -> None:
    """Compare a file with what `generate` would write now, given the same options.

    Says nothing and ends with status 0 where they mean the same, whatever their format.
    """
    from gpuplugin.cli import cdi_generate as verb  # noqa: PLC0415

    wanted = verb.Wish(
        driver_root=driver_root,
        dev_root=dev_root,
        strategies=device_name_strategy,
        vendor=vendor,
        class_=class_,
        mode=mode,
        hook_path=nvidia_cdi_hook_path,
        disabled_hooks=disable_hook,
        simulate=simulate,
    )
    raise typer.Exit(verb.compare(wanted, file, spec_dir))


@app.command()
def validate(
    files: Annotated[list[Path] | None, typer.Argument(help="Default: all where runtimes look.")] = None,
    spec_dir: SpecDir = _FOLDERS,
    host_files: Annotated[
        bool, typer.Option(help="Whether the files and device nodes that documents name must be there.")
    ] = True,
    image: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An image's root folder, to check whether it fits.")
    ] = None,
) -> None:
    """Say what is wrong, one problem a line, and end with status 1; or say ok.

    Rules of the specification as runtimes apply them, devices that two files define, and host paths that are missing.
    """
    from gpuplugin.cli import cdi_check as verb  # noqa: PLC0415

    raise typer.Exit(verb.validate(files or [], spec_dir, host_files=host_files, image=image))


@app.command(name="list")
def list_(
    spec_dir: SpecDir = _FOLDERS,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: each name with its file.")] = False,
) -> None:
    """List the devices that runtimes know, by their qualified names."""
    from gpuplugin.cli import cdi_check as verb  # noqa: PLC0415

    verb.show(spec_dir, as_json=json)
