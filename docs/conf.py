"""Settings of Sphinx, which makes the documentation site: `make docs`."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))

project = "maira-radfact"
author = "the authors of maira-radfact"
copyright = author
release = version = installed_version("maira-radfact")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_reference",
    "site_pages",
]
# Outputs are those stored in the notebooks; a test executes them.
nb_execution_mode = "off"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "exclude-members": "model_config"}
# Docstrings are Markdown: what stands between single backticks is code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Source", "returns_style")]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
# A link that leads nowhere is an error: make docs turns warnings into errors.
nitpicky = True
# Types of annotations are no links: most of them are of other libraries.
nitpick_ignore_regex = [("py:.*", ".*")]
# They would make one dash of the two before an option.
smartquotes = False

# Outputs of commands and of notebooks are not copied, nor prompts.
copybutton_selector = ".highlight pre:not(.highlight-output pre, .cell_output pre)"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = "maira-radfact"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
