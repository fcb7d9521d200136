"""What the rest talks about: frozen facts and decisions, with no I/O."""
