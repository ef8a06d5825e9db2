"""What the `relbo` command does; its arguments are in `relbo.cli`."""


class InputError(Exception):
    """What came from outside is wrong; says in one line what and where."""
