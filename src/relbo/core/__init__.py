"""Kernels, accounts, bases and the refinement that joins them, in pure JAX."""
