"""Failures of the worker: raised with a description, or described from what was caught."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from etdeploy.export.diagnostics import MODEL_CALL_FAILURES, PROGRAM_FAILURES, USER_CODE_FAILURES
from etdeploy.export.needs import install_remedy
from etdeploy.export.protocol import ExportFailure, FailureKind
from etdeploy.export.worker.loading.paths import user_folders

OUR_PACKAGE = Path(__file__).resolve().parent.parent.parent
# File, line number and text of a line; None where it is not known.
SourceLine = tuple[str | None, int | None, str | None]
_MEMORY = re.compile(r"can't allocate memory|not enough memory|bad_alloc|cannot allocate", re.I)


class WorkerError(Exception):
    """The export cannot continue; `failure` says why."""

    def __init__(self, failure: ExportFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class UnsupportedModelError(Exception):
    """A path cannot compute a language model; the text is a clause about it."""


def fail(
    kind: FailureKind, message: str, *, remedy: str | None = None, file: str | None = None
) -> WorkerError:
    """A failure that is not about an exception."""
    return WorkerError(ExportFailure(kind=kind, message=message, remedy=remedy, file=file))


def failure_at(
    place: SourceLine,
    kind: FailureKind,
    message: str,
    *,
    operator: str | None = None,
    remedy: str | None = None,
) -> ExportFailure:
    """A failure at a line of the user's code, as far as that is known."""
    file, line, code = place
    return ExportFailure(
        kind=kind,
        message=message,
        operator=operator,
        file=file,
        line=line,
        code=code,
        remedy=remedy,
    )


@contextmanager
def name_method(name: str, methods: Collection[str]) -> Iterator[None]:
    """Names the method in a failure of the block, where the program has several."""
    try:
        yield
    except WorkerError as error:
        if len(methods) == 1 or error.failure.method:
            raise
        raise WorkerError(error.failure.model_copy(update={"method": name})) from error


@contextmanager
def describe_errors(kind: FailureKind, what: str, remedy: str | None = None) -> Iterator[None]:
    """Describes any exception of the block as `what` and the exception, at the user's line."""
    try:
        yield
    except (WorkerError, MemoryError, KeyboardInterrupt, GeneratorExit):
        raise  # the last ends a generator that its reader has left, and is nobody's failure
    except BaseException as error:  # SystemExit of the user's code is a failure like any other
        if is_memory(error):
            raise
        text = f"{what} {exception_text(error)}"
        remedy = remedy or _hidden(error) or user_remedy(error, kind)
        raise WorkerError(failure_at(user_line(error), kind, text, remedy=remedy)) from error


def _hidden(error: BaseException) -> str | None:
    """What to do when a module of the user has the name of an installed one."""
    if isinstance(error, ImportError):
        name = error.name
    else:
        module = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
        name = module.__name__ if isinstance(module, ModuleType) else None
    own = user_folders.hidden(name) if name else None
    if own is None:
        return None
    return (
        f"An installed module is imported as {(name or '').partition('.')[0]}, before {own}: "
        "installed ones\ncome first. Rename yours."
    )


def failure_of(error: BaseException) -> ExportFailure:
    """The description of whatever ended the export."""
    if isinstance(error, WorkerError):
        return error.failure
    if is_memory(error):
        return ExportFailure(
            kind="memory",
            message=f"the export ran out of memory: {first_line(error) or 'MemoryError'}",
            remedy="Close other programs, export a smaller model, or use a larger machine.",
        )
    if isinstance(error, OSError):
        return ExportFailure(kind="write", message=f"the program cannot be written: {error}")
    return ExportFailure(kind="lowering", message=f"the export failed: {exception_text(error)}")


def exception_text(error: BaseException) -> str:
    """`ValueError: bad width`, the message cut after its first line that is not only a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((i for i, line in enumerate(lines) if not line.endswith(":")), len(lines))
    line = " ".join(lines[: end + 1])
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of the exception's message that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def describe(value: object) -> str:
    """What a value is, for a message: `None`, `an int`, `a tuple of 4`."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    count = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{article} {name}{count}"


def user_line(error: BaseException) -> SourceLine:
    """The innermost line of the user's own code in a traceback."""
    for current in causes(error):
        for frame, number in reversed(list(traceback.walk_tb(current.__traceback__))):
            file = frame.f_code.co_filename
            if is_user_file(file):
                return file, number, linecache.getline(file, number).strip() or None
    if isinstance(error, SyntaxError) and error.filename and is_user_file(error.filename):
        return error.filename, error.lineno, (error.text or "").strip() or None
    return None, None, None


def is_user_file(name: str) -> bool:
    """Whether code in that file is neither Python's, nor an installed package's, nor etdeploy's.

    A bundled example counts as the user's: its line is where to look.
    """
    if name.startswith("<") or not Path(name).is_file():
        return False
    path = Path(name).resolve()
    if path.is_relative_to(OUR_PACKAGE):
        return path.stem == "examples"
    return not any(path.is_relative_to(root) for root in system_folders())


@cache
def system_folders() -> tuple[Path, ...]:
    """Where Python, its library and installed packages live."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(p).resolve() for n in names if (p := sysconfig.get_paths().get(n))}
    import site

    extra = [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(
        folders | {Path(p).resolve() for p in extra} | {Path(sys.prefix).resolve() / "lib"}
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, then those that it came from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, as Python or as torch reports it."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(_MEMORY.search(str(error)))
    )


_EXECUTED = re.compile(r"call_function\[target=torch\.ops\.(\w+)\.(\w+)\.\w+\]")
_CHECKED = re.compile(r"(?:Operator:|with op) <EdgeOpOverload: (\w+)\.(\w+)\.\w+>")
_IN_PASS = re.compile(r"An error occurred when running the '(\w+)' pass")


def named_operator(text: str) -> str | None:
    """The operator that an exception of a graph names: `aten::abs`."""
    found = _CHECKED.search(text) or _EXECUTED.search(text)
    return f"{found[1]}::{found[2]}" if found else None


def failed_pass(text: str) -> str | None:
    """The pass of ExecuTorch over the graph that an exception names: `LiftConstants`."""
    found = _IN_PASS.search(text)
    return found[1] if found else None


def user_remedy(error: BaseException, kind: FailureKind) -> str | None:
    """Return the remedy for an exception that the user's own code raised."""
    if isinstance(error, FileNotFoundError):
        return _file_remedy(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return install_remedy(error.name.partition(".")[0])
    found = USER_CODE_FAILURES.diagnose(str(error))
    if found is None and kind == "model-raised":
        found = MODEL_CALL_FAILURES.diagnose(str(error))
    return found.remedy if found else None


def _file_remedy(error: FileNotFoundError) -> str | None:
    name = error.filename
    if not isinstance(name, str) or Path(name).is_absolute():
        return None
    return (
        f"{name} was looked for in {Path.cwd()}, the working folder. A file beside the model is\n"
        f"Path(__file__).parent / {name!r}"
    )


# Of the first line that a kernel, a delegate or the runtime logged; cpuinfo complains on any Arm.
_LOGGED = re.compile(r"^(?:[A-Z] \S* *)?\[(?!cpuinfo)\w+\.(?:cpp|h):\d+\] (.+)$", re.MULTILINE)
_KERNEL = re.compile(r"failed at instruction \S+ in operator (\w+::\w+)")


def runtime_refusal(text: str, logged: str = "") -> str | None:
    """Why the runtime did not load or run a program, as a clause, if the program is to blame."""
    known, first = PROGRAM_FAILURES.diagnose(text), _LOGGED.search(logged)
    return f"{known.cause} ({(first[1] if first else text).strip()})" if known else None


def failed_kernel(logged: str) -> str | None:
    """The operator whose kernel the runtime names: `aten::convolution`."""
    found = _KERNEL.search(logged)
    return found[1] if found else None
