"""Regenerates gpuplugin/pb from the definitions beside this script.

Generated code is committed, so this runs only when a definition or a generator's version changes:

    python proto/generate.py             # rewrites gpuplugin/pb
    python proto/generate.py --out DIR   # writes DIR/gpuplugin/pb instead, which is how the drift test looks

The definitions lie at the path of the package that they become: protoc derives both the module to write and the
imports inside it from that path, which spares any rewriting of what it writes and keeps descriptor file names unique.
"""

# ruff: noqa: INP001  (a script beside its input, no package)
from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO = Path(__file__).resolve().parent
PACKAGE = Path("gpuplugin") / "pb"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(out: Path) -> None:
    """Write modules and type stubs for every definition below `out`, and remove those that have none any more.

    Raises SystemExit with protoc's status if a definition does not compile; protoc has said why on stderr by then.
    """
    package = out / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for stale in (path for pattern in GENERATED for path in package.glob(pattern)):
        stale.unlink()
    scripts = Path(sysconfig.get_path("scripts"))
    arguments = [
        "protoc",
        f"--proto_path={PROTO}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet,only_async:{out}",
        *(str(path) for path in sorted((PROTO / PACKAGE).glob("*.proto"))),
    ]
    if status := protoc.main(arguments):
        sys.exit(status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PROTO.parent, help="root to write gpuplugin/pb below")
    generate(parser.parse_args().out)
