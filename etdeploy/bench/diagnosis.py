"""Why a runner failed: what its exit and its last lines usually mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from etdeploy.backends.base import NEW_FILE
from etdeploy.backends.registry import known_backends
from etdeploy.backends.schemes import DEFAULT, OTHER_BACKEND
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable
from etdeploy.core.errors import RunError
from etdeploy.devices.base import Capabilities, RunOutcome
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.remedies import with_settings

_LAST_LINES = 8


_LONGEST_LINE = 300


_PREFIX = "etdeploy-runner: error: "


# Debug and info lines of ExecuTorch's log; warnings and errors begin with another letter.
_CHATTER = re.compile(r"[DI] \d\d:\d\d:\d\d\.\d+ executorch:")


_ELSEWHERE = Capabilities()


# The remedy depends on the recipe and the device.
_CRASHED = ""


_SMALLER = "Close other apps, or make the model smaller, for instance by export.quantization."


_SMALLER_FILE = (
    f"Close other apps, or export a smaller model, for instance a quantized one, {NEW_FILE}."
)


_SAME_VERSION = "Export it again with the same ExecuTorch version: etdeploy clean programs"


_SAME_VERSION_FILE = f"Export the model again with the runner's version of ExecuTorch, {NEW_FILE}."


_KILLED = Diagnosis(
    "something killed it from outside, and it was not the system, for lack of memory",
    "Run the same command again; if it is killed again, look for what ends processes there.",
)


_SIGNALS = {
    "SIGKILL": Diagnosis(
        "the system killed it, nearly always because memory ran out", _SMALLER, _SMALLER_FILE
    ),
    "SIGILL": Diagnosis(
        "the processor does not have an instruction that the libraries use",
        "Run on a newer device; ExecuTorch's prebuilt libraries choose kernels by processor, so "
        "this is\nworth reporting with the output of: etdeploy devices",
    ),
    "SIGSEGV": Diagnosis("it read or wrote memory that is not its own", _CRASHED),
    "SIGBUS": Diagnosis("a mapped file was truncated, or memory was misaligned", _CRASHED),
    "SIGFPE": Diagnosis("a kernel divided by zero", _CRASHED),
    "SIGABRT": Diagnosis("it aborted: a check in ExecuTorch or in the C library failed", _CRASHED),
    "SIGSYS": Diagnosis(
        "the system forbids a call that it made, as Android does inside apps",
        "Use a device whose adb shell may run your own programs, or: --device qemu",
    ),
    "SIGTERM": Diagnosis("something on the device asked it to end", "Run the same command again."),
}  # fmt: skip


# The pass of `generate` and `chat`, which measures nothing.
TEXT = "generation"


_FEWER_TOKENS = "--set benchmark.iterations=1 --set 'benchmark.generation.new_tokens=[16]'"


# Remedies by the runner's exit codes (templates/runner/arguments.h), the second for a finished
# program.
_EXITS = {
    2: ("The runner does not match etdeploy. Build it again: etdeploy clean runners",),
    3: (_SAME_VERSION, _SAME_VERSION_FILE),
    4: (
        "Export again, with inputs that fit the method: etdeploy clean programs",
        "Make its inputs again: etdeploy clean programs",
    ),
    6: ("Check free space and write permission on the device: etdeploy clean --device {device}",),
}


# Remedies of a program that generates text: it has prompts instead of inputs.
_TEXT_EXITS = {4: ("Export the model again: etdeploy clean programs",)}


# Texts of ExecuTorch 1.5.1's log and of the runner; the first match counts.
RUN_FAILURES = FailureTable(
    "The run on the device",
    7,
    (
        FailurePattern(
            r"[Mm]issing operator: \[\d+\] (?P<name>\S+)",
            "the runner has no kernel for {name}",
            "Build it again: etdeploy clean runners; or let a backend take it: "
            f"--set export.backend={DEFAULT}",
            "Build it again: etdeploy clean runners; or export the model again for a backend that "
            f"takes\nthe operator, {NEW_FILE}.",
        ),
        FailurePattern(
            r"[Bb]ackend (?P<name>\S+) is (?:linked, but )?not available",
            "the backend {name} is in the runner, but not available on this device",
            f"See the log for what it lacks. {OTHER_BACKEND}",
            "See the log for what it lacks, or export the model again for another backend,\n"
            f"{NEW_FILE}.",
        ),
        FailurePattern(
            r"[Bb]ackend (?P<name>\S+) is not registered",
            "the backend {name} is not in the runner",
            "Build it again: etdeploy clean runners; or lower to another: "
            f"--set export.backend={DEFAULT}",
            "Build it again: etdeploy clean runners; or export the model again for another "
            "backend,\n"
            f"{NEW_FILE}.",
        ),
        FailurePattern(
            r"the program has no method (?P<name>\S+)",
            "the recipe's benchmark.method does not exist in the program",
            "Name one of the program's methods, as `etdeploy inspect` lists them: "
            "--set benchmark.method=forward",
        ),
        FailurePattern(
            r"after (?P<name>\d+) tokens, (?:of \d+ logits, \d+ are NaN|the largest of \d+ logits)",
            "the logits after {name} tokens are not numbers",
            "See whether the quantization is the cause: --set export.quantization=none\n"
            "or the backend: --set export.backend=portable --set export.quantization=none",
        ),
        FailurePattern(
            r"No space left on device",
            "the device's storage is full",
            "Free some space, for instance: etdeploy clean --device {device}",
        ),
        FailurePattern(
            r"out of memory|MemoryAllocationFailed|bad_alloc",
            "memory ran out",
            _SMALLER,
            _SMALLER_FILE,
        ),
        FailurePattern(
            r"without the component etdump",
            "the runner was built without tracing",
            "Build it again: etdeploy clean runners; or leave the profile out: "
            "--set benchmark.profile=false",
        ),
        FailurePattern(
            r"version `(?P<name>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",
            "the device's C or C++ library is too old for the runner: it does not have {name}",
            "Use the runner that brings its own: --target linux-x86_64-portable, or on Arm\n"
            "--target linux-aarch64-portable",
        ),
        FailurePattern(
            r"loading shared libraries: (?P<name>\S+):|library \"(?P<name2>[^\"]+)\" not found",
            "the device does not have the library {name}",
            "Build the runner again: etdeploy clean runners",
        ),
        FailurePattern(
            r"[Ee]xec format error|cannot execute",
            "the runner is built for another kind of processor",
            "Let the device choose the target: leave out --target.",
        ),
        FailurePattern(
            r"is no sound program|InvalidProgram",
            "the program is damaged, or its format is newer than the runner's libraries",
            _SAME_VERSION,
            _SAME_VERSION_FILE,
        ),
    ),
)


def run_error(
    outcome: RunOutcome,
    pass_name: str,
    recipe: Recipe,
    device: str,
    log: Path,
    capabilities: Capabilities = _ELSEWHERE,
    iterations: int | None = None,
    limit_s: float | None = None,
) -> RunError:
    """The error for a run that did not end with exit code 0."""
    known = _cause(outcome, recipe, device, pass_name, iterations or recipe.benchmark.iterations)
    ending = _ending(outcome, limit_s or recipe.benchmark.timeout_s)
    message = f"the runner {ending} in the {pass_name} pass"
    if known:
        message += f": {known.cause}"
    output = [line for line in last_lines(outcome.stderr) if not _is_shown(line, known)]
    if output:
        message += "\n" + "\n".join(f"  | {line}" for line in output)
    finished = recipe.model.program is not None
    remedy = known.remedy_for(finished=finished).replace("{device}", quote(device)) if known else ""
    remedy = with_settings(remedy or _crashed(recipe, capabilities), recipe)
    return RunError(message, place=device, remedy=remedy, log=log)


def last_lines(text: str) -> list[str]:
    """The last lines without ExecuTorch's info log, each shortened and printable."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _CHATTER.match(line)]
    return [
        "".join(c if c.isprintable() else " " for c in line[:_LONGEST_LINE])
        for line in lines[-_LAST_LINES:]
    ]


def _is_shown(line: str, known: Diagnosis | None) -> bool:
    return known is not None and line == _PREFIX + known.cause


def _crashed(recipe: Recipe, device: Capabilities) -> str:
    """How to narrow down the cause of a crash."""
    lines = []
    if recipe.model.program:
        lines.append(
            f"See whether a backend is the cause: export the model again without one,\n{NEW_FILE}"
        )
    elif recipe.export.backend != "portable":
        lines.append("See whether the backend is the cause: --set export.backend=portable")
    if not device.is_here:
        lines.append("See whether the device is the cause: --device host")
    return "\n".join(lines or ["See the log, and report it with the recipe."])


def _ending(outcome: RunOutcome, limit_s: float) -> str:
    if outcome.timed_out:
        return f"took longer than {limit_s:g} s and was ended"
    if outcome.signal_name:
        return f"was ended by {outcome.signal_name}"
    return f"ended with exit code {outcome.exit_code}"


def _cause(
    outcome: RunOutcome, recipe: Recipe, device: str, name: str, iterations: int
) -> Diagnosis | None:
    if outcome.timed_out:
        return _too_slow(recipe, name, iterations)
    found = _backend_cause(outcome.stderr, device) or RUN_FAILURES.diagnose(outcome.stderr)
    if found:
        return found
    if outcome.out_of_memory and not outcome.signal_name:
        return Diagnosis("memory ran out", _SMALLER, _SMALLER_FILE)
    if outcome.signal_name == "SIGKILL" and outcome.out_of_memory is False:
        return _KILLED
    if outcome.signal_name:
        return _SIGNALS.get(outcome.signal_name)
    return _runner_message(outcome, _EXITS | (_TEXT_EXITS if recipe.is_language_model else {}))


def _backend_cause(text: str, device: str) -> Diagnosis | None:
    """The cause that the first backend recognizes."""
    causes = (backend.failure(text, device) for backend in known_backends())
    return next(filter(None, causes), None)


def _too_slow(recipe: Recipe, name: str, iterations: int) -> Diagnosis:
    doubled = min(2 * recipe.benchmark.timeout_s, 86_400)
    cause, remedy = (
        "it hangs, or the model is too slow on this device",
        f"Give it more time: --set benchmark.timeout_s={doubled:g}",
    )
    if recipe.is_language_model:
        cause += " for so many tokens"
        remedy += f"\nor less to do: {'--max-new-tokens 16' if name == TEXT else _FEWER_TOKENS}"
    elif iterations > 1:
        cause += " for so many iterations"
        remedy += f"\nor less to do: --set benchmark.iterations={max(1, iterations // 10)}"
    return Diagnosis(cause, remedy)


def _runner_message(outcome: RunOutcome, exits: Mapping[int, tuple[str, ...]]) -> Diagnosis | None:
    """The last message of a runner that cannot continue."""
    for line in reversed(outcome.stderr.splitlines()):
        if line.startswith(_PREFIX):
            remedies = exits.get(outcome.exit_code or 0, (_CRASHED,))
            return Diagnosis(line.removeprefix(_PREFIX), *remedies)
    return None


# Remedies that do not apply to apps.
_RUNNER_REMEDIES = re.compile(
    r"(?:Build (?:it|the runner) again: etdeploy clean runners(?:; or )?)"
    r"|(?:The runner does not match etdeploy\. )"
)
_SOURCE = "Build ExecuTorch for the app: --set app.runtime=source"
_ON_HOST = "--device host"
_WITHOUT = "without --as app and --app"
_RUNNER = "See whether the app is the cause: leave out --as app"


def app_error(
    outcome: RunOutcome,
    pass_name: str,
    recipe: Recipe,
    device: str,
    log: Path,
    capabilities: Capabilities,
    iterations: int | None = None,
    limit_s: float | None = None,
) -> RunError:
    """The error for an app that failed; see `run_error`.

    Only an iPhone cannot start processes; its apps use ExecuTorch's Swift package.
    """
    has_runner = "process" in capabilities.launches
    error = run_error(outcome, pass_name, recipe, device, log, capabilities, iterations, limit_s)
    lines = [_RUNNER_REMEDIES.sub("", line) for line in (error.remedy or "").splitlines()]
    remedies = [_without_app(line[0].upper() + line[1:]) for line in lines if line.strip()]
    rebuilt = lines != (error.remedy or "").splitlines()
    if rebuilt and has_runner and recipe.app.runtime != "source":
        remedies.append(_SOURCE)
    if has_runner and not outcome.timed_out:
        remedies.append(_RUNNER)
    return RunError(
        error.message.replace("the runner", "the app"),
        place=error.place,
        remedy="\n".join(remedies) or None,
        log=error.log,
    )


def _without_app(line: str) -> str:
    """Add to a remedy that this machine does not run apps."""
    return f"{line}, {_WITHOUT}" if line.endswith(_ON_HOST) else line
