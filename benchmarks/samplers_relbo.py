"""`relbo.infer` as a stream of draws, for benchmarks/rivals.py; see benchmarks/samplers.py.

It has a file of its own, so that a change here leaves the measurements of the rivals valid.
"""

from collections.abc import Iterator
from typing import Any

from ladder import Data, Model
from samplers import Restart, Stream


def relbo_stream(model: Model, data: Data) -> Stream:
    """Calls `relbo.infer` with its defaults, and for more draws if these are not enough."""
    import relbo

    def stream(key: Any) -> Iterator[Restart]:
        found = relbo.infer(key, model.program, (), data, progress=False)
        yield Restart(model.unconstrain(data, found.chains))
        num_draws = 4000
        while True:
            num_draws *= 4
            found = relbo.infer(
                key, model.program, (), data, num_draws=num_draws, progress=False
            )
            yield Restart(model.unconstrain(data, found.chains))

    return stream
