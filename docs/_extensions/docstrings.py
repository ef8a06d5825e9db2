"""Docstrings are Markdown with dollars for formulas; autodoc reads another markup."""

import re
from typing import Any

from sphinx.application import Sphinx

DISPLAY = re.compile(r"^( *)\$\$(.+?)\$\$([.,;]?)[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\w$])\$([^$]+?)\$(?!\w)", re.DOTALL)


def setup(app: Sphinx) -> dict[str, bool]:
    # Before napoleon, which has the priority 500.
    app.connect("autodoc-process-docstring", _rewrite, priority=400)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def to_restructured_text(text: str) -> str:
    """Turns the few pieces of Markdown that docstrings use into what autodoc reads."""
    text = DISPLAY.sub(_display, text)
    return INLINE.sub(lambda found: f":math:`{' '.join(found[1].split())}`", text)


def _display(found: re.Match) -> str:
    indent, formula = found[1], " ".join(found[2].split()) + found[3]
    return f"\n{indent}.. math::\n\n{indent}   {formula}\n"


def _rewrite(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = to_restructured_text("\n".join(lines)).split("\n")


def _skip(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    # The fields of a named tuple that say nothing are in the signature already.
    if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number"):
        return True
    return None
