"""Influence diagrams, drawn in the page's own colours."""

from relbo.report._html import Markup, element, joined

_METHOD = (
    "A starting point z0 is drawn from the guide with parameters phi. The sampler with "
    "parameters eta moves it T times, to zT. The model with parameters theta gives the density "
    "of the data x and zT. The value, a diamond, is the refined ELBO: log p(x, zT) minus what "
    "the entropy account counts for log q(zT). Its gradient trains phi, eta and theta."
)
_CLASSIFIER = (
    "The image X depends on its class Y and on a latent Z. The decision, a square, is the "
    "class that is guessed, and sees X only. The utility, a diamond, depends on the true class "
    "Y and on the guess."
)


def diagrams_section() -> Markup:
    """The method and the classifier's decision, each with a text that says the same."""
    return element(
        "section",
        element("h2", "Influence diagrams"),
        element(
            "p",
            "Circles are uncertain, shaded ones observed, dots are parameters that are "
            "learned, squares are decisions or steps, diamonds are values.",
        ),
        element(
            "div",
            _diagram("method", "Model, guide and sampler", _METHOD, (470, 310), _method()),
            _diagram("decision", "The classifier", _CLASSIFIER, (260, 310), _classifier()),
            class_="diagrams",
        ),
        id="diagrams",
    )


def _diagram(
    name: str, title: str, text: str, size: tuple[int, int], content: Markup
) -> Markup:
    width, height = size
    # The marker's identifier is the diagram's own, since both stand in one page.
    head = element(
        "defs",
        element(
            "marker",
            element("path", d="M0 0 L10 5 L0 10 z", class_="head"),
            id=f"{name}-arrow",
            viewBox="0 0 10 10",
            refX="9",
            refY="5",
            markerWidth="7",
            markerHeight="7",
            orient="auto-start-reverse",
        ),
    )
    svg = element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", text, id=f"{name}-text"),
        head,
        content,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{name}-title {name}-text",
        class_=f"diagram {name}",
    )
    caption = element("figcaption", element("strong", f"{title}. "), text)
    return element("figure", svg, caption)


def _method() -> Markup:
    def arrow(*ends: int) -> Markup:
        return _arrow("method", *ends)

    return joined(
        _panel(10, 10, 110, 175, "guide"),
        _panel(135, 10, 150, 175, "sampler"),
        _panel(300, 75, 160, 228, "model"),
        arrow(65, 58, 65, 103),
        arrow(210, 58, 210, 103),
        arrow(89, 130, 163, 130),
        arrow(257, 130, 336, 130),
        arrow(360, 154, 360, 226),
        arrow(428, 190, 380, 234),
        arrow(336, 250, 231, 250),
        arrow(232, 157, 184, 220),
        arrow(344, 148, 208, 232),
        _dot(65, 50, "φ"),
        _dot(210, 50, "η"),
        _dot(433, 185, "θ"),
        _circle(65, 130, "z_0"),
        _square(165, 105, 90, 50, "K, T times"),
        _circle(360, 130, "z_T"),
        _circle(360, 250, "x", class_="node observed"),
        _diamond(150, 250, 80, 36, "rELBO"),
    )


def _classifier() -> Markup:
    def arrow(*ends: int) -> Markup:
        return _arrow("decision", *ends)

    return joined(
        arrow(65, 74, 65, 126),
        arrow(177, 66, 86, 136),
        arrow(65, 174, 65, 228),
        arrow(195, 74, 195, 214),
        arrow(89, 252, 139, 252),
        _circle(65, 50, "Z"),
        _circle(195, 50, "Y"),
        _circle(65, 150, "X", class_="node observed"),
        _square(41, 230, 48, 44, "Ŷ"),
        _diamond(195, 252, 54, 36, "U"),
    )


def _panel(x: int, y: int, width: int, height: int, name: str) -> Markup:
    return joined(
        element("rect", x=x, y=y, width=width, height=height, rx=10, class_="panel"),
        element("text", name, x=x + 8, y=y + height - 9, class_="name"),
    )


def _circle(x: int, y: int, name: str, class_: str = "node") -> Markup:
    shape = element("circle", cx=x, cy=y, r=24, class_=class_)
    return joined(shape, _label(x, y, name))


def _square(x: int, y: int, width: int, height: int, name: str) -> Markup:
    shape = element("rect", x=x, y=y, width=width, height=height, rx=3, class_="node")
    return joined(shape, _label(x + width // 2, y + height // 2, name))


def _diamond(x: int, y: int, across: int, down: int, name: str) -> Markup:
    corners = f"{x - across},{y} {x},{y - down} {x + across},{y} {x},{y + down}"
    return joined(element("polygon", points=corners, class_="node value"), _label(x, y, name))


def _dot(x: int, y: int, name: str) -> Markup:
    shape = element("circle", cx=x, cy=y, r=5, class_="dot")
    return joined(shape, element("text", name, x=x + 12, y=y + 4))


def _label(x: int, y: int, name: str) -> Markup:
    base, _, below = name.partition("_")
    subscript = element("tspan", below, dy=5, class_="subscript") if below else None
    return element("text", base, subscript, x=x, y=y + 5, class_="centred")


def _arrow(diagram: str, x1: int, y1: int, x2: int, y2: int) -> Markup:
    return element(
        "line", x1=x1, y1=y1, x2=x2, y2=y2, class_="edge", marker_end=f"url(#{diagram}-arrow)"
    )
