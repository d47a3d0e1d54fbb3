"""A real adbd in namespaces of its own: a test device made of nothing but Debian's packages.

    from tests.support.adbd import android_x86_64

    def test_something(android_x86_64):
        open_device(f"android:{android_x86_64.serial}")

Fixtures: `android_x86_64` and `android_arm64` are fresh devices for one test; `make_android` makes
any number of them; `adb_server` is a private adb server for the test. Each is skipped, with the
reason, where the machine cannot have it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.adbd_root import ARM64, X86_64, Flavour, obtain_root
from tests.support.debian import RootUnavailable, static_qemu
from tests.support.network import connect_namespace, ip
from tests.support.processes import accepts, eventually

_DATA = Path(__file__).parent.parent / "data" / "android"
_INIT = Path(__file__).with_name("adbd_init.sh")
_PORT = 5555
_CONNECT_S = 60.0
# A connection that the server has just made is offline until adbd has answered the greeting.
_SETTLE_S = 3.0


class AndroidRoot:
    """A running test device.

    Attributes:
        serial: HOST:PORT of its adbd.
        host: The address alone.
        link: This machine's end of the network to it.
        is_up: Whether adbd runs.
    """

    def __init__(
        self, flavour: Flavour, root: Path, init: subprocess.Popen[str], link: str
    ) -> None:
        self.flavour = flavour
        self._root = root
        self._init = init
        self.link = link
        self.host = ""
        self.pid = _only_child(init.pid)
        self.is_up = False

    @property
    def serial(self) -> str:
        return f"{self.host}:{_PORT}"

    @property
    def spec(self) -> str:
        """As `--device` takes it."""
        return f"android:{self.serial}"

    def path(self, on_device: str) -> Path:
        """A path of the device as this machine sees it."""
        return Path(f"/proc/{self.pid}/root") / str(self._root / on_device.lstrip("/")).lstrip("/")

    def processes(self) -> list[str]:
        """Command lines of all that runs on the device, adbd and its first process excepted."""
        found = []
        for folder in self.path("proc").iterdir():
            if folder.name.isdigit() and int(folder.name) > 1:
                words = _read(folder / "cmdline").replace("\0", " ").strip()
                if words and "/apex/adbd/adbd" not in words:
                    found.append(words)
        return found

    def wait_for_processes(self, count: int, command: str) -> bool:
        """Waits until so many command lines end with `command`; False when that takes too long."""
        return eventually(
            lambda: sum(words.endswith(command) for words in self.processes()) == count
        )

    def kill_adbd(self) -> None:
        """As if the cable had been pulled: connections break, what runs goes on running."""
        self._do("kill_adbd")
        self.is_up = False

    def start_adbd(self) -> None:
        """Starts adbd again; what is on the device is still there."""
        self._do("start_adbd")
        assert eventually(lambda: accepts(self.host, _PORT)), "adbd did not start"
        self.is_up = True

    def kill(self, pid: int) -> None:
        """Kills a process by its number on the device; one that has ended is none."""
        self._do(f"kill -9 {pid} || true")

    def cut_network(self) -> None:
        """As if the device had left the network: nothing answers, no connection breaks."""
        ip("link", "set", self.link, "down")

    def write(self, name: str, text: str) -> None:
        """Changes what `getprop` or `dumpsys-SERVICE` says."""
        self.path(f"mnt/{name}").write_text(text)

    def hide_tool(self, name: str) -> None:
        """Makes a command fail as on a device without it."""
        tools = self._root / "system/bin"
        self._do(f"mount --bind /dev/null {tools / name}")

    def give_sys(self, files: Mapping[str, str]) -> None:
        """Gives the device these files below /sys, and no others."""
        self._do(f"mount -t tmpfs -o mode=755,size=1m tmpfs {self._root / 'sys'}")
        self.write_sys(files)

    def write_sys(self, files: Mapping[str, str]) -> None:
        """Changes files that `give_sys` gave."""
        for name, content in files.items():
            there = self.path(f"sys/{name}")
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(f"{content}\n")

    def set_up(self, properties: dict[str, str]) -> None:
        """Gives the device its address, facts and adbd."""
        text = (_DATA / "getprop.txt").read_text()
        for name, value in {"ro.product.cpu.abi": self.flavour.abi, **properties}.items():
            text = re.sub(rf"^\[{re.escape(name)}\]: .*\n", "", text, flags=re.MULTILINE)
            text += f"[{name}]: [{value}]\n"
        self.write("getprop", text)
        for name in ("dumpsys-battery", "dumpsys-power", "dumpsys-thermalservice"):
            self.write(name, (_DATA / f"{name}.txt").read_text())
        _, self.host = connect_namespace(self.pid, self.link)
        self.start_adbd()

    def _do(self, command: str) -> None:
        stdin, stdout = self._init.stdin, self._init.stdout
        assert stdin
        assert stdout
        stdin.write(f"{command}\n")
        stdin.flush()
        answer = stdout.readline().strip()
        assert answer == "done", f"the device's first process ended at {command!r}: {answer}"


@contextmanager
def running_android(
    flavour: Flavour = X86_64, size_mib: int = 256, **properties: str
) -> Iterator[AndroidRoot]:
    """A device of its own, with `size_mib` of room under /data/local/tmp.

    Properties are given with `_` for `.`: `ro_serialno="A1"`.

    Raises:
        RootUnavailable: This machine cannot have it.
    """
    root = obtain_root(flavour)
    link = f"etd{secrets.token_hex(4)}"
    init = _start_init(flavour, root, size_mib)
    try:
        device = AndroidRoot(flavour, root, init, link)
        named = {name.replace("_", "."): value for name, value in properties.items()}
        device.set_up({"ro.serialno": link.upper(), **named})
        yield device
    finally:
        _end(init)
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def _start_init(flavour: Flavour, root: Path, size_mib: int) -> subprocess.Popen[str]:
    qemu = "" if flavour.is_native else static_qemu()
    # The emulator is registered in a user namespace of the device's own.
    user = ["--user", "--map-root-user"] if qemu else []
    log = (root.parent / f"{root.name}.log").open("a")
    with log:
        init = subprocess.Popen(
            [
                # A run of the tests under nohup ignores this signal, and adbd would, too.
                "env",
                "--default-signal=HUP",
                "unshare",
                *user,
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "sh",
                str(_INIT),
                str(root),
                str(size_mib),
                qemu,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert init.stdout
    if init.stdout.readline().strip() != "ready":
        _end(init)
        raise RootUnavailable(f"the device's namespaces cannot be made; see {log.name}")
    return init


def _end(init: subprocess.Popen[str]) -> None:
    """Its end is the end of every process and mount of the device."""
    if init.stdin:
        init.stdin.close()
    if init.stdout:
        init.stdout.close()
    try:
        init.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.kill(_only_child(init.pid), 9)
        init.wait()


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class AdbServer:
    """A private adb server."""

    port: int
    environment: dict[str, str]

    def adb(self, *arguments: str) -> str:
        """Runs the adb program against it, and returns what it prints."""
        done = subprocess.run(
            ["adb", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout.strip()

    def connect(self, device: AndroidRoot) -> None:
        """Makes the server connect to a device, again if it had, until the device can be used.

        One `adb connect` is not enough: straight after `adb disconnect`, and with exit code 0, the
        server may answer "already connected" about the old connection, which it then removes.
        """
        deadline = time.monotonic() + _CONNECT_S
        while True:
            self.adb("disconnect", device.serial)
            answer = self.adb("connect", device.serial)
            if eventually(lambda: self._state(device) == "device", _SETTLE_S):
                return
            assert time.monotonic() < deadline, f"{answer}; state: {self._state(device)}"

    def _state(self, device: AndroidRoot) -> str:
        return self.adb("-s", device.serial, "get-state")


@contextmanager
def running_adb_server(home: Path) -> Iterator[AdbServer]:
    """An adb server on a port of its own, with keys in `home`.

    Raises:
        RootUnavailable: There is no adb program.
    """
    if not shutil.which("adb"):
        raise RootUnavailable("needs the adb program: apt install adb")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "HOME": str(home), "ANDROID_ADB_SERVER_PORT": str(port)}
    server = subprocess.Popen(
        ["adb", "-P", str(port), "server", "nodaemon"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: accepts("127.0.0.1", port)), "the adb server did not start"
        yield AdbServer(port, environment)
    finally:
        server.terminate()
        server.wait()
        # What was tested may have restarted it.
        subprocess.run(
            ["adb", "-P", str(port), "kill-server"],
            env=environment,
            capture_output=True,
            check=False,
        )


MakeAndroid = Callable[..., AndroidRoot]


def _entered(stack: ExitStack, context: AbstractContextManager[AndroidRoot]) -> AndroidRoot:
    try:
        return stack.enter_context(context)
    except RootUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def make_android() -> Iterator[MakeAndroid]:
    """Makes devices for one test; arguments are those of `running_android`."""
    with ExitStack() as stack:
        yield lambda *args, **kw: _entered(stack, running_android(*args, **kw))


@pytest.fixture
def android_x86_64(make_android: MakeAndroid) -> AndroidRoot:
    """A device with the ABI x86_64."""
    return make_android(X86_64)


@pytest.fixture
def android_arm64(make_android: MakeAndroid) -> AndroidRoot:
    """A device with the ABI arm64-v8a: its shell and tools run under qemu."""
    return make_android(ARM64)


@pytest.fixture
def adb_server(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AdbServer]:
    """A private adb server, which this process then uses too."""
    home = tmp_path_factory.mktemp("adb-home")
    try:
        with running_adb_server(home) as server:
            monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(server.port))
            yield server
    except RootUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def no_adb_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sure that this test finds no adb server."""
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
