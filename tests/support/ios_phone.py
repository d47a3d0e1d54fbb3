"""A stand-in for an iPhone on a cable, at the level of its protocols.

Written from the protocols: usbmuxd, lockdownd, and of its services files (AFC), containers of apps,
installation, diagnostics, images and crash reports; behind a tunnel's end, starts of apps.
The real pymobiledevice3 talks to it:

    with IosPhone(tmp_path) as phone:
        environment = phone.environment
"""

from __future__ import annotations

import json
import plistlib
import shutil
import socket
import struct
import threading
import time
import uuid
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import ios_xpc
from tests.support.ios_afc import FileService, emptied

UDID = "00008130-001A2B3C4D5E6F70"
_LOCKDOWN_PORT = 62078
_PUBLIC_KEY = b"""-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEA4QdMy4Rz+CfgqxDs15m6RcY2PCP/jiHYQORkvmlef+tH0ECkR3yv
pHeJrFmjhXXmZxk9BNlHJsd3u3/6XwG9fA2S3i/f0Cmr5+6fjBxz3Dn+5MuzcJbL
kqA8uIuK4Zy0uNZF0vs/31m9gW56q3MQeE29DiJjqaTy9JxkDOwLnZucL3pSQ9kK
BLUOD50KIUTTKZQngmNl9Z46EUCFL9HKE2eJ0WZjnicn5xmPaczapC9eIGmJQv+Y
iO3BHLrDKaykgLispA3mHnIH7R3virqC8PRl2S64Ng++/88rOQ3IfkoDllArwMog
pm7BuVVHlThvL+7KsYlAIuklTVQmnnUdowIDAQAB
-----END RSA PUBLIC KEY-----
"""
_APP_FEATURES = ("launchapplication", "listprocesses", "sendsignaltoprocess")
_CONTAINERS = "/private/var/containers/Bundle/Application"


@dataclass
class Start:
    """One start of an app.

    Attributes:
        options: Its arguments `key=value`.
        documents: Its folder of documents, as this machine sees it.
        show: Prints a line to its standard output.
        killed: Set when it is ended from outside.
    """

    options: dict[str, str]
    documents: Path
    show: Callable[[str], None]
    killed: threading.Event = field(default_factory=threading.Event)


def measuring_app(start: Start) -> None:
    """What the generated app does when it is told a run: it leaves results of that run."""
    results = {
        "schema_version": 1,
        "run_id": start.options["run_id"],
        "status": "done",
        "error": None,
        "app": {"id": "org.example.convnet", "version": "1.0", "system": "iOS 18.1"},
        "thermal": {"status_before": "none", "status_after": "light"},
        "results": {"schema_version": 1, "options": start.options},
    }
    write_results(start, results)


def write_results(start: Start, results: dict[str, Any]) -> None:
    """Leaves results, and says so as the generated app does."""
    if start.options.get("outputs") == "true":
        emptied(start.documents / "outputs").joinpath("output-0.bin").write_bytes(b"\1\2\3\4")
    start.documents.joinpath("results.json").write_text(json.dumps(results))
    start.show(f"etdeploy: run {start.options['run_id']} has ended")


@dataclass
class IosPhone:
    """A phone; as a context, it is plugged in and answers.

    Attributes:
        folder: Of the test: apps' containers, crash reports.
        app: What installed apps do when they are started.
        attached: Whether the cable is plugged in.
        paired: Whether it trusts this computer; else its owner says no when asked.
        locked: Whether it is locked by its passcode.
        developer_mode: Whether that is switched on.
        image: Whether the developer image is mounted; without it, apps cannot be started.
        install_error: Error and description of installd for the next installations.
        launch_error: What a start is refused with.
        room_bytes: Of the storage for an app's files; None for no limit.
        installed: Information of each app by its id.
        starts: Every start of an app.
        written: Files that were sent to apps' containers.
    """

    folder: Path
    app: Callable[[Start], None] = measuring_app
    attached: bool = True
    paired: bool = True
    locked: bool = False
    developer_mode: bool = True
    image: bool = True
    install_error: tuple[str, str] | None = None
    launch_error: str | None = None
    room_bytes: int | None = None
    system: str = "18.1"
    installed: dict[str, dict[str, Any]] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    installs: int = 0
    written: list[str] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)
    _servers: list[socket.socket] = field(default_factory=list)
    _ports: dict[int, Callable[[socket.socket], None]] = field(default_factory=dict)
    _consoles: dict[uuid.UUID, socket.socket] = field(default_factory=dict)

    def __enter__(self) -> IosPhone:
        self._mux = self._listen(self._serve_mux)
        stdio = self._listen(self._serve_console)
        apps = self._listen(lambda c: ios_xpc.serve(c, self._answer_app))
        self._remote = {
            "com.apple.coredevice.appservice": {
                "Port": str(apps),
                "Properties": {
                    "Features": [f"com.apple.coredevice.feature.{f}" for f in _APP_FEATURES]
                },
            },
            "com.apple.coredevice.openstdiosocket": {"Port": str(stdio), "Properties": {}},
        }
        self._discovery = self._listen(lambda c: ios_xpc.serve(c, self._answer_discovery))
        self._tunneld = _tunneld(self._discovery)
        self.crashes.mkdir(exist_ok=True)
        (self.folder / "media").mkdir(exist_ok=True)
        return self

    def __exit__(
        self, _1: type[BaseException] | None, _2: BaseException | None, _3: TracebackType | None
    ) -> None:
        self._tunneld.shutdown()
        self._tunneld.server_close()
        for start in self.starts:
            start.killed.set()
        for server in self._servers:
            server.close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which pymobiledevice3 finds it."""
        return {
            "USBMUXD_SOCKET_ADDRESS": f"127.0.0.1:{self._mux}",
            "PYMOBILEDEVICE3_TUNNEL": f"{UDID}:{self._tunneld.server_address[1]}",
        }

    @property
    def crashes(self) -> Path:
        """Its crash reports."""
        return self.folder / "crashes"

    def container(self, app: str) -> Path:
        """The data of an app."""
        return self.folder / "containers" / app

    def _listen(self, serve: Callable[[socket.socket], None]) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        self._servers.append(server)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=guarded, args=(connection,), daemon=True).start()

        def guarded(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    # usbmuxd

    def _serve_mux(self, connection: socket.socket) -> None:
        while head := connection.recv(16, socket.MSG_WAITALL):
            size, version, kind, tag = struct.unpack("<4I", head)
            request = plistlib.loads(connection.recv(size - 16, socket.MSG_WAITALL))
            answer = self._answer_mux(request)
            body = plistlib.dumps(answer)
            connection.sendall(struct.pack("<4I", 16 + len(body), version, kind, tag) + body)
            if request["MessageType"] == "Connect" and answer["Number"] == 0:
                self._service(socket.ntohs(request["PortNumber"]))(connection)
                return

    def _answer_mux(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = request["MessageType"]
        if kind == "ReadBUID":
            return {"BUID": "00000000-TEST"}
        if kind == "ListDevices":
            return {"DeviceList": [_attached()] if self.attached else []}
        if kind == "ReadPairRecord":
            record = {
                "HostID": "HOST",
                "SystemBUID": "00000000-TEST",
                "HostCertificate": b"",
                "HostPrivateKey": b"",
            }
            return {"PairRecordData": plistlib.dumps(record)} if self.paired else _mux_result(2)
        if kind == "Connect":
            known = socket.ntohs(request["PortNumber"]) in (_LOCKDOWN_PORT, *self._ports)
            return _mux_result(0 if known and self.attached else 2)
        return _mux_result(0)

    def _service(self, port: int) -> Callable[[socket.socket], None]:
        return self._serve_lockdown if port == _LOCKDOWN_PORT else self._ports[port]

    # lockdownd

    def _serve_lockdown(self, connection: socket.socket) -> None:
        _serve_plists(connection, lambda request: [self._answer_lockdown(request)])

    def _answer_lockdown(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = request["Request"]
        answer: dict[str, Any] = {"Request": kind}
        if kind == "QueryType":
            return answer | {"Type": "com.apple.mobile.lockdown"}
        if kind == "GetValue":
            return answer | self._value(request.get("Domain"), request.get("Key"))
        if kind == "StartSession":
            if not self.paired:
                return answer | {"Error": "InvalidHostID"}
            return answer | {"EnableSessionSSL": False, "SessionID": "SESSION"}
        if kind == "Pair":
            return answer | {"Error": "UserDeniedPairing"}
        if kind == "StartService":
            return answer | self._started(request["Service"])
        return answer

    def _value(self, domain: str | None, key: str | None) -> dict[str, Any]:
        if domain == "com.apple.security.mac.amfi":
            return {"Value": self.developer_mode}
        values = {
            "DeviceName": "Test phone", "DeviceClass": "iPhone", "ProductType": "iPhone16,1",
            "ProductName": "iPhone OS", "ProductVersion": self.system, "BuildVersion": "22B83",
            "UniqueDeviceID": UDID, "UniqueChipID": 7365908734701424, "HardwareModel": "D83AP",
            "HardwarePlatform": "t8130", "CPUArchitecture": "arm64e", "SerialNumber": "F2LTEST",
            "PasswordProtected": self.locked, "TimeIntervalSince1970": time.time(),
            "TimeZone": "UTC", "WiFiAddress": "00:00:00:00:00:01", "DevicePublicKey": _PUBLIC_KEY,
        }  # fmt: skip
        if domain is None and key is None:
            return {"Value": values}
        return {"Value": values[key]} if key in values else {"Error": "MissingValue"}

    def _started(self, service: str) -> dict[str, Any]:
        if self.locked and service == "com.apple.mobile.house_arrest":
            return {"Error": "PasswordProtected"}
        serve = {
            "com.apple.afc": FileService(self.folder / "media").serve,
            "com.apple.mobile.house_arrest": self._serve_container,
            "com.apple.mobile.installation_proxy": lambda c: _serve_plists(c, self._answer_install),
            "com.apple.mobile.diagnostics_relay": lambda c: _serve_plists(c, _answer_diagnostics),
            "com.apple.mobile.mobile_image_mounter": lambda c: _serve_plists(
                c, self._answer_mounter
            ),
            "com.apple.crashreportmover": lambda c: c.sendall(b"ping\0"),
            "com.apple.crashreportcopymobile": FileService(self.crashes).serve,
        }.get(service)
        if serve is None:
            return {"Error": "InvalidService"}
        port = 50000 + len(self._ports)
        self._ports[port] = serve
        return {"Port": port, "EnableServiceSSL": False, "Service": service}

    # Apps

    def _serve_container(self, connection: socket.socket) -> None:
        request = _read_plist(connection)
        app = request["Identifier"] if request else ""
        if app not in self.installed:
            _send_plist(connection, {"Error": "ApplicationLookupFailed"})
            return
        if not self.installed[app]["Entitlements"]["get-task-allow"]:
            _send_plist(connection, {"Error": "InstallationLookupFailed"})
            return
        _send_plist(connection, {"Status": "Complete"})
        files = FileService(self.container(app), self.room_bytes, self.written)
        files.serve(connection)

    def _answer_install(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        command, options = request["Command"], request.get("ClientOptions", {})
        if command == "Lookup":
            wanted = options.get("BundleIDs") or list(self.installed)
            found = {app: self.installed[app] for app in wanted if app in self.installed}
            return [{"LookupResult": found, "Status": "Complete"}]
        if command == "Uninstall":
            app = request["ApplicationIdentifier"]
            self.installed.pop(app, None)
            shutil.rmtree(self.container(app), ignore_errors=True)
            return [{"Status": "Complete"}]
        if self.install_error:
            error, description = self.install_error
            return [{"Error": error, "ErrorDescription": description}]
        self.install(self.folder / "media" / request["PackagePath"].lstrip("/"))
        return [{"Status": "InstallingApplication", "PercentComplete": 60}, {"Status": "Complete"}]

    def install(self, archive: Path) -> None:
        """Installs an archive; the app's documents stay."""
        with zipfile.ZipFile(archive) as file:
            [name] = [n for n in file.namelist() if n.count("/") == 2 and n.endswith("Info.plist")]
            information = plistlib.loads(file.read(name))
        app = information["CFBundleIdentifier"]
        self.installs += 1
        self.installed[app] = information | {
            "ApplicationType": "User",
            "Path": f"{_CONTAINERS}/{uuid.uuid4()}/{name.split('/')[1]}",
            "Container": f"/private/var/mobile/Containers/Data/Application/{app}",
            "Entitlements": {"get-task-allow": True, "application-identifier": f"TEAM.{app}"},
            "SignerIdentity": "Apple Development: Test",
        }
        (self.container(app) / "Documents").mkdir(parents=True, exist_ok=True)

    # Images

    def _answer_mounter(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        if request["Command"] == "LookupImage":
            found = {"ImageSignature": [b"signature"]} if self.image else {}
            return [{"Status": "Complete", **found}]
        if request["Command"] == "QueryDeveloperModeStatus":
            return [{"DeveloperModeStatus": self.developer_mode}]
        return [{"Error": "UnknownCommand"}]

    # The tunnel's end

    def _answer_discovery(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {
            "MessageType": "Handshake",
            "Properties": {
                "UniqueDeviceID": UDID,
                "ProductType": "iPhone16,1",
                "OSVersion": self.system,
                "BuildVersion": "22B83",
            },
            "Services": self._remote if self.image and self.developer_mode else {},
        }

    def _serve_console(self, connection: socket.socket) -> None:
        name = uuid.uuid4()
        ended = threading.Event()
        self._consoles[name] = connection
        connection.sendall(name.bytes)
        while connection.recv(1024):
            pass
        ended.set()

    def _answer_app(self, request: dict[str, Any]) -> dict[str, Any]:
        feature = request["CoreDevice.featureIdentifier"].rpartition(".")[2]
        given = request["CoreDevice.input"]
        if feature == "launchapplication":
            return self._launched(given)
        if feature == "listprocesses":
            return {"CoreDevice.output": {"processTokens": self._processes()}}
        pid, signal = given["process"]["processIdentifier"], given["signal"]
        self.signals.append((pid, signal))
        self.starts[pid - 1000].killed.set()
        return {"CoreDevice.output": {"process": {"processIdentifier": pid}}}

    def _processes(self) -> list[dict[str, Any]]:
        running = [
            {
                "processIdentifier": 1000 + number,
                "executableURL": {"relative": f"file://{self._executable()}"},
            }
            for number, start in enumerate(self.starts)
            if not start.killed.is_set()
        ]
        launchd = {"processIdentifier": 1, "executableURL": {"relative": "file:///sbin/launchd"}}
        return [launchd, *running]

    def _executable(self) -> str:
        information = next(iter(self.installed.values()))
        return f"{information['Path']}/{information['CFBundleExecutable']}"

    def _launched(self, given: dict[str, Any]) -> dict[str, Any]:
        app = given["applicationSpecifier"]["bundleIdentifier"]["_0"]
        if self.launch_error or app not in self.installed:
            said = self.launch_error or f"The requested application {app} is not installed."
            error = {"code": 10002, "userInfo": {"NSLocalizedDescription": said}}
            return {"CoreDevice.error": error}
        console = self._consoles[given["standardIOIdentifiers"]["standardOutput"]]

        def show(line: str) -> None:
            with suppress(OSError):
                console.sendall(f"{line}\r\n".encode())

        options = dict(word.partition("=")[::2] for word in given["options"]["arguments"])
        start = Start(options, self.container(app) / "Documents", show)
        self.starts.append(start)

        def run() -> None:
            self.app(start)
            start.killed.set()
            with suppress(OSError):
                console.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=run, daemon=True).start()
        token = {"processIdentifier": 999 + len(self.starts)}
        return {"CoreDevice.output": {"processToken": token}}


def archive(folder: Path, app: str = "org.example.convnet", content: bytes = b"code") -> Path:
    """An .ipa of an app."""
    path = folder / f"{uuid.uuid4()}.ipa"
    information = {
        "CFBundleIdentifier": app, "CFBundleExecutable": "ConvNet", "CFBundleVersion": "1",
        "CFBundleShortVersionString": "1.0", "CFBundleName": "ConvNet",
    }  # fmt: skip
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("Payload/ConvNet.app/Info.plist", plistlib.dumps(information))
        file.writestr("Payload/ConvNet.app/ConvNet", content)
    return path


def _tunneld(discovery: int) -> ThreadingHTTPServer:
    """Tells where a tunnel to the phone ends."""
    ends = {UDID: [{"tunnel-address": "127.0.0.1", "tunnel-port": discovery, "interface": "test"}]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(ends).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def _attached() -> dict[str, Any]:
    properties = {
        "ConnectionType": "USB", "DeviceID": 1, "SerialNumber": UDID.replace("-", ""),
        "LocationID": 0, "ProductID": 0x12A8, "ConnectionSpeed": 480_000_000,
    }  # fmt: skip
    return {"MessageType": "Attached", "DeviceID": 1, "Properties": properties}


def _mux_result(number: int) -> dict[str, Any]:
    return {"MessageType": "Result", "Number": number}


def _answer_diagnostics(request: dict[str, Any]) -> list[dict[str, Any]]:
    if request["Request"] != "IORegistry":
        return [{"Status": "Success"}]
    battery = {
        "CurrentCapacity": 81, "MaxCapacity": 100, "IsCharging": True, "FullyCharged": False,
        "ExternalConnected": True, "InstantAmperage": 412, "Amperage": 398, "Temperature": 3049,
        "Voltage": 4211, "UpdateTime": 1731500000,
    }  # fmt: skip
    return [{"Status": "Success", "Diagnostics": {"IORegistry": battery}}]


def _serve_plists(
    connection: socket.socket, answer: Callable[[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    while (request := _read_plist(connection)) is not None:
        for message in answer(request):
            _send_plist(connection, message)


def _read_plist(connection: socket.socket) -> dict[str, Any] | None:
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    content = connection.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL)
    found: dict[str, Any] = plistlib.loads(content)
    return found


def _send_plist(connection: socket.socket, message: dict[str, Any]) -> None:
    body = plistlib.dumps(message)
    connection.sendall(struct.pack(">I", len(body)) + body)
