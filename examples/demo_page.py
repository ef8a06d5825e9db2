"""The page of the demo: one HTML file with the pictures inside."""

import base64
import io
from html import escape
from pathlib import Path
from typing import NamedTuple

from demo_parts import Result

STYLE = """
:root { color-scheme: light dark;
  --text: #1b1f24; --back: #fff; --soft: #57606a; --box: #f3f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ec; --back: #16191d; --soft: #9aa4ae; --box: #22272d } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; color: var(--text);
  background: var(--back); font: 1.05rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.7rem; margin: 0 0 .3rem } h2 { font-size: 1.2rem; margin: 2.4rem 0 .3rem }
p { margin: .3rem 0 .8rem } header p, footer { color: var(--soft) }
div { overflow-x: auto; background: #fff; border-radius: 6px; padding: 6px }
img { display: block; width: 100%; min-width: 26rem; height: auto }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--box); padding: .7rem;
  border-radius: 6px; font-size: .85rem; line-height: 1.45; margin: .8rem 0 0 }
a { color: inherit }
"""


class Shown(NamedTuple):
    """A part that has run."""

    title: str
    result: Result


def write_page(path: Path, shown: list[Shown]) -> Path:
    """Writes the page, which needs no other file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(shown), encoding="utf-8")
    return path


def render(shown: list[Shown]) -> str:
    sections = "\n".join(_section(each) for each in shown)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>relbo in four pictures</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>relbo in four pictures</h1>
<p>Everything here was computed on your machine a moment ago.</p>
</header>
<main>
{sections}
</main>
<footer><p>Next: <code>docs/getting_started.md</code>, or the paper's experiments:
<code>relbo-paper list</code>.</p></footer>
</body>
</html>
"""


def _section(shown: Shown) -> str:
    result = shown.result
    quoted = "\n".join(result.lines)
    said = f"\n<pre>{escape(quoted)}</pre>" if quoted else ""
    return f"""<section>
<h2>{escape(shown.title)}</h2>
<p>{escape(result.sentence)}</p>
<div tabindex="0">
<img src="{_as_data(result.figure)}" alt="{escape(result.sentence)}">
</div>{said}
</section>"""


def _as_data(figure) -> str:
    # A scatter plot of thousands of points is smaller as pixels.
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
