"""Devices on this machine: `host`, and `qemu` for linux-aarch64 under user-mode emulation."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import claimed, inside, read_text
from etdeploy.core.processes import process
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.core.values import Progress, silent
from etdeploy.devices import sysfs
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceListing,
    DeviceState,
    Leftover,
    PushReport,
    RunOutcome,
    TimedState,
)
from etdeploy.devices.bundles import check_run_id, command_line, environment
from etdeploy.devices.kinds import describe_device, failed_listing, present_listing
from etdeploy.devices.local import store as local_leftovers
from etdeploy.devices.local.store import LocalStore
from etdeploy.devices.shell import Received
from etdeploy.devices.sysfs import linux_state
from etdeploy.targets import platforms
from etdeploy.targets.platforms import host_target

# qemu 7.2 computes some of XNNPACK's 8-bit convolutions wrongly with SVE; 10.0 does not. A CPU that
# the user chose in QEMU_CPU, qemu's own variable, stays.
_CPU = "max,sve=off"
# Where Debian's cross compilers keep the C library of the target.
_SYSROOT = Path("/usr/aarch64-linux-gnu")


@dataclass(frozen=True)
class Emulator:
    """A user-mode emulator: the program, and the folder with the C library of its target."""

    program: Path
    sysroot: Path | None

    @property
    def cpu(self) -> str:
        """The processor that it emulates."""
        return platforms.qemu_cpu() or _CPU

    @property
    def description(self) -> str:
        """The program with its version."""
        return " ".join(filter(None, (self.program.name, platforms.emulator_version(self.program))))

    def command(self, argv: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        """What runs `argv` with `variables`; the emulator itself does not see those."""
        prefix = [str(self.program), "-cpu", self.cpu]
        if self.sysroot:
            prefix += ["-L", str(self.sysroot)]
        for name, value in variables.items():
            prefix += ["-E", f"{name}={value}"]
        return [*prefix, *argv]


class LocalDevice:
    """This machine, or a target that it emulates."""

    def __init__(self, folder: Path, emulator: Emulator | None = None) -> None:
        self._store = LocalStore(folder)
        self._emulator = emulator

    @property
    def name(self) -> str:
        return "qemu" if self._emulator else "host"

    @property
    def identity(self) -> str:
        return self.name

    @property
    def capabilities(self) -> Capabilities:
        # One must not run while the other is timed.
        return Capabilities(
            is_here=self._emulator is None,
            shares_cores=True,
            emulated=self._emulator is not None,
            streams=True,
            converses=True,
        )

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            name=self.name,
            kind=self.name,
            target="linux-aarch64" if self._emulator else host_target().name,
            model=cpu_model(),
            abi="aarch64" if self._emulator else platform.machine(),
            os=os_name(),
            cpu_count=os.cpu_count(),
            memory_bytes=memory_bytes(),
            connection="this machine, emulated" if self._emulator else "this machine",
            emulator=self._emulator.description if self._emulator else None,
            emulated_cpu=self._emulator.cpu if self._emulator else None,
        )

    def state(self) -> DeviceState:
        free_bytes = free_storage_bytes(self._store.root)
        return local_state().model_copy(update={"free_storage_bytes": free_bytes})

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        return self._store.push(bundle, progress)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return local_leftovers.end_leftovers(self._store.root)

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[LocalRun]:
        folder = self._store.run_folder(check_run_id(run_id))
        folder.mkdir(parents=True)
        try:
            with claimed(folder):
                yield LocalRun(bundle, self._store.bundle_folder(bundle), folder, self._emulator)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def clean(self) -> dict[str, int]:
        sizes = self._store.sizes()
        shutil.rmtree(self._store.root, ignore_errors=True)
        return sizes

    def close(self) -> None:
        """Nothing is held open."""


class LocalRun:
    """The folder of one run on this machine."""

    def __init__(
        self, bundle: Bundle, bundle_folder: Path, folder: Path, emulator: Emulator | None
    ) -> None:
        self._bundle = bundle
        self._bundle_folder = bundle_folder
        self._folder = folder
        self._emulator = emulator

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        return self._run(arguments, timeout_s, None)

    def stream(
        self, arguments: Sequence[str], timeout_s: float, on_line: Callable[[str], None]
    ) -> RunOutcome:
        return self._run(arguments, timeout_s, on_line)

    def _run(
        self,
        arguments: Sequence[str],
        timeout_s: float,
        on_line: Callable[[str], None] | None,
    ) -> RunOutcome:
        request = replace(self._request(arguments), timeout_s=timeout_s, on_line=on_line)
        kills = oom_kills()
        with self._start_errors(), sampled() as samples:
            outcome = process.run(request)
        return replace(_run_outcome(outcome, kills), states=samples.states)

    @contextmanager
    def converse(self, arguments: Sequence[str]) -> Iterator[LocalTalk]:
        request = self._request(arguments)
        kills = oom_kills()

        def outcome(exit_code: int, stderr: str, seconds: float) -> RunOutcome:
            ended = process.Outcome(request.argv, exit_code, "", stderr, seconds)
            return _run_outcome(ended, kills)

        with ExitStack() as stack:
            with self._start_errors():
                talk = stack.enter_context(talking(request, outcome))
            yield talk

    def _request(self, arguments: Sequence[str]) -> process.Request:
        folders = (str(self._bundle_folder), str(self._folder))
        argv = command_line(self._bundle, arguments, *folders)
        variables = environment(self._bundle, *folders)
        if self._emulator:
            argv, variables = self._emulator.command(argv, variables), {}
        return process.Request(tuple(argv), cwd=self._folder, env=variables, apart=True)

    @contextmanager
    def _start_errors(self) -> Iterator[None]:
        """Turns errors of starting the bundle's program into one for the user."""
        try:
            yield
        except OSError as error:
            program = command_line(self._bundle, (), str(self._bundle_folder), str(self._folder))[0]
            raise DeviceError(
                f"cannot start the program: {error.strerror or error}", place=program
            ) from error

    def put(self, source: Path, relative: str) -> None:
        target = inside(self._folder, relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def pull(self, relative: str, to: Path) -> None:
        source = inside(self._folder, relative)
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copyfile(source, to)
        else:
            raise DeviceError(f"the run left no {relative}", place=str(self._folder))


def open_host(folder: Path) -> LocalDevice:
    """This machine."""
    return LocalDevice(folder)


def open_qemu(folder: Path, sysroot: Path = _SYSROOT) -> LocalDevice:
    """linux-aarch64 under qemu's user mode."""
    program = platforms.find_emulator("aarch64")
    if program is None:
        raise DeviceError(
            "qemu's user-mode emulator for aarch64 is not installed",
            place="qemu",
            remedy="apt install qemu-user-static",
        )
    return LocalDevice(folder, Emulator(program, sysroot if sysroot.is_dir() else None))


def list_host(folder: Path) -> list[DeviceListing]:
    """This machine, with what it reports."""
    return [describe_device(open_host(folder), "host")]


def list_qemu(folder: Path, *, ask: bool = True) -> list[DeviceListing]:
    """The emulator, or what to do where it is missing."""
    try:
        device = open_qemu(folder)
    except DeviceError as error:
        return [failed_listing("qemu", "qemu", "missing", error)]
    return [describe_device(device, "qemu") if ask else present_listing("qemu", "qemu")]


def _run_outcome(outcome: process.Outcome, oom_kills_before: int | None) -> RunOutcome:
    kills = oom_kills()
    code = outcome.exit_code if outcome.exit_code >= 0 else 128 - outcome.exit_code
    return RunOutcome(
        exit_code=None if outcome.timed_out else code,
        signal_name=None if outcome.timed_out else outcome.signal_name,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        seconds=outcome.duration_s,
        timed_out=outcome.timed_out,
        out_of_memory=None if kills is None else kills != oom_kills_before,
    )


_READ = 1 << 16
# A program whose output has ended is about to end, or to be ended.
_END_S = 3.0

Ended = Callable[[int, str, float], RunOutcome]


class LocalTalk:
    """The lines of a process."""

    def __init__(self, conversation: InteractiveProcess, outcome: Ended) -> None:
        self._conversation = conversation
        self._outcome = outcome
        self._began = time.monotonic()
        self._received = Received()
        self._has_ended = False

    def write_line(self, line: str) -> None:
        self._conversation.say(f"{line}\n".encode())

    def read_line(self, wait_s: float) -> str | None:
        while (line := self._received.line()) is None and not self._has_ended:
            part = self._conversation.read(_READ, wait_s)
            self._has_ended = not part
            self._received.add(part)
        return self._received.rest() if line is None else line

    def end(self) -> RunOutcome:
        seconds = time.monotonic() - self._began
        try:
            # One that still prints is ended with the block.
            code = self._conversation.ended(_END_S if self._has_ended else 0)
        except TimeoutError:
            said = self._conversation.errors()
            return RunOutcome(None, None, "", said, seconds, timed_out=True)
        return self._outcome(code, self._conversation.errors(), seconds)


@contextmanager
def talking(request: process.Request, outcome: Ended) -> Iterator[LocalTalk]:
    """Starts a process to talk with, and ends it with the block."""
    with process.talking(request) as conversation:
        yield LocalTalk(conversation, outcome)


_SYS = Path("/sys")


class Samples:
    """What was read; complete when the block of `sampled` has ended."""

    def __init__(self, folder: Path) -> None:
        self._constant, self._files = _chosen(folder)
        self._readings: list[tuple[float, str]] = []
        self._began = time.monotonic()

    @property
    def any(self) -> bool:
        """Whether there is anything to read; virtual machines often have nothing."""
        return bool(self._files)

    def read(self) -> None:
        """Reads every file once; what it means waits for `states`."""
        seconds = round(time.monotonic() - self._began, 2)
        self._readings.append((seconds, _lines(self._files)))

    @property
    def states(self) -> tuple[TimedState, ...]:
        """In their order."""
        return tuple(
            TimedState(seconds, sysfs.sampled_state(self._constant + text))
            for seconds, text in self._readings
        )


@contextmanager
def sampled(folder: Path = _SYS) -> Iterator[Samples]:
    """Reads the state while the block runs; a thread sleeps between the readings."""
    samples, ended = Samples(folder), threading.Event()

    def read() -> None:
        number = 0
        while not ended.wait(sysfs.sampling_period_s(number)):
            samples.read()
            number += 1

    thread = threading.Thread(target=read, name="state of this machine", daemon=True)
    if samples.any:
        thread.start()
    try:
        yield samples
    finally:
        ended.set()
        if samples.any:
            thread.join()


def _chosen(folder: Path) -> tuple[str, list[Path]]:
    """The lines that stay the same, and the files that are read again and again."""
    constant: list[Path] = []
    files: list[Path] = []
    policies = sorted(folder.glob(sysfs.POLICIES))
    every = -(-len(policies) // sysfs.MAX_SAMPLED) or 1
    for policy in policies[::every]:
        constant += (policy / name for name in sysfs.CONSTANT_POLICY_FILES)
        files += (policy / name for name in sysfs.POLICY_FILES)
    zones = sorted(folder.glob(sysfs.ZONES))
    if len(zones) > sysfs.MAX_SAMPLED:
        zones = [z for z in zones if re.search(sysfs.CHOSEN_ZONES, read_text(z / "type"))]
    for zone in zones[: sysfs.MAX_SAMPLED]:
        constant.append(zone / "type")
        files.append(zone / "temp")
    for supply in sorted(folder.glob(sysfs.SUPPLIES)):
        if read_text(supply / "type").strip() == "Battery":
            constant += (supply / "type", supply / "scope")
            files += (supply / name for name in sysfs.BATTERY_FILES)
    files.append(folder / sysfs.FIRMWARE)
    return _lines(constant), [file for file in files if read_text(file)]


def _lines(files: list[Path]) -> str:
    return "".join(f"{file}:{text}\n" for file in files if (text := read_text(file).strip()))


_PROC = Path("/proc")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's name."""
    for line in read_text(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "Model"):
            return value.strip()
    return platform.processor() or None


def os_name() -> str:
    """The system with its version."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def memory_bytes() -> int | None:
    """The size of the main memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def free_storage_bytes(folder: Path) -> int | None:
    """Room where a folder is, or will be made."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return None


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes Linux has killed since it started because memory ran out."""
    found = re.search(r"^oom_kill (\d+)$", read_text(vmstat), re.MULTILINE)
    return int(found[1]) if found else None


def local_state(sys_folder: Path = _SYS, proc_folder: Path = _PROC) -> DeviceState:
    """What Linux says of itself in /sys and /proc, or psutil on another system."""
    if sys.platform != "linux":
        return _state_of_psutil()
    return linux_state(
        _contents(sys_folder, sysfs.FILES),
        _contents(sys_folder / "devices/system/cpu", sysfs.CPU_FILES),
        read_text(proc_folder / "meminfo"),
        read_text(proc_folder / "loadavg"),
        read_text(proc_folder / "self/status"),
    )


def _state_of_psutil() -> DeviceState:
    import psutil

    battery = psutil.sensors_battery()
    return DeviceState(
        battery_percent=None if battery is None else round(battery.percent),
        charging=None if battery is None else battery.power_plugged,
        load_average=os.getloadavg()[0],
        available_memory_bytes=psutil.virtual_memory().available,
    )


def _contents(folder: Path, patterns: Sequence[str]) -> str:
    """`path:content` lines, as grep prints them on a device."""
    paths = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return "\n".join(f"{path}:{read_text(path).strip()}" for path in paths)
