"""A public name in the text, such as `relbo.infer`, links to its reference."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import relbo

FULL_NAME = re.compile(r"relbo(\.\w+)+")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def target(text: str) -> str | None:
    """The full name that a piece of code stands for, if it is one of ours."""
    name = text.split("(")[0]
    if FULL_NAME.fullmatch(name):
        return name
    # `SGLD` alone is clear enough; `fit` alone is a word.
    is_class = re.fullmatch(r"[A-Z]\w+", name) and name != "RESULTS"
    return f"relbo.{name}" if is_class and hasattr(relbo, name) else None


def _link(app: Sphinx, doctree: nodes.document) -> None:
    for literal in list(doctree.findall(nodes.literal)):
        name = target(literal.astext())
        inside = (nodes.title, nodes.reference, addnodes.pending_xref)
        if name is None or isinstance(literal.parent, inside):
            continue
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=name, refexplicit=True
        )
        link["refdoc"] = app.env.docname
        literal.replace_self(link)
        link += literal
