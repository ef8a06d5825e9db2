"""Chains: how they are run, what they return, and whether to trust it."""

from relbo.sampling._sample import sample as sample
from relbo.sampling.diagnostics import effective_sample_size as effective_sample_size
from relbo.sampling.diagnostics import nested_rhat as nested_rhat
from relbo.sampling.diagnostics import stuck_chains as stuck_chains
from relbo.sampling.evidence import LogWeights as LogWeights
from relbo.sampling.posterior import Posterior as Posterior
from relbo.sampling.verdict import Check as Check
from relbo.sampling.verdict import Summary as Summary
