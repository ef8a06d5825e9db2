"""The parts of `relbo.fit`."""
