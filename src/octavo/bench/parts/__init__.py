"""Measurements of Octavo's own parts: kernels, a step of the engine, the memory policy, the library alone."""
