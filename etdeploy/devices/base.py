"""What a device is: a small Protocol, its facts, and the bundle that goes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field

from etdeploy.backends.values import Simulated
from etdeploy.core.values import Progress, Value, silent
from etdeploy.program.generation import Draft


class DeviceFacts(Value):
    """What stays the same while a device is connected; None where it is not reported.

    Attributes:
        kind: What its name begins with: host, qemu, android, ssh.
        target: What a runner for it is built for.
        model: Of the device, or of its processor.
        manufacturer: Of the device.
        soc: Name of the system on a chip, as the device reports it.
        abi: The instruction set, by Android's name.
        os: Name and version of the system.
        cpu_count: Logical processors.
        memory_bytes: Of the whole device.
    """

    name: str
    """As `--device` takes it: host, qemu, android:SERIAL."""
    kind: str
    target: str
    serial: str | None = None
    """Of a phone, by whatever connection; not unique with every maker."""
    model: str | None = None
    manufacturer: str | None = None
    soc: str | None = None
    abi: str | None = None
    os: str | None = None
    fingerprint: str | None = None
    """Of the system's build; changes with every update."""
    cpu_count: int | None = None
    memory_bytes: int | None = None
    connection: str | None = None
    """How it is reached: adb server, TCP, USB, this machine."""
    emulator: str | None = None
    """What runs the programs where the device is emulated, with its version."""
    emulated_cpu: str | None = None
    """The processor that it emulates, as `QEMU_CPU` names it."""


class CpuCluster(Value):
    """Processors that change their frequency together; None where it is not reported.

    Where no frequencies are reported, as in a virtual machine, those of one capacity.

    Attributes:
        cpus: Numbers of those that are online.
        governor: What chooses the frequency: schedutil, walt, performance, powersave...
        current_khz: The frequency now.
        min_khz, max_khz: The range that it is chosen from; a throttling device lowers the maximum.
        hardware_max_khz: The highest that the hardware can do.
        capacity: What each can compute; that of the device's strongest is 1024.
        cores: Those of `cpus` that are the first of their core, where a core is several.
    """

    cpus: tuple[int, ...]
    governor: str | None = None
    current_khz: int | None = None
    min_khz: int | None = None
    max_khz: int | None = None
    hardware_max_khz: int | None = None
    capacity: int | None = None
    cores: tuple[int, ...] | None = None


class DeviceState(Value):
    """What changes from minute to minute; None where it is not reported.

    Attributes:
        battery_percent: How full the battery is.
        battery_celsius: Its temperature.
        charging: Whether it is being charged.
        temperatures_celsius: By name of the sensor.
        load_average: Processes that ran or waited to run, on average over the last minute.
        clusters: Frequencies of the cores that share one.
        battery_milliamps: Current out of the battery; negative while it is being charged.
        battery_volts: Its voltage.
        available_memory_bytes: What programs can still get.
        free_storage_bytes: Room where bundles are kept.
        screen_on: Whether the screen is on.
        power_saving: Whether the mode that saves power is on.
        usable_cpus: Numbers of the processors that a program of this user may run on.
        cpu_quota: How many processors' time programs may use, where a control group limits it.
        throttle_events: How often an x86 processor has slowed itself down for heat since it
            started.
    """

    battery_percent: int | None = None
    battery_celsius: float | None = None
    charging: bool | None = None
    thermal_status: str | None = None
    """Android's throttling status: none, light, moderate, severe, critical, emergency, shutdown. A
    Raspberry Pi's: none, throttled, under-voltage."""
    temperatures_celsius: dict[str, float] = {}
    load_average: float | None = None
    clusters: tuple[CpuCluster, ...] = ()
    battery_milliamps: float | None = None
    battery_volts: float | None = None
    available_memory_bytes: int | None = None
    free_storage_bytes: int | None = None
    screen_on: bool | None = None
    power_saving: bool | None = None
    usable_cpus: tuple[int, ...] | None = None
    cpu_quota: float | None = None
    throttle_events: int | None = None


class Leftover(Value):
    """A runner of an earlier run that was still running, and was ended.

    Attributes:
        pid: Of its process.
        run_id: The run that it belonged to.
        seconds: How long it had run.
    """

    pid: int
    run_id: str
    seconds: float

    @property
    def duration(self) -> str:
        """How long it had run, as text for people."""
        minutes = self.seconds / 60
        return f"{self.seconds:.0f} s" if minutes < 3 else f"{minutes:.0f} min"


class DeviceListing(Value):
    """A device as `etdeploy devices` shows it.

    `status` is `device` when it can be used; else offline, unauthorized, missing and the like, and
    `remedy` says what to do.
    """

    name: str
    kind: str
    status: str
    facts: DeviceFacts | None = None
    device_state: DeviceState | None = None
    connection: str | None = None
    remedy: str | None = None


class Capabilities(Value):
    """What can be done with a device: asked of it, instead of which kind it is.

    Attributes:
        launches: How programs can be started there, by the `kind` of a bundle's launch.
        is_here: Whether they run right on this machine, as on `host`: then trying `host` instead
            tells nothing new.
        shares_cores: Whether they run on this machine's processors, so that a run here and one
            there would disturb each other.
        emulated: Whether software translates its instructions, which takes many times as long, and
            in which threads that wait for each other take the time of those that work.
        streams: Whether its runs are a StreamingRun.
        converses: Whether they are a ConversingRun.
    """

    launches: tuple[str, ...] = ("process",)
    is_here: bool = False
    shares_cores: bool = False
    emulated: bool = False
    streams: bool = False
    converses: bool = False


class ProcessLaunch(Value):
    """A process that is started with arguments.

    `{bundle}` and `{run}` in its words and variables stand for the two folders on the device.

    Attributes:
        argv: Its first word is a path in the bundle's folder; arguments are appended.
        environment: Variables for it.
    """

    kind: Literal["process"] = "process"
    argv: tuple[str, ...]
    environment: dict[str, str] = {}


class AppLaunch(Value):
    """An installed app that is started with options, and leaves its results in a file.

    Options are words `key=value`; `{bundle}` in a value stands for the folder of the bundle's files
    on the device.

    Attributes:
        id: The application id, or bundle id.
        archive: Path, in the bundle, of the `.apk` or `.ipa` that is installed.
    """

    kind: Literal["app"] = "app"
    id: str
    archive: str


class BundleFile(Value):
    """A file of a bundle: where it is here, where it goes, and its content there."""

    source: str
    path: str
    """Relative POSIX path in the run's folder on the device."""
    sha256: str
    size_bytes: int
    executable: bool = False


class Bundle(Value):
    """Everything that goes to a device for one program and runner.

    Attributes:
        files: What is pushed.
        launch: What is started there.
        simulated: What computes the program there, if not the processor that it is for.
        draft: The program beside it that proposes tokens; None without one.
    """

    files: tuple[BundleFile, ...]
    launch: Annotated[ProcessLaunch | AppLaunch, Field(discriminator="kind")]
    simulated: Simulated | None = None
    draft: Draft | None = None

    @property
    def process(self) -> ProcessLaunch:
        """The launch of a bundle that starts a process.

        Raises:
            TypeError: It starts an app.
        """
        if not isinstance(self.launch, ProcessLaunch):
            raise TypeError(f"the bundle starts the app {self.launch.id}")
        return self.launch

    @property
    def app(self) -> AppLaunch | None:
        """The app that it starts; None for a process."""
        return self.launch if isinstance(self.launch, AppLaunch) else None


@dataclass(frozen=True)
class PushReport:
    """What a push did; sizes in bytes.

    Attributes:
        pushed_files: Contents that went to the device.
        pushed_bytes: What travelled of them.
        kept_files: Contents that it already had.
        seconds: Wall time of the whole push.
        verify_seconds: The part of it in which the device read back what had arrived, and nothing
            travelled.
        removed_bytes: Of the least recently used bundles, which were removed to make room.
        resumed_bytes: What an interrupted push had sent, which was verified and did not travel
            again.
    """

    pushed_files: int
    pushed_bytes: int
    kept_files: int
    seconds: float
    verify_seconds: float = 0.0
    removed_bytes: int = 0
    resumed_bytes: int = 0


@dataclass(frozen=True)
class TimedState:
    """What was read of a device's state while a program ran, so many seconds after its start."""

    seconds: float
    state: DeviceState


@dataclass(frozen=True)
class RunOutcome:
    """How a run on the device ended.

    Attributes:
        exit_code: As the device's shell saw it; 128 + n when signal n ended it; None when the
            time limit did.
        signal_name: SIGSEGV and the like when a signal ended it.
        stdout, stderr: Text of the runner.
        seconds: Wall time measured on this machine, connection included.
        timed_out: Whether it took longer than its time limit, even if it then ended by itself.
        out_of_memory: Whether the system killed a process meanwhile because memory ran out; None
            when the system does not report that.
        states: What was read of the device's state meanwhile, in its order; only what can be read
            about every second without disturbing the program.
    """

    exit_code: int | None
    signal_name: str | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    out_of_memory: bool | None = None
    states: tuple[TimedState, ...] = ()


class RunFolder(Protocol):
    """A folder of one run on the device; it is removed when its context ends."""

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        """Launches the bundle with `arguments`; its working folder is the run's.

        `{bundle}` and `{run}` in arguments stand for the two folders on the device. A program that
        crashes or takes too long is an outcome, not an error.

        Raises:
            DeviceError: The device went away, or cannot start the program at all.
            Interrupted: The run was asked to stop; the program on the device is ended too.
        """
        ...

    def pull(self, relative: str, to: Path) -> None:
        """Copies a file or folder from the run's folder to this machine.

        Raises:
            DeviceError: It does not exist, or the device went away.
        """
        ...


class StreamingRun(RunFolder, Protocol):
    """A run that takes files, and whose output is read as it comes."""

    def put(self, source: Path, relative: str) -> None:
        """Copies a file into the run's folder; what is there is replaced.

        Raises:
            DeviceError: There is no room, or the device went away.
        """
        ...

    def stream(
        self, arguments: Sequence[str], timeout_s: float, on_line: Callable[[str], None]
    ) -> RunOutcome:
        """Does what `run` does.

        Args:
            arguments: As for `run`.
            timeout_s: As for `run`.
            on_line: Called with each line of stdout as soon as it is there, perhaps in another
                thread; must not raise.
        """
        ...


class Talk(Protocol):
    """A program that was started, and that is talked with line by line, from one thread."""

    def write_line(self, line: str) -> None:
        """Writes a line, or several, to its input; does nothing where it no longer listens.

        Raises:
            DeviceError: The device went away.
        """
        ...

    def read_line(self, wait_s: float) -> str | None:
        """The next line of its stdout, as soon as it is there; None at the end.

        Raises:
            TimeoutError: There was none for that long.
            DeviceError: The device went away.
            Interrupted: The run was asked to stop.
        """
        ...

    def end(self) -> RunOutcome:
        """Ends the program if it has not ended by itself, and tells how it ended.

        It has timed out if it had to be ended. `stdout` is empty: all of it was to be heard.

        Raises:
            DeviceError: The device went away.
        """
        ...


class ConversingRun(StreamingRun, Protocol):
    """A run whose program can be talked with."""

    def converse(self, arguments: Sequence[str]) -> AbstractContextManager[Talk]:
        """Launches the bundle as `run` does; the program is ended with the block.

        There is no timeout but a watchdog of 24 h on the device, in case the link drops silently.

        Raises:
            DeviceError: The device went away, or cannot start the program at all.
        """
        ...


class Device(Protocol):
    """What runs a runner."""

    @property
    def name(self) -> str:
        """As the command line names it, e.g. `android:emulator-5554`."""
        ...

    @property
    def identity(self) -> str:
        """The same for every name of the same device; may query the device."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What can be done with it; may query the device."""
        ...

    def facts(self) -> DeviceFacts:
        """Queries what the device is.

        Raises:
            DeviceError: It cannot be reached, is offline or unauthorised.
        """
        ...

    def state(self) -> DeviceState:
        """Queries battery and temperatures."""
        ...

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        """Copies every file that the device does not have yet, by digest, and verifies it.

        Raises:
            DeviceError: There is no room, the device went away, or a file arrived changed.
        """
        ...

    def end_leftovers(self) -> tuple[Leftover, ...]:
        """Ends the runners that earlier runs left, and returns them; the caller has the lock.

        Raises:
            DeviceError: One cannot be ended, another computer's run is active, or the device went
                away.
        """
        ...

    def open_run(self, bundle: Bundle, run_id: str) -> AbstractContextManager[RunFolder]:
        """A new folder for one run of a bundle that was pushed."""
        ...

    def clean(self) -> Mapping[str, int]:
        """Removes everything that etdeploy left on the device; returns bytes freed by folder."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


def lock_name(device: Device) -> str:
    """What a run locks while it uses a device: the processors, where they are this machine's."""
    return "host" if device.capabilities.shares_cores else device.identity
