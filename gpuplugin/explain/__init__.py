"""Answers to "why?" and "would it?", from what is known of the node and of its pods. Pure: others do the asking."""
