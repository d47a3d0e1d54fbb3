"""A page as text: the template with data, style and scripts inside.

Nothing in it is loaded from elsewhere, and its Content-Security-Policy allows no script but those
that are named by their digests. Whatever names a user's model has, they are text there:
Jinja escapes them, and the data is JSON in which `<` cannot occur.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy import __version__
from etdeploy.core.errors import EtdeployError
from etdeploy.core.files.basic import resource_folder
from etdeploy.report.document import Figure, LargeTable, Page, Timeline, all_blocks
from etdeploy.report.formatting import finite

if TYPE_CHECKING:
    from jinja2 import Template

# Tells a later report of the same file from somebody's page.
MARK = '<!doctype html>\n<html lang="en" data-generator="etdeploy">'
# Level 9 takes twice the time for 1 %.
_LEVEL = 6
# "<" could end the script element or begin a comment in it; the others end a line of JavaScript.
_ESCAPED = {each: f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}


# The same of the pages of a history, which stand in a folder with an index of their own.
HISTORY_MARK = '<!doctype html>\n<html lang="en" data-generator="etdeploy history">'


def render(page: Page, mark: str = MARK) -> str:
    """The page as HTML that begins with a mark."""
    blocks = all_blocks(page.sections)
    figures = [_figure(block) for block in blocks if isinstance(block, Figure)]
    timelines = {block.key: block.payload for block in blocks if isinstance(block, Timeline)}
    plots = _plots() if figures else _Packed("", "")
    scripts = [_text("timeline.js"), _text("page.js")][0 if timelines else 1 :]
    body = _template().render(
        page=page,
        version=__version__,
        style=_text("page.css"),
        scripts=scripts,
        hashes=[*map(_csp_hash, scripts), *filter(None, [plots.hash])],
        plots=plots,
        data=safe_json(
            {
                "figures": figures,
                "tables": {b.key: b.payload for b in blocks if isinstance(b, LargeTable)},
                "timelines": timelines,
            }
        ),
        records=[safe_json(record) for record in page.records],
    )
    return f"{mark}\n{body}"


# A history has a thousand pages of the same template.
@functools.cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_folder()),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html")


@functools.cache
def _text(name: str) -> str:
    return (_folder() / name).read_text(encoding="utf-8")


def _folder() -> Path:
    return resource_folder("templates") / "report"


def safe_json(value: Any) -> str:
    """JSON for a script element: without NaN, and without what HTML would take for a tag."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escaped in _ESCAPED.items():
        text = text.replace(character, escaped)
    return text


def _figure(figure: Figure) -> dict[str, Any]:
    return {"key": figure.key, "data": list(figure.data), "layout": dict(figure.layout)}


class _Packed:
    """A script, compressed, with the digest under which the page may run it."""

    def __init__(self, packed: str, digest: str) -> None:
        self.packed = packed
        self.hash = digest


@functools.cache
def _plots() -> _Packed:
    """plotly.js, compressed to a third.

    Its Python package is not imported: that takes longer than the whole report.
    """
    source = _plotly_script().read_bytes()
    # Without a date, so that the same run gives the same page.
    packed = base64.b64encode(gzip.compress(source, _LEVEL, mtime=0)).decode()
    return _Packed(packed, _csp_hash(source.decode()))


def _plotly_script() -> Path:
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script
    raise EtdeployError(
        "plotly, which draws the report's plots, is not installed, or not completely",
        remedy="pip install --force-reinstall plotly",
    )


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
