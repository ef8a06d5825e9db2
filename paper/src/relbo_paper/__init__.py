"""The paper *Variationally Inferred Sampling Through a Refined Bound*, run with relbo."""
