"""Figures inside the page."""

import base64
import re
from pathlib import Path

from relbo.report._html import Markup, element, void
from relbo.report._reading import Figure, ReportError

_POINTS_TO_PIXELS = 4 / 3


def figure_block(figure: Figure) -> Markup:
    """The figure with its caption.

    As an image of its own and not as part of the page: matplotlib uses the same identifiers in
    every file, and an image runs no script.
    """
    svg = _read(figure.path)
    width, height = _size(svg)
    encoded = base64.b64encode(svg.encode()).decode()
    image = void(
        "img",
        src=f"data:image/svg+xml;base64,{encoded}",
        alt=figure.text,
        width=width,
        height=height,
    )
    # Wide figures scroll on a narrow screen; at a phone's width their text would be too small.
    frame = element(
        "div", image, class_="paper", tabindex="0", role="region", aria_label=figure.text
    )
    return element("figure", frame, element("figcaption", figure.text + "."))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read ({error})") from error


def _size(svg: str) -> tuple[int | None, int | None]:
    """In pixels, from the view box: the page knows the room before it has the picture."""
    box = re.search(r'viewBox="[\d.\-]+ [\d.\-]+ ([\d.]+) ([\d.]+)"', svg[:2000])
    if box is None:
        return None, None
    width, height = (round(float(side) * _POINTS_TO_PIXELS) for side in box.groups())
    return width, height
