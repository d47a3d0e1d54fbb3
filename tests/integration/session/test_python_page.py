"""docs/python.md: its code runs as it is, with a small model in place of SmolLM2."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import etdeploy

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs" / "python.md"


def test_the_code_of_the_page_runs(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(blocks) > 6
    code = "\n".join(blocks)
    assert code.count('model="./SmolLM2"') > 2
    monkeypatch.chdir(tmp_path)
    Path("SmolLM2.pte").symlink_to(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path(name).symlink_to(Path(model).parent / name)
    Path("page.py").write_text(code.replace("./SmolLM2", "./SmolLM2.pte"))
    names = runpy.run_path("page.py")
    out = capsys.readouterr().out
    assert "max_new_tokens (" in out
    assert "(2, 261)" in out
    assert isinstance(names["session"], etdeploy.Session)
    assert names["state"].position > 0
    assert (tmp_path / "talk.cache").is_file()
