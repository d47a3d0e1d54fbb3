"""Builds the APK of a project with Gradle, as Android Studio does."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.apps.android.apk import describe_apk
from etdeploy.apps.android.app import AndroidApp, require_room, require_valid
from etdeploy.apps.android.archive import require_sound
from etdeploy.apps.android.sdk import Jdk
from etdeploy.apps.android.tools import GRADLE, WRAPPER
from etdeploy.apps.platform import BuiltApp
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable
from etdeploy.core.errors import BuildError
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, silent

OUTPUT = "app/build/outputs/apk/debug/app-debug.apk"
_TASK = ":app:assembleDebug"
_STEP = re.compile(r"> Task (:\S+)")
# What Gradle says below "What went wrong".
_WRONG = re.compile(r"\* What went wrong:\n(.*?)(?:\n\n|\n\* |\Z)", re.DOTALL)
_COMPILER = re.compile(r"^(?:e: |error: |ERROR:).*", re.MULTILINE)
_QUOTED_LINES = 6
# Messages of Gradle and its plugin.
GRADLE_FAILURES = FailureTable(
    "Building an Android app with Gradle",
    BuildError.exit_code,
    (
        FailurePattern(
            r"SDK location not found|ANDROID_HOME",
            "Gradle finds no Android SDK",
            "Install Android Studio, and\nexport ANDROID_HOME=$HOME/Android/Sdk",
        ),
        FailurePattern(
            r"Could not (?:resolve|GET|download)|UnknownHostException|No route to host",
            "Gradle cannot fetch its plugins and libraries",
            "Check the network, or build the app with the SDK's tools, which fetch nothing:\n"
            "--set app.build=sdk",
        ),
        FailurePattern(
            r"requires (?:Gradle|Java)|Minimum supported Gradle|Unsupported class file",
            "the Gradle or the JDK is too old for the Android plugin",
            "Use Android Studio's own Gradle and JDK, or build the app with the SDK's tools:\n"
            "--set app.build=sdk",
        ),
    ),
)


def gradle_command(gradle: Path, project: Path) -> tuple[str, ...]:
    """The command that builds the app, as a person types it in the project's folder."""
    program = f"./{WRAPPER}" if gradle == project / WRAPPER else str(gradle)
    return (program, _TASK, "--console=plain")


def build_with_gradle(
    project: Path,
    gradle: Path,
    app: AndroidApp,
    progress: Progress = silent,
    *,
    jdk: Jdk | None = None,
    log: Path | None = None,
) -> BuiltApp:
    """Build the APK; Gradle itself knows what has changed."""
    require_valid(app)
    require_room(project)
    progress("building the app with Gradle")

    def report(line: str) -> None:
        step = _STEP.match(line)
        if step:
            progress(f"Gradle: {step[1]}")

    request = process.Request(
        gradle_command(gradle, project),
        cwd=project,
        env={"JAVA_HOME": str(jdk.path)} if jdk else {},
        log=log,
        on_line=report,
    )
    try:
        outcome = process.run(request)
    except OSError as error:
        raise BuildError(f"{GRADLE} cannot be started: {gradle}: {error.strerror}") from error
    if not outcome.ok:
        raise _failure(outcome.stdout, log)
    return _result(project / OUTPUT, app, log)


def _result(apk: Path, app: AndroidApp, log: Path | None) -> BuiltApp:
    try:
        require_sound(apk)
        return describe_apk(apk, app, "gradle")
    except (OSError, zipfile.BadZipFile) as error:
        raise BuildError(
            f"Gradle wrote no APK where one is expected: {error}",
            place=str(apk),
            remedy="Keep the module `app` and its build type `debug` in the project.",
            log=log,
        ) from error


def _failure(output: str, log: Path | None) -> BuildError:
    quoted = _COMPILER.findall(output)[:_QUOTED_LINES]
    wrong = _WRONG.search(output)
    if wrong:
        quoted += [line.strip() for line in wrong[1].splitlines() if line.strip()][:_QUOTED_LINES]
    found = GRADLE_FAILURES.diagnose(output) or Diagnosis("Gradle could not build the app", "")
    message = "\n".join([f"{found.cause}:", *(quoted or output.splitlines()[-1:])])
    return BuildError(message, remedy=found.remedy or None, log=log)


MODULE = "app/build.gradle.kts"
GRADLE_FILES = (MODULE, "build.gradle.kts", "gradle/libs.versions.toml", "settings.gradle.kts")
_COMMENT = {
    ".kts": re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL),
    ".toml": re.compile(r'("(?:\\.|[^"\\\n])*")|#[^\n]*'),
}
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|[{}\n;]|[^"{}\n;]+|"')
_LITERAL = re.compile(r'(\w+) ?= ?(?:(\d[\d_]*)|"([^"\\$]*)")')
# By block and name; the fields are those of AndroidApp.
_FIELDS = {
    ("android", "compileSdk"): "compile_sdk",
    ("android", "defaultConfig", "minSdk"): "min_sdk",
    ("android", "defaultConfig", "targetSdk"): "target_sdk",
    ("android", "defaultConfig", "versionCode"): "version_code",
    ("android", "defaultConfig", "versionName"): "version_name",
}
# Google Play takes no version code above it, and every API level is below it.
_LARGEST_NUMBER = 2_100_000_000
# The APK is one for debugging, without tests.
_OTHER_VARIANT = re.compile(r"(?:test|androidTest|release)\w*(?:\(| =)")
_SHOWN = 8


@dataclass(frozen=True)
class _Statement:
    """A line of a Gradle file, or a part of one, in its blocks."""

    blocks: tuple[str, ...]
    text: str
    line: int = 0

    @property
    def key(self) -> tuple[tuple[str, ...], str]:
        return self.blocks, self.text

    @property
    def matters(self) -> bool:
        other = "release" in self.blocks or _OTHER_VARIANT.match(self.text)
        return re.search(r"\w", self.text) is not None and not other

    def value(self) -> tuple[str, int | str] | None:
        """The field of the app that it sets to a literal."""
        literal = _LITERAL.fullmatch(self.text)
        name = _FIELDS.get((*self.blocks, literal[1])) if literal else None
        if literal is None or name is None:
            return None
        if name == "version_name":
            return (name, literal[3]) if literal[3] else None
        number = int(literal[2] or 0)
        return (name, number) if 0 < number <= _LARGEST_NUMBER else None


def apply_gradle_files(
    project: Path, app: AndroidApp, generated: Mapping[str, str]
) -> tuple[AndroidApp, tuple[str, ...]]:
    """The app with the API levels and versions of a project's build.gradle.kts."""
    notes: list[str] = []
    values: dict[str, int | str] = {}
    for path, text in generated.items():
        try:
            own = (project / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            notes.append(f"{path} cannot be read; this build applies the generated one")
            continue
        statements = [*_statements(own, Path(path).suffix)]
        if path == MODULE:
            values = dict(filter(None, (each.value() for each in statements)))
        notes += _ignored(path, statements, [*_statements(text, Path(path).suffix)], values)
    if len(notes) > _SHOWN:
        notes[_SHOWN:] = [f"{len(notes) - _SHOWN} further changes of Gradle files are ignored"]
    if notes:
        notes.append("build with Gradle to apply these changes: --set app.build=gradle")
    return app.model_copy(update=values), tuple(notes)


def _ignored(
    path: str,
    own: list[_Statement],
    generated: list[_Statement],
    values: Mapping[str, int | str],
) -> Iterator[str]:
    """Notes on statements that one side has more often than the other one."""
    left = Counter(each.key for each in generated)
    for each in own:
        left[each.key] -= 1
        if left[each.key] < 0 and each.matters and not each.value():
            yield f"{path}:{each.line}: only Gradle applies this line: {each.text}"
    for each in generated:
        read = each.value()
        if left[each.key] > 0 and each.matters and (read is None or read[0] not in values):
            yield f"{path}: this build still applies the removed line: {each.text}"


def _statements(text: str, suffix: str) -> Iterator[_Statement]:
    """Split a file at braces, semicolons and line ends, without comments."""
    plain = _COMMENT[suffix].sub(lambda found: found[1] or "\n" * found[0].count("\n"), text)
    blocks: list[str] = []
    words, line = "", 1
    for part in _TOKEN.findall(plain):
        if part not in ("{", "}", "\n", ";"):
            words += part
            continue
        statement = " ".join(words.split())
        words = ""
        if part == "{":
            blocks.append(statement)
        elif statement:
            yield _Statement(tuple(blocks), statement, line)
        if part == "}" and blocks:
            blocks.pop()
        line += part == "\n"
    if words.strip():
        yield _Statement(tuple(blocks), " ".join(words.split()), line)
