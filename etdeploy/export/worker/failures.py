"""Failures of the worker: raised with a description, or described from what was caught."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType

from etdeploy.export.failure import install_remedy
from etdeploy.export.protocol import ExportFailure, FailureKind
from etdeploy.export.worker.loading.paths import user_folders

OUR_PACKAGE = Path(__file__).resolve().parent.parent.parent
_MEMORY = re.compile(r"can't allocate memory|not enough memory|bad_alloc|cannot allocate", re.I)


class WorkerError(Exception):
    """The export cannot continue; `failure` says why."""

    def __init__(self, failure: ExportFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def fail(
    kind: FailureKind, message: str, *, remedy: str | None = None, file: str | None = None
) -> WorkerError:
    """A failure that is not about an exception."""
    return WorkerError(ExportFailure(kind=kind, message=message, remedy=remedy, file=file))


@contextmanager
def of_method(name: str, methods: Collection[str]) -> Iterator[None]:
    """Names the method in a failure of the block, where the program has several."""
    try:
        yield
    except WorkerError as error:
        if len(methods) == 1 or error.failure.method:
            raise
        raise WorkerError(error.failure.model_copy(update={"method": name})) from error


@contextmanager
def blaming(kind: FailureKind, what: str, remedy: str | None = None) -> Iterator[None]:
    """Describes any exception of the block as `what` and the exception, at the user's line."""
    try:
        yield
    except (WorkerError, MemoryError, KeyboardInterrupt, GeneratorExit):
        raise  # the last ends a generator that its reader has left, and is nobody's failure
    except BaseException as error:  # SystemExit of the user's code is a failure like any other
        if is_memory(error):
            raise
        file, line, code = user_line(error)
        raise WorkerError(
            ExportFailure(
                kind=kind,
                message=f"{what} {exception_text(error)}",
                file=file,
                line=line,
                code=code,
                remedy=remedy or _unregistered(error) or _hidden(error) or user_remedy(error, kind),
            )
        ) from error


def _unregistered(error: BaseException) -> str | None:
    """What to do when a name in torch.ops does not exist."""
    if not isinstance(error, AttributeError) or "_OpNamespace" not in str(error):
        return None
    return (
        "Name the file that registers the operator: --set export.custom_ops=path/to/ops.py "
        "(or a .so)"
    )


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


def described(value: object) -> str:
    """What a value is, for a message: `None`, `an int`, `a tuple of 4`."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    count = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{article} {name}{count}"


def user_line(error: BaseException) -> tuple[str | None, int | None, str | None]:
    """File, line number and text of the innermost line of the user's own code in a traceback."""
    for trace in _traces(error):
        for frame, number in reversed(list(traceback.walk_tb(trace))):
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
        return "examples" in path.parts
    return not any(path.is_relative_to(root) for root in system_folders())


def system_folders() -> tuple[Path, ...]:
    """Where Python, its library and installed packages live."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(p).resolve() for n in names if (p := sysconfig.get_paths().get(n))}
    import site

    extra = [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(
        folders | {Path(p).resolve() for p in extra} | {Path(sys.prefix).resolve() / "lib"}
    )


def _traces(error: BaseException) -> Iterator[TracebackType]:
    """The exception's traceback, then those of what it came from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if current.__traceback__:
            yield current.__traceback__
        current = current.__cause__ or current.__context__


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, as Python or as torch reports it."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(_MEMORY.search(str(error)))
    )


@dataclass(frozen=True)
class Meaning:
    """What a failed step means for the user.

    Attributes:
        kind: What sort of failure.
        message: In place of the exception's own text.
        remedy: What to do.
        tensor: The name in the graph of the tensor that it is about.
        operator: The operator.
    """

    kind: FailureKind
    message: str
    remedy: str
    tensor: str | None = None
    operator: str | None = None


_COMPLEX = Meaning(
    "operator",
    "the model computes with complex numbers, which cannot be lowered",
    "Let the model compute with the real and the imaginary part as two real tensors, or leave the\n"
    "transform (fft, stft) to the code that calls the program.",
)
_VALUES = Meaning(
    "data-dependent",
    "a size in the model depends on the values of a tensor, and nothing bounds it",
    "Bound it where it is read: n = x.item(); torch._check(n >= 0); torch._check(n <= 512)\n"
    "Or keep the size fixed, and mask what is not wanted: torch.where(mask, x, 0)",
)
_ITEM = Meaning(
    "data-dependent",
    "the model computes with a number that it reads from a tensor with item()",
    "Keep it a tensor: x * y.max() in place of x * y.max().item()",
    operator="aten::item",
)
# The first group is the tensor's name, where there is one.
Meanings = tuple[tuple[re.Pattern[str], Meaning], ...]
_LOWERING: Meanings = (
    (re.compile(r"torch\.complex\d+|complex dtype|ComplexFloat"), _COMPLEX),
    (re.compile(r"Could not guard on data-dependent"), _VALUES),
    (re.compile(r"Failed serializing node \S+ in graph: .*aten\.item\.default"), _ITEM),
    (
        re.compile(r"Node \S+ with op .* was not decomposed or delegated"),
        Meaning(
            "operator",
            "the backend does not take the operator as the model uses it, and ExecuTorch has no "
            "kernel for it",
            "Replace it with other operators in the model's code, or choose another backend:\n"
            "--set export.backend=portable shows what the CPU's kernels make of it.",
        ),
    ),
    (
        re.compile(r"Constant (\S+) is mutated in the forward method"),
        Meaning(
            "lowering",
            "the model writes into a tensor that is not a buffer of it, so the program cannot keep "
            "what is written",
            "Make it one in the module's __init__: self.register_buffer('name', tensor)",
        ),
    ),
)
_EXECUTED = re.compile(r"call_function\[target=torch\.ops\.(\w+)\.(\w+)\.\w+\]")
_CHECKED = re.compile(r"(?:Operator:|with op) <EdgeOpOverload: (\w+)\.(\w+)\.\w+>")
_IN_PASS = re.compile(r"An error occurred when running the '(\w+)' pass")


def lowering_meaning(text: str, meanings: Meanings = ()) -> Meaning | None:
    """What an exception means that a traced model raised while it was made into a program."""
    for pattern, meaning in (*meanings, *_LOWERING):
        if found := pattern.search(text):
            tensor = found[1] if pattern.groups else None
            operator = meaning.operator or named_operator(text)
            return Meaning(meaning.kind, meaning.message, meaning.remedy, tensor, operator)
    return None


def named_operator(text: str) -> str | None:
    """The operator that an exception of a graph names: `aten::abs`."""
    found = _CHECKED.search(text) or _EXECUTED.search(text)
    return f"{found[1]}::{found[2]}" if found else None


def failed_pass(text: str) -> str | None:
    """The pass of ExecuTorch over the graph that an exception names: `LiftConstants`."""
    found = _IN_PASS.search(text)
    return found[1] if found else None


_CUDA = re.compile(r"compiled with CUDA|NVIDIA driver|CUDA (error|device)|re-initialize CUDA")
_CALL = re.compile(r"\bforward\(\) (takes|missing|got)")
_META = re.compile(r"device meta|meta tensor")
_SHAPES = re.compile(r"shapes cannot be multiplied|size of tensor|same dtype|expected input\[")
_VIEW = re.compile(r"view size is not compatible")
_SCRIPTED = re.compile(r"Exporting a ScriptModule")
_AS_PYTHON = "Call the module with the same inputs in Python, without etdeploy, to see more of it."


def user_remedy(error: BaseException, kind: FailureKind) -> str | None:
    """What to do about an exception that the user's own code ended with."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return _file_remedy(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return install_remedy(error.name.partition(".")[0])
    if _CUDA.search(text):
        return (
            "Models are exported on the CPU: leave out .cuda() and .to('cuda'), and load weights "
            "with\ntorch.load(path, map_location='cpu')."
        )
    if _META.search(text):
        return (
            "Give the parameters values before the factory returns: on the meta device they have "
            "none."
        )
    if _SCRIPTED.search(text):
        return "Return the nn.Module itself from the factory, not what torch.jit made of it."
    if kind != "model-raised":
        return None
    if _VIEW.search(text):
        return (
            "Use reshape() there in place of view(): programs take inputs whose values lie in the "
            "order of\ntheir shape, and the strides of the example input are changed to that."
        )
    if _CALL.search(text) or _SHAPES.search(text):
        return (
            "Compare the example inputs that the factory returns with what forward takes: their "
            "number,\norder, shapes and data types."
        )
    return _AS_PYTHON


def _file_remedy(error: FileNotFoundError) -> str | None:
    name = error.filename
    if not isinstance(name, str) or Path(name).is_absolute():
        return None
    return (
        f"{name} was looked for in {Path.cwd()}, the working folder. A file beside the model is\n"
        f"Path(__file__).parent / {name!r}"
    )


# Of runtime/core/error.h: the program itself is wrong. Others, such as an operator or memory that
# is not there, are about this machine.
_OF_THE_PROGRAM = {
    0x1: "internal error",
    0x10: "not supported",
    0x11: "not implemented",
    0x12: "invalid argument",
    0x13: "invalid type",
    0x23: "invalid program",
    0x30: "the delegate does not take it",
}


# Of the first line that a kernel, a delegate or the runtime logged; cpuinfo complains on any Arm.
_LOGGED = re.compile(r"^(?:[A-Z] \S* *)?\[(?!cpuinfo)\w+\.(?:cpp|h):\d+\] (.+)$", re.MULTILINE)
_KERNEL = re.compile(r"failed at instruction \S+ in operator (\w+::\w+)")


def runtime_refusal(text: str, logged: str = "") -> str | None:
    """Why the runtime did not load or run a program, as a clause, if the program is to blame."""
    # Written as `error: 0x:1` and as `error 0x12`.
    found = re.search(r"error:? 0x:?([0-9a-f]+)", text)
    known = _OF_THE_PROGRAM.get(int(found[1], 16)) if found else None
    first = _LOGGED.search(logged)
    return f"{known} ({(first[1] if first else text).strip()})" if known else None


def failed_kernel(logged: str) -> str | None:
    """The operator whose kernel the runtime names: `aten::convolution`."""
    found = _KERNEL.search(logged)
    return found[1] if found else None
