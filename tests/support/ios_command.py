"""A stand-in for the program pymobiledevice3 that gives recorded answers.

tool = IosCommand(tmp_path)
tool.answers("apps query", stdout="{}")
monkeypatch.setenv("ETDEPLOY_PYMOBILEDEVICE3", str(tool.program))
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SCRIPT = """#!{python} -IS
import json, os, shutil, sys, time
folder = {folder!r}
line = " ".join(sys.argv[1:])
told = {{k: v for k, v in os.environ.items() if "MOBILEDEVICE" in k or "MUXD" in k}}
with open(folder + "/calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], told]) + "\\n")
path = folder + "/answers.json"
answers = json.load(open(path))
known = [one for one in answers if line.startswith(one["words"])]
if not known:
    sys.exit("unexpected: " + line)
answer = known[0]
if len(known) > 1:
    answers.remove(answer)
    json.dump(answers, open(path, "w"))
for name, text in answer["files"].items():
    target = next((word for word in sys.argv[1:] if os.path.isdir(word)), sys.argv[-1])
    if os.path.isdir(target):
        target += "/" + name
    os.makedirs(os.path.dirname(target), exist_ok=True)
    open(target, "w").write(text)
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.stdout.flush()
sys.stderr.flush()
time.sleep(answer["seconds"])
sys.exit(answer["exit_code"])
"""


@dataclass
class IosCommand:
    """The program.

    Attributes:
        folder: Of the test, for its own use.
        name: Of the program.
    """

    folder: Path
    name: str = "pymobiledevice3"
    _answers: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        script = _SCRIPT.format(python=sys.executable, folder=str(self.folder))
        self.program.write_text(script)
        self.program.chmod(0o755)
        self._write()

    @property
    def program(self) -> Path:
        return self.folder / self.name

    def answers(
        self,
        words: str,
        stdout: str = "",
        stderr: str = "",
        exit_code: int = 0,
        seconds: float = 0,
        files: dict[str, str] | None = None,
    ) -> None:
        """The next answer to a command line that begins so; the last one of them stays.

        Args:
            words: The beginning of the arguments.
            stdout, stderr, exit_code: What it prints, and how it ends.
            seconds: How long it then runs on.
            files: What it writes where its last argument says: by name in a folder, or the file.
        """
        answer = {"words": words, "stdout": stdout, "stderr": stderr, "exit_code": exit_code}
        self._answers.append(answer | {"seconds": seconds, "files": files or {}})
        self._write()

    @property
    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """Arguments and variables of each call."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    @property
    def lines(self) -> list[str]:
        """The calls, as lines."""
        return [" ".join(words) for words, _ in self.calls]

    def _write(self) -> None:
        (self.folder / "answers.json").write_text(json.dumps(self._answers))


def logged(error: str) -> str:
    """What pymobiledevice3 11.45 writes to stderr when it ends with an error."""
    stamp = "2026-11-23 01:22:51 vm pymobiledevice3.__main__[14256]"
    advice = "Run again with -v for the full traceback (include it when reporting an issue)"
    return f"{stamp} ERROR {error}\n{stamp} INFO {advice}\n"
