"""Implements the `relbo` command; `relbo.cli` parses its arguments."""


class InputError(Exception):
    """An error in the user's files or arguments, described in one line."""


class OutputError(Exception):
    """A failure to write the results, described in one line."""
