"""Formulas as MathML, made when the pages are built: no script, no font, no network."""

import re
from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
SPELLINGS = {r"\dots": r"\ldots", ":=": r"\coloneqq "}  # what docutils knows
APPLIED = re.compile(r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>\()")
SPACE = '<mspace width="0.17em"></mspace>'


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    label = ""
    if node["number"]:
        label = f'<span class="eqno">({node["number"]})</span>'
    identity = f' id="{node["ids"][0]}"' if node["ids"] else ""
    formula = _mathml(node, as_block=True)
    self.body.append(f'<div class="math"{identity}>{label}{formula}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    text = node.astext()
    for printed, known in SPELLINGS.items():
        text = text.replace(printed, known)
    try:
        # Browsers leave no room between a function's name and its argument.
        return APPLIED.sub(SPACE, tex2mathml(text, as_block=as_block))
    except MathError as error:
        LOGGER.warning("formula: %s: %s", error, text, location=node)
        return f"<code>{escape(text)}</code>"
