"""Opens a recipe's program on a device: exports, builds and pushes what is missing, and waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from etdeploy.bench.program_run import ProgramRun, open_run_folder
from etdeploy.bench.snapshot import program_digest
from etdeploy.bench.text_generator import TextGenerator
from etdeploy.core import cancel, console
from etdeploy.core.console import lazy_task
from etdeploy.core.errors import UsageError
from etdeploy.graph.invocation import run_recipe
from etdeploy.graph.job import Job, StepName, load_bundle, load_program
from etdeploy.graph.on_device import device_lock
from etdeploy.graph.options import JobOptions
from etdeploy.program.folder import Provenance, load_provenance
from etdeploy.program.generation import Generation
from etdeploy.program.model import Program
from etdeploy.program.tokenizer import Tokenizer, load_tokenizer
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import Recipe

T = TypeVar("T")
_POLL_S = 0.2


class Owner(NamedTuple):
    """Who opens a device: a thread, or a task of asyncio that this thread runs.

    `task` is None for the thread itself.
    """

    thread: int
    task: int | None = None

    @classmethod
    def current_thread(cls) -> Owner:
        """Return the thread that calls this."""
        return cls(threading.get_ident())

    @classmethod
    def current_task(cls) -> Owner:
        """Return the task that calls this."""
        return cls(threading.get_ident(), id(asyncio.current_task()))

    @property
    def kind(self) -> str:
        """The word for it."""
        return "thread" if self.task is None else "task"

    def blocks(self, holder: Owner) -> bool:
        """Whether the holder cannot continue while this waits for it."""
        return self.thread == holder.thread and (self == holder or None in (self.task, holder.task))


@dataclass(frozen=True)
class OpenProgram:
    """A program that was pushed to a device, which is locked.

    Attributes:
        run: The run's folder there; a `TextGenerator` for a program that generates text.
        program: What inspection found in it.
        provenance: How it was made.
        folder: The program folder on this machine.
        digest: Of the program and its weights.
        lora: The adapter that generates.
        tokenizer: None for a model that has none, and for other models.
    """

    run: ProgramRun
    program: Program
    provenance: Provenance
    folder: Path
    digest: str
    lora: str | None = None
    tokenizer: Tokenizer | None = None

    @property
    def generator(self) -> TextGenerator | None:
        """The program that generates text; None for another one."""
        return self.run if isinstance(self.run, TextGenerator) else None


@contextmanager
def open_program(named: JobOptions, owner: Owner) -> Iterator[OpenProgram]:
    """Export, build and push if needed; wait until the device is free, and open a run's folder.

    Raises:
        UsageError: `owner` already has the device, or the device cannot stream.
        EtdeployError: A step failed, or the device cannot be reached.
    """

    def admit(job: Job) -> None:
        _require_no_own(job, owner)

    loaded = load_recipe(named.recipes[0], named.overrides)
    with (
        run_recipe(replace(named, measures=False), StepName.PUSH, admit) as job,
        ExitStack() as stack,
    ):
        from etdeploy.bench.passes import emulated_defaults

        if job.device is None:
            raise RuntimeError("a session was opened without a device")
        exported, program = load_program(job)
        folder = Path(exported.folder)
        provenance = load_provenance(folder)
        # While this waits for the device, another run may replace the bundle.
        bundle = load_bundle(job)
        recipe = (
            emulated_defaults(loaded).recipe if job.device.capabilities.emulated else loaded.recipe
        )
        with (
            console.TaskDisplay(quiet=named.quiet) as display,
            lazy_task(display, "wait", "the device is free") as tell,
        ):
            stack.enter_context(device_lock(job, tell))
        stack.enter_context(_held(job, owner))
        run_folder, here = stack.enter_context(open_run_folder(job.device, bundle, "session"))
        run = ProgramRun(
            job.device, run_folder, recipe, job.state / "session.stderr.txt", here, bundle.simulated
        )
        opened = OpenProgram(run, program, provenance, folder, program_digest(bundle))
        if provenance.generation is not None:
            opened = _generating(opened, job, recipe, provenance.generation)
        yield opened


def _generating(
    opened: OpenProgram, job: Job, recipe: Recipe, generation: Generation
) -> OpenProgram:
    """The same for a program that generates text."""
    from etdeploy.bench.generation_request import FOLDER, encoder_files

    wanted = recipe.benchmark.generation
    lora = wanted.lora if wanted else None
    run = opened.run
    generator = TextGenerator(
        run.device, run.folder, recipe, run.log, run.here, run.simulated,
        generation.with_adapter(lora),
        encoder_files(opened.provenance, opened.folder, job.state / FOLDER),
        load_bundle(job).draft,
    )  # fmt: skip
    tokenizer = load_tokenizer(generation, opened.folder)
    return replace(opened, run=generator, lora=lora, tokenizer=tokenizer)


_holders: dict[Path, Owner] = {}
_holders_lock = threading.Lock()


def _lock_path(job: Job) -> Path:
    return job.workspace.lock_path("device", str(job.identity))


def _require_no_own(job: Job, owner: Owner) -> None:
    """Refuse a device that its own caller holds: waiting for it would never end."""
    with _holders_lock:
        holder = _holders.get(_lock_path(job))
    if holder and owner.blocks(holder):
        other = "a task of this thread" if holder.kind == "task" else "the thread of this task"
        who = f"this {owner.kind}" if holder == owner else other
        raise UsageError(
            f"{who} already has a session on {job.device_label}: a second one would wait for it "
            "for ever",
            remedy="Close the other session first, or branch it: session.fork()",
        )


@contextmanager
def _held(job: Job, owner: Owner) -> Iterator[None]:
    path = _lock_path(job)
    with _holders_lock:
        _holders[path] = owner
    try:
        yield
    finally:
        with _holders_lock:
            _holders.pop(path, None)


def run_apart(work: Callable[[], T], flag: cancel.Flag) -> T:
    """Do what takes long in another thread, and wait for it.

    In the main thread, the graph would handle signals. Here Ctrl-C stays a KeyboardInterrupt, after
    which the work is stopped by its flag and waited for.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            with cancel.bound(flag):
                results.append(work())
        except BaseException as error:  # raised again by the caller
            failures.append(error)

    thread = threading.Thread(target=body, name="etdeploy session", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
    except BaseException:
        flag.set()
        thread.join()
        flag.clear()
        raise
    if failures:
        raise failures[0]
    return results[0]
