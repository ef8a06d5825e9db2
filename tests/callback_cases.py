"""A small model, and a callback that records what it is told."""

import numpy as np
import numpyro
import numpyro.distributions as dist

Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4])


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


class Recorder:
    """Keeps the states, and stops a run at the first that a condition accepts."""

    def __init__(self, condition=lambda state: False):
        self.states, self.condition = [], condition

    def __call__(self, state):
        self.states.append(state)
        return self.condition(state)

    def phases(self):
        return list(dict.fromkeys(state.phase for state in self.states))
