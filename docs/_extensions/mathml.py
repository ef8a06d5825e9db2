"""Renders formulas as MathML when the pages are built: they need no script and no network.

Sphinx has no such renderer; an offline copy of MathJax is a package of 6 MB and a script on
every page.
"""

import re
from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
SPELLINGS = {r"\dots": r"\ldots", ":=": r"\coloneqq "}
"""Spellings of TeX that docutils does not know, and those that it does."""
APPLIED = re.compile(r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>\()")
SPACE = '<mspace width="0.17em"></mspace>'


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    text = node.astext()
    for unknown, known in SPELLINGS.items():
        text = text.replace(unknown, known)
    try:
        # Browsers put no space between the name of a function and its argument.
        return APPLIED.sub(SPACE, tex2mathml(text, as_block=as_block))
    except MathError as error:
        LOGGER.warning("formula: %s: %s", error, text, location=node)
        return f"<code>{escape(text)}</code>"
