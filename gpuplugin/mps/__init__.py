"""MPS control daemons: run beside the daemon, in a program of their own, so that no update of ours ends a client."""
