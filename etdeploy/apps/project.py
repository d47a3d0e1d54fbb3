"""All files of an app's project, by their paths in it; the same values give the same bytes.

Of the templates, `X.j2` is rendered to `X`; every other file is copied. In paths, `__package__`
stands for the app's id as folders, and `__name__` for its target's name. `NAME.inference.EXT` and
`NAME.generation.EXT` become `NAME.EXT` for programs of that workload, and are left out for the
others; so do names with a task of the app, and `NAME.task.EXT` for any task but `tensor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from etdeploy.apps.model import AppScreen, Payload
from etdeploy.apps.platform import AppSubject, Platform
from etdeploy.core.files.basic import folder_files
from etdeploy.core.hashing import code_digest, digest_json, sha256_file
from etdeploy.core.values import Value


class Project(Value):
    """A project that was written, with a digest of all its files, and notes as sentences.

    `from_source`: a build of etdeploy's puts its ExecuTorch into it; Android Studio finds none
    before.
    """

    folder: str
    platform: str
    id: str
    files: str
    kind: str = ""
    from_source: bool = False
    notes: tuple[str, ...] = ()


def project_files(
    platform: Platform, subject: AppSubject, payload: Payload
) -> dict[str, bytes | Path]:
    """Return every file of a project by its path; BuildError where something is missing here."""
    files: dict[str, bytes | Path] = {**render_tree(platform.templates, platform.values(subject))}
    files |= platform.files(subject)
    placed = {platform.place(subject, path): content for path, content in payload.items()}
    return files | {path: content for path, content in placed.items() if path}


def code_and_templates_digest(platform: Platform) -> str:
    """Of everything that decides how a project looks: templates and code."""
    templates = [
        {name: sha256_file(folder / name) for name in folder_files(folder)}
        for folder in platform.parts
    ]
    return digest_json([templates, code_digest("apps")])


WORKLOADS = ("inference", "generation")
TENSOR = "tensor"
"""The task of an app that measures alone."""
_ANY_TASK = "task"
_TEMPLATE = ".j2"


def render_tree(folder: Path, values: Mapping[str, Any]) -> dict[str, bytes]:
    """The project's files by their POSIX paths."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Kotlin, Swift and XML are no HTML: what needs it is escaped by the filters.
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "xml": xml_text,
        "kotlin": kotlin_text,
        "swift": swift_text,
        "resource": android_text,
    }
    files: dict[str, bytes] = {}
    for source, path in template_paths(folder, values["app"]):
        if path in files:
            raise ValueError(f"two templates give {path}")
        if source.endswith(_TEMPLATE):
            files[path] = environment.get_template(source).render(values).encode()
        else:
            files[path] = (folder / source).read_bytes()
    return files


def template_paths(folder: Path, app: Any) -> Iterator[tuple[str, str]]:
    """Each template with the path of what it gives."""
    for source in folder_files(folder):
        path = PurePosixPath(source.removesuffix(_TEMPLATE))
        name = _name_for(path.name, app)
        if name is None:
            continue
        parts = [_replaced(part, app) for part in path.parts[:-1]]
        yield source, "/".join([*parts, _replaced(name, app)])


def _name_for(name: str, app: Any) -> str | None:
    """The file's name without the workload or task that it is for; None for another one."""
    task = getattr(app, "task", TENSOR)
    chosen = (app.workload, task, *([] if task == TENSOR else [_ANY_TASK]))
    for each in (*WORKLOADS, *get_args(AppScreen), _ANY_TASK):
        if f".{each}." in name:
            return name.replace(f".{each}.", ".", 1) if each in chosen else None
    return name


def _replaced(part: str, app: Any) -> str:
    if part == "__package__":
        return str(app.id).replace(".", "/")
    return part.replace("__name__", str(app.target)) if "__name__" in part else part


def xml_text(text: object) -> str:
    """Text between tags, or in an attribute with double quotes."""
    from xml.sax.saxutils import escape

    return escape(str(text), {'"': "&quot;", "'": "&apos;"})


def swift_text(text: object) -> str:
    """A string literal of Swift; a backslash, which could begin an expression, is escaped."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c, c) for c in str(text)) + '"'


def kotlin_text(text: object) -> str:
    """A string literal of Kotlin, in which `$` would begin an expression."""
    return swift_text(text).replace("$", "\\$")


def android_text(text: object) -> str:
    """A string resource (https://developer.android.com/guide/topics/resources/string-resource)."""
    escapes = {"\\": "\\\\", "'": "\\'", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    escaped = "".join(escapes.get(c, c) for c in str(text))
    from xml.sax.saxutils import escape

    return "\\" + escape(escaped) if escaped[:1] in ("@", "?") else escape(escaped)
