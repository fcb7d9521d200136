"""CDI: what a container gets of a GPU, as documents that any CDI runtime reads."""
