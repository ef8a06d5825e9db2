"""Hierarchical regression: an intercept and a slope for each of ten groups, learned together.

The data were simulated with known parameters (`intercept` 2, `slope` -1, scales 1 and 0.5,
`noise` 0.8) and groups of 4 to 22 observations:

    rng = numpy.random.default_rng(20)
    sizes = numpy.arange(4, 24, 2)
    group = numpy.repeat(numpy.arange(10), sizes)
    intercepts, slopes = rng.normal(2, 1, 10), rng.normal(-1, 0.5, 10)
    x = rng.normal(size=len(group)).round(2)
    y = (intercepts[group] + slopes[group] * x + rng.normal(0, 0.8, len(group))).round(2)
"""

import numpyro
import numpyro.distributions as dist


def model(group, x, y, num_groups=10):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    intercept_scale = numpyro.sample("intercept_scale", dist.HalfNormal(2.0))
    slope_scale = numpyro.sample("slope_scale", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("groups", num_groups):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        intercepts = numpyro.deterministic("intercepts", intercept + intercept_scale * a)
        slopes = numpyro.deterministic("slopes", slope + slope_scale * b)
    with numpyro.plate("rows", len(y)):
        mean = intercepts[group] + slopes[group] * x
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)
