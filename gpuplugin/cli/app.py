"""The command line's surface on one page: every verb, its options and its help.

What a verb does is in its own file, imported when the verb runs, so that help and completion stay quick.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplugin import __version__
from gpuplugin.cli.cdi import app as cdi
from gpuplugin.cli.condition import app as condition
from gpuplugin.cli.config import app as config
from gpuplugin.cli.labels import app as labels
from gpuplugin.cli.runtime import app as runtime
from gpuplugin.errors import GpuPluginError

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="gpuplugin",
    help="NVIDIA GPUs on a Kubernetes node: the daemon, and what it sees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help is plain text, the same in a terminal and in a pipe
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Simulate = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A simulated machine (`gpuplugin machines`) or the path of one's file."),
]


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. What goes wrong is a line each on standard error."""
    try:
        status = app(args=list(arguments), prog_name="gpuplugin", standalone_mode=False)
    except typer.TyperException as error:
        # A usage error, status 2. Without arguments its message is the help itself.
        message = error.format_message()
        typer.echo(message if "\n" in message else f"gpuplugin: {message} See `gpuplugin --help`.", err=True)
        return error.exit_code
    except GpuPluginError as error:
        for line in str(error).splitlines():
            typer.echo(f"gpuplugin: {line}", err=True)
        return 1
    except OSError as error:  # of a file that somebody named; any other is a fault of ours
        if error.filename is None:
            raise
        typer.echo(f"gpuplugin: {os.fsdecode(error.filename)}: {error.strerror}", err=True)
        return 1
    except typer.Abort:  # Ctrl-C
        raise KeyboardInterrupt from None
    return status if isinstance(status, int) else 0


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gpuplugin {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """NVIDIA GPUs on a Kubernetes node: the daemon, and what it sees."""
    del version


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def run(context: typer.Context) -> None:
    """Run the daemon. Its settings: `gpuplugin run --help`."""
    from gpuplugin.daemon.main import main as daemon  # noqa: PLC0415

    raise typer.Exit(daemon(context.args))


@app.command(
    "mps-control",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def mps_control(context: typer.Context) -> None:
    """Run this node's MPS control daemons. Its settings: `gpuplugin mps-control --help`."""
    from gpuplugin.daemon.mps_control import main as program  # noqa: PLC0415

    raise typer.Exit(program(context.args))


@app.command()
def topo(
    json: Json = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the node instead, with who holds what.")
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Show how GPUs and NICs reach each other.

    The matrix of `nvidia-smi topo -m`, with PCIe switches and the nearest NICs beside it.

    JSON: columns[]; rows[] with name, cells[] (one a column), cpus, numa, switch, nics[], fault; legend{}.
    """
    from gpuplugin.cli import topo as verb  # noqa: PLC0415

    verb.show(simulate, as_json=json, svg=svg)


@app.command()
def inventory(json: Json = False, simulate: Simulate = None) -> None:
    """Show what is in the machine.

    Driver, GPUs, MIG devices, NICs, NUMA nodes, and faults with their reasons.

    JSON: the fields of gpuplugin/model/inventory.py; what is not known is null, bytes are bytes.
    """
    from gpuplugin.cli import inventory as verb  # noqa: PLC0415

    verb.show(simulate, as_json=json)


State = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where it is kept, if not in GPUPLUGIN_PATHS_STATE (paths.state).")
]


@app.command()
def cordon(
    gpu: Annotated[str | None, typer.Argument(metavar="GPU", help="Its index, UUID or PCI address.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for everybody who wonders; one line.")] = "",
    state: State = None,
    simulate: Simulate = None,
    json: Json = False,
) -> None:
    """Take one GPU out of service, until `gpuplugin uncordon`.

    No new pod and no new claim gets it; those that have it go on. It holds over restarts, of the daemon and of the
    machine. Without GPU: list what is cordoned. JSON: a list of gpu, reason, since.
    """
    from gpuplugin.cli import cordon as verb  # noqa: PLC0415

    if gpu is None:
        verb.show(state, as_json=json)
    else:
        verb.cordon(gpu, reason, state, simulate)


@app.command()
def uncordon(
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="Its index, UUID or PCI address.")],
    state: State = None,
    simulate: Simulate = None,
) -> None:
    """Let a GPU that was cordoned back into service."""
    from gpuplugin.cli import cordon as verb  # noqa: PLC0415

    raise typer.Exit(verb.uncordon(gpu, state, simulate))


@app.command()
def explain(  # noqa: PLR0913, PLR0917 - an option each
    name: Annotated[
        str, typer.Argument(metavar="[GPU|POD]", help="A GPU: index, UUID or PCI address; a pod: namespace/name.")
    ] = "",
    gpus: Annotated[int, typer.Option(min=0, help="Would a pod of so many GPUs be admitted now?")] = 0,
    cpus: Annotated[int, typer.Option(min=0, help="CPUs that it has for itself.")] = 0,
    nics: Annotated[
        str, typer.Option(metavar="[NAME=]N", help="NICs, of another device plugin; by name where it has several.")
    ] = "",
    resource: Annotated[str, typer.Option(metavar="NAME", help="What the GPUs are called.")] = "nvidia.com/gpu",
    policy: Annotated[str, typer.Option(help="The topologyManagerPolicy to decide by, if not kubelet's.")] = "",
    file: Annotated[str, typer.Option("--file", "-f", help="A Pod in JSON or YAML, - for standard input.")] = "",
    memory: Annotated[str, typer.Option(metavar="16Gi", help="Memory, where kubelet keeps it to NUMA nodes.")] = "",
    hugepages: Annotated[
        str, typer.Option(metavar="2Mi=4Gi", help="Huge pages: size of a page, and how much; several with commas.")
    ] = "",
    json: Json = False,
) -> None:
    """Say why: this GPU, these GPUs of a pod, why a pod was refused, or whether one would be admitted now.

    Asks the daemon of this node, so it is run in its container. Whatever is in the way is named, with who holds it and
    what to do. Status 1 where a pod would not be admitted.
    """
    from gpuplugin.cli import explain as verb  # noqa: PLC0415

    wanted = verb.Wanted(gpus, cpus, nics, resource, policy, file, memory, hugepages)
    raise typer.Exit(verb.show(name, wanted, as_json=json))


@app.command()
def report(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - for standard output.")
    ] = "",
    json: Json = False,
) -> None:
    """Write what a person needs to help with this node: an archive with nothing secret in it.

    Versions, inventory, offers, health, configuration with its sources, kubelet's settings, our CDI documents and the
    newest lines of the log. JSON: an object, file name to text.
    """
    from gpuplugin.cli import report as verb  # noqa: PLC0415

    raise typer.Exit(verb.show(output, as_json=json))


@app.command()
def machines() -> None:
    """List the simulated machines."""
    from gpuplugin.cli import machines as verb  # noqa: PLC0415

    verb.show()


@app.command()
def demo(
    machine: Annotated[str, typer.Option(metavar="NAME", help="The simulated machine to show it on.")] = "hgx-h100",
) -> None:
    """See it work, without GPU or Kubernetes.

    The real daemon on a simulated machine, with a stand-in for kubelet: pods of several sizes, one that must be
    refused, a GPU that breaks and comes back. A few seconds.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells of every connection that ends, also as it should
    from gpuplugin.cli import demo as verb  # noqa: PLC0415

    verb.show(machine)


app.add_typer(config)
app.add_typer(cdi)
app.add_typer(condition)
app.add_typer(labels)
app.add_typer(runtime)
