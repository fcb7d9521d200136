"""Which devices belong together: pure functions from the link graph to scores and choices."""
