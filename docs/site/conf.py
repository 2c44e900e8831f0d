"""The configuration of the documentation site, for Sphinx (`make site`).

The source is the root of the tree, so that links between `docs/`, README.md and ARCHITECTURE.md are
the same on the site as in the tree. The pages are plain Markdown; `navigation.py` says which there
are. The site needs no network: its pages load only files of the site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sphinx.application import Sphinx

from docs.site import navigation

project = "PolyMQ"
html_title = "PolyMQ"
root_doc = navigation.FRONT
include_patterns = [f"{page}.md" for page in navigation.pages()]
# What is never walked: `polymq/` links to the other folders, and `.venv` may be anywhere.
exclude_patterns = [".*", "build", "data", "polymq/*/**", "**/node_modules", "**/target"]

extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 6
# "Copy" takes the commands of an example, without prompts and without what they print.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
highlight_language = "text"
smartquotes = False  # an option has two hyphens, and no dash
# Shell sessions with quotes over several lines are coloured as far as they are understood.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

ENTRANCE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>PolyMQ</title>
<meta http-equiv="refresh" content="0; url={front}">
<a href="{front}">PolyMQ's documentation</a>
</html>
"""


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Tell Sphinx which pages are below this one."""
    source[0] += navigation.directives(page)


def write_entrance(app: Sphinx, error: Exception | None) -> None:
    """`index.html`, which leads to the front page."""
    if error is None:
        entrance = ENTRANCE.format(front=f"{navigation.FRONT}.html")
        (Path(app.outdir) / "index.html").write_text(entrance, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_entrance)
