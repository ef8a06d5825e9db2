"""Shows below each Python block what it prints and draws.

When the site is built, a page's blocks are run in a process of their own (`page_runner`), and
what comes out is put below them. Runs are kept in `docs/_runs` and repeated when the page's
code, the library or this machinery changes. A block that fails fails the build.

MyST-NB does the same through Jupyter: 38 packages more, cells that GitHub does not highlight,
and a cache that does not notice a change of the library.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from page_runner import BLOCK, STYLE
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

import relbo

LOGGER = logging.getLogger(__name__)
RUNNER = Path(__file__).with_name("page_runner.py")
TIME_LIMIT = 300.0
"""Seconds after which a run is stopped: far more than a page should take."""
OUTPUT = """
````{{code-block}} text
:class: page-output

{text}
````
"""
FIGURE = """
```{{image}} /{path}
:alt: {label}
:class: page-figure
```
"""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("pages_without_output", [], "env")
    app.connect("env-get-outdated", _run_changed_pages)
    app.connect("source-read", _insert_outputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _run_changed_pages(
    app: Sphinx, env: BuildEnvironment, _added: set, _changed: set, removed: set
) -> list[str]:
    """Runs the pages whose runs are missing or old, and has them read again."""
    pages = [name for name in sorted(env.found_docs - removed) if _blocks(app, name)]
    stale = [name for name in pages if _stored_key(app, name) != _key(app, name)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        failures = [why for why in pool.map(lambda name: _run(app, name), stale) if why]
    if failures:
        raise ExtensionError("\n\n".join(failures))
    return stale


def _run(app: Sphinx, name: str) -> str | None:
    """Runs one page; returns what went wrong, if anything did."""
    directory = _directory(app, name)
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, str(RUNNER), str(app.env.doc2path(name)), str(directory)]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name}: stopped after {TIME_LIMIT:.0f} s"
    if run.returncode:
        return f"{name}: a block failed\n{run.stderr}"
    # Written last, so that a run that was interrupted is repeated.
    (directory / "key").write_text(_key(app, name))
    print(f"ran {name}: {_stored(app, name)['seconds']:.0f} s", flush=True)
    return None


def _insert_outputs(app: Sphinx, name: str, content: list[str]) -> None:
    if not _blocks(app, name):
        return
    blocks = iter(_stored(app, name)["blocks"])
    folder = _directory(app, name).relative_to(app.srcdir).as_posix()

    def with_output(match) -> str:
        block = next(blocks)
        text = OUTPUT.format(text=block["text"]) if block["text"] else ""
        return (
            match[0]
            + text
            + "".join(
                FIGURE.format(path=f"{folder}/{figure['file']}", label=figure["label"])
                for figure in block["figures"]
            )
        )

    content[0] = BLOCK.sub(with_output, content[0])


def _blocks(app: Sphinx, name: str) -> list[str]:
    if name in app.config.pages_without_output:
        return []
    return BLOCK.findall(Path(app.env.doc2path(name)).read_text())


def _directory(app: Sphinx, name: str) -> Path:
    return Path(app.srcdir) / "_runs" / name


def _stored(app: Sphinx, name: str) -> dict:
    return json.loads((_directory(app, name) / "outputs.json").read_text())


def _stored_key(app: Sphinx, name: str) -> str | None:
    path = _directory(app, name) / "key"
    return path.read_text() if path.exists() else None


def _key(app: Sphinx, name: str) -> str:
    """Identifies what a run depends on."""
    return hashlib.sha256("\n".join([*_blocks(app, name), _library()]).encode()).hexdigest()


def _library() -> str:
    """Identifies the library's source and the way in which pages are run."""
    root = Path(relbo.__file__).parent
    files = [*sorted(root.rglob("*.py")), RUNNER, STYLE]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()
