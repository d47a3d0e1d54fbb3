"""A folder of templates becomes the files of a project."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError

from etdeploy.apps.project import android_text, kotlin_text, render_tree, swift_text, xml_text


def app(workload: str = "inference", **more: str) -> dict[str, object]:
    values = {"id": "org.example.convnet", "target": "Convnet", "name": "A & B"}
    return {"app": SimpleNamespace(**{**values, "workload": workload, **more})}


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    files = {
        "plain.txt": "{{ app.name }}",
        "filled.txt.j2": "{{ app.name | xml }}\n",
        "src/__package__/Main.kt.j2": "package {{ app.id }}\n",
        "__name__.xcodeproj/project.pbxproj": "x",
        "Run.inference.kt": "runs",
        "Run.generation.kt.j2": "writes",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_a_value_that_is_missing_is_a_mistake(templates: Path) -> None:
    (templates / "wrong.j2").write_text("{{ app.nothing }}")
    with pytest.raises(UndefinedError):
        render_tree(templates, app())


def test_two_templates_of_one_path_are_a_mistake(templates: Path) -> None:
    (templates / "filled.txt").write_text("another")
    with pytest.raises(ValueError, match=r"filled\.txt"):
        render_tree(templates, app())


def test_text_stays_text_in_every_language() -> None:
    name = """a "b" 'c' $d \\(e) <f> & @g"""
    assert xml_text(name) == "a &quot;b&quot; &apos;c&apos; $d \\(e) &lt;f&gt; &amp; @g"
    assert swift_text(name) == """"a \\"b\\" 'c' $d \\\\(e) <f> & @g\""""
    assert kotlin_text(name) == """"a \\"b\\" 'c' \\$d \\\\(e) <f> & @g\""""
    assert android_text("it's") == "it\\'s"
    assert android_text("@string/x & y") == "\\@string/x &amp; y"
