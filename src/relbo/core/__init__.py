"""The idea itself, in pure JAX: kernels, accounts, bases and the refinement that joins them."""
