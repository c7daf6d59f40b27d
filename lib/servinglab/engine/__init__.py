"""Time passes: the engine's loops, written to be read, and the kernels, fast and equal to them."""
