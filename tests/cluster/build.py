#!/usr/bin/env python3
"""Build the test cluster's binaries ahead of the tests, or say what this machine lacks for a cluster.

python tests/cluster/build.py          build what is missing, and print where it is
python tests/cluster/build.py --check  list what the machine lacks; exit 1 if there is anything
"""

import argparse
import sys
import time

from onenode.binaries import binaries
from onenode.errors import ClusterError
from onenode.machine import missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build nothing, list what the machine lacks")
    if parser.parse_args().check:
        lacking = missing()
        for thing in lacking:
            print(f"{thing.what}: {thing.remedy}")
        return 1 if lacking else 0
    began = time.monotonic()
    try:
        folder = binaries(lambda text: print(text, file=sys.stderr, flush=True))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
