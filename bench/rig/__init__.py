"""What the benches share: a node to run the daemon on, and the table that they print."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for the stand-ins of tests/, whichever folder a bench is started in
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # that a daemon which ends hangs up is no news here
