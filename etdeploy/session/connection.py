"""What a session and its branches share: a device, a program there, and the process that has it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from etdeploy.bench.chat_process import ChatProcess
from etdeploy.bench.method_process import MethodProcess
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, DeviceLostError, SessionBusyError, UsageError
from etdeploy.graph.options import JobOptions
from etdeploy.session.branches import BranchedCache
from etdeploy.session.opening import OpenProgram, Owner, open_program, run_apart
from etdeploy.session.text import GeneratedText

T = TypeVar("T")


class SessionConnection:
    """An open program, and its process.

    Args:
        named: One recipe on one device.
        owner: Who waits for the device.
        flag: Stops whatever takes long.
        apart: Whether that happens in another thread, because the caller handles no signals.

    Attributes:
        is_open: Whether there is a connection.
        cache: That of a language model that stays loaded; None for other programs, and on devices
            that cannot talk with a process.
        text: The last text, while anybody refers to it.
        methods: The same for the methods of another program.
    """

    def __init__(self, named: JobOptions, owner: Owner, flag: cancel.Flag, *, apart: bool) -> None:
        self.named, self.owner, self.flag = named, owner, flag
        self._apart = apart
        self._stack = ExitStack()
        self._program: OpenProgram | None = None
        self.is_open = False
        self.cache: BranchedCache | None = None
        self.methods: MethodProcess | None = None
        self._lock = threading.Lock()
        self._user = ""
        self.text: Callable[[], GeneratedText | None] = lambda: None

    @property
    def program(self) -> OpenProgram:
        """The program; raises UsageError where the connection is closed."""
        self.require_open()
        return self.last_program

    def require_open(self) -> None:
        """Raise UsageError where the connection is closed."""
        if not self.is_open:
            raise UsageError(
                f"the connection to {self.named.devices[0]} is closed",
                remedy="Connect again: session.reopen()",
            )

    @property
    def last_program(self) -> OpenProgram:
        """The program, or that of the connection before; for facts that do not need the device."""
        if self._program is None:
            raise ValueError("nothing was opened")
        return self._program

    def open(self) -> None:
        self.apart(
            lambda: self.use(self._stack.enter_context(open_program(self.named, self.owner)))
        )

    def use(self, program: OpenProgram) -> None:
        """Take a program that is open, and start nothing yet."""
        self._program, self.is_open = program, True
        if not program.run.device.capabilities.converses:
            return
        if program.generator is None:
            self.methods = MethodProcess(program.run, flag=self.flag)
        elif program.generator.generation.encoder is None:
            process = ChatProcess(program.generator, flag=self.flag)
            if self.cache is None:
                self.cache = BranchedCache(process)
            else:
                self.cache.process = process
                self.cache.forget_images()

    def apart(self, work: Callable[[], T]) -> T:
        """Do what takes long, in another thread unless the caller handles signals."""
        return run_apart(work, self.flag) if self._apart else work()

    def close(self) -> None:
        """End the process, and give the device back."""
        self.is_open = False
        with ExitStack() as stack:
            stack.callback(self._swap_stack().close)
            for process in (self.methods, self.cache and self.cache.process):
                if process:
                    stack.callback(process.end)

    def _swap_stack(self) -> ExitStack:
        stack, self._stack = self._stack, ExitStack()
        return stack

    @property
    def load_ms(self) -> float:
        """Time until the program was loaded; 0 where it is loaded for each call."""
        process = self._process
        return process.load_ms if process else 0.0

    @property
    def _process(self) -> ChatProcess | MethodProcess | None:
        return self.cache.process if self.cache else self.methods

    def load(self) -> None:
        """Start the process, unless it runs."""
        with self.device_errors():
            if process := self._process:
                process.load()

    @contextmanager
    def used(self, what: str) -> Iterator[None]:
        """Use it for a call, alone."""
        self.acquire(what)
        try:
            yield
        finally:
            self.release()

    def acquire(self, what: str) -> None:
        """Begin a call; raises SessionBusyError while there is another one."""
        if not self._lock.acquire(blocking=False):
            raise self._busy(what)
        self._user = threading.current_thread().name

    def release(self) -> None:
        """End a call."""
        self._lock.release()

    def close_text(self) -> None:
        """Stop the text that this thread has begun, and not ended."""
        text = self.text()
        if text and self._lock.locked() and self._user == threading.current_thread().name:
            text.close()

    def require_idle(self, what: str) -> None:
        """Raise SessionBusyError while there is a call."""
        if self._lock.locked():
            raise self._busy(what)

    def _busy(self, what: str) -> SessionBusyError:
        user, own = self._user, threading.current_thread().name
        if user != own:
            return SessionBusyError(
                f"{what} in the thread {own}: the thread {user} uses the session",
                remedy="Open a session in each thread: they wait for each other. Or use "
                "etdeploy.open_async, whose tasks wait for each other.",
            )
        return SessionBusyError(
            f"{what}: the session still generates a text",
            remedy="Iterate over the text to its end, or close it: text.close()",
        )

    @contextmanager
    def device_errors(self) -> Iterator[None]:
        """Say that the device is lost, if that is the cause of an error."""
        try:
            yield
        except DeviceLostError:
            raise
        except DeviceError as error:
            device = self.program.run.device
            try:
                device.state()
            except DeviceError:
                raise DeviceLostError(
                    f"the device was lost: {error.message}",
                    place=device.name,
                    remedy="Connect it again, and continue: session.reopen()",
                ) from error
            raise
