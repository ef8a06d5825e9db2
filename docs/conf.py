"""Configures Sphinx for `make docs`: warnings are errors and the pages need no network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import relbo

project = "relbo"
release = version = relbo.__version__
copyright = "the authors of relbo, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "names_and_formulas",
    "mathml",
    "shown_output",
]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 78
default_role = "py:obj"
napoleon_use_rtype = False
add_module_names = False
toc_object_entries = False

html_theme = "furo"
html_title = "relbo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["relbo.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.page-output) > div.highlight > pre"
exclude_patterns = ["_extensions", "_runs"]

# They need packages that `make docs` does not install; tests run their code.
pages_without_output = ["coming_from_pymc", "coming_from_blackjax", "coming_from_stan"]
