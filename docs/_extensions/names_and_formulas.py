"""Reads dollars in docstrings as formulas, and links public names in the pages."""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import relbo

DISPLAY = re.compile(r"^( *)\$\$(.+?)\$\$([.,;]?)[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\w$])\$([^$]+?)\$(?!\w)", re.DOTALL)

KEY = r"~?(?:jaxtyping\.)?Key\[[^\]]*\](?: \| ~?(?:jaxtyping\.)?UInt32\[[^\]]*\])*"
ALIASES = {
    re.compile(KEY): "jax.Array",
    re.compile(r"~?jaxlib\._jax\.Array"): "jax.Array",
    re.compile(r"\S*Array \| \S*ndarray \| [^,]*complex"): "ArrayLike",
}


def setup(app: Sphinx) -> dict[str, bool]:
    # Before napoleon (priority 500) and the parser: sphinx-math-dollar comes after them, when
    # the parser has taken `_` and `|` in formulas for references.
    app.connect("autodoc-process-docstring", _read_formulas, priority=400)
    app.connect("autodoc-skip-member", _skip_undocumented_field)
    # Before autodoc writes the types of parameters into their descriptions (priority 500).
    app.connect("object-description-transform", _shorten_types, priority=400)
    # Markdown has no default role, which links names in docstrings.
    app.connect("doctree-read", _link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read_formulas(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list):
    text = DISPLAY.sub(
        lambda m: f"\n{m[1]}.. math::\n\n{m[1]}   {' '.join(m[2].split())}{m[3]}\n",
        "\n".join(lines),
    )
    lines[:] = INLINE.sub(lambda m: f":math:`{' '.join(m[1].split())}`", text).split("\n")


def _shorten_types(app: Sphinx, *_: Any) -> None:
    """Writes types as their authors did: Python has replaced aliases by what they stand for."""
    for annotations in app.env.current_document.autodoc_annotations.values():
        for parameter, text in annotations.items():
            for pattern, name in ALIASES.items():
                text = pattern.sub(name, text)
            annotations[parameter] = text


def _skip_undocumented_field(
    _app: Sphinx, _what: str, _name: str, obj: Any, skip: bool, _: Any
):
    return skip or (obj.__doc__ or "").startswith("Alias for field number") or None


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().split("(")[0]
        # `SGLD` alone is clear; `fit` alone is an ordinary word.
        if re.fullmatch(r"[A-Z]\w+", name) and hasattr(relbo, name):
            name = f"relbo.{name}"
        inside = (nodes.title, nodes.reference, addnodes.pending_xref)
        if re.fullmatch(r"relbo(\.\w+)+", name) and not isinstance(literal.parent, inside):
            target = {"refdomain": "py", "reftype": "obj", "reftarget": name}
            link = addnodes.pending_xref(
                "", literal.deepcopy(), refdoc=app.env.docname, refexplicit=True, **target
            )
            literal.replace_self(link)
