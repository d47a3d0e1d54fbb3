"""The picture of the Android app's screen in the documentation.

    python -m tests.support.app_picture

writes it anew, as the app's own views draw it under Robolectric; look at the difference before it
is kept. What is measured is never the same twice, so the figures on the screen are given here, like
those of the first run in README.md.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.support.android_app import App, Tools, describe, obtain_tools, render

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "android-app.svg"
_SAMPLES = 300
_FACTS = {"name": "convnet", "program_bytes": 10_000_000, "iterations": _SAMPLES}


def draw(tools: Tools, folder: Path, compiled: App | None = None) -> Path:
    """The SVG of the screen after a run.

    Args:
        tools: What compiles and runs the app.
        folder: Gets all that is made.
        compiled: An app of the same templates, whose classes will do.
    """
    app = App(folder / "project", folder / "built")
    render(app.project, "inference", name="ConvNet", model_name="convnet")
    app.payload.mkdir(parents=True)
    describe(app.payload, **_FACTS)
    if compiled:
        shutil.copytree(compiled.built / "classes", app.built / "classes")
    else:
        app.compile(tools)
    asked = {"idle": True, "figures": _figures(), "svg": True}
    (screen,) = app.start(tools, folder / "screens", {"picture": asked}).values()
    return screen.folder / "screen.svg"


def _figures() -> dict[str, Any]:
    """Of a finished run; most inferences take about as long as the fastest."""
    chance = random.Random(0)
    return {
        "load_ns": 9_084_000,
        "first_ns": 4_726_000,
        "samples_ns": [int(1.423e6 + chance.gammavariate(1.6, 0.08e6)) for _ in range(_SAMPLES)],
        "output": "",
        "difference": 5.07e-07,
        "allowed": 0.000104,
    }


def main() -> None:
    """Draws it and puts it into its place."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawn = draw(obtain_tools(folder), folder / "app").read_text()
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
