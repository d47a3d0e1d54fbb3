"""Qualcomm's libraries that go to a phone: of the SDK, or of the AAR that the user names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.qnn.kits.package import (
    COORDINATES,
    FOLDER,
    VARIABLE,
    Aar,
    read_aar,
    unpack_aar,
)
from etdeploy.backends.qnn.kits.sdk import (
    ANDROID_LIBRARIES,
    DEPLOYING,
    QnnSdk,
    downloads_folder,
    find_sdk,
    is_any_sdk,
)
from etdeploy.backends.qnn.versions import short_version
from etdeploy.backends.values import Workstation
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker
from etdeploy.core.hashing import stat_signature

_SKEL = re.compile(r"libQnnHtp(V\d+)Skel\.so")
_IN_SDK = (ANDROID_LIBRARIES, "lib/hexagon-v*/unsigned")


@dataclass(frozen=True)
class DeployKit:
    """Libraries for Android phones with arm64.

    Attributes:
        version: Of QNN, for example 2.37.0.250724175447; None if an AAR does not say it.
        origin: The SDK or the AAR.
        libraries: Where each is, by name: a path in the SDK, or in the archive.
    """

    version: str | None
    origin: QnnSdk | Aar
    libraries: Mapping[str, str]

    def __str__(self) -> str:
        """For messages: `the QNN SDK 2.37.0 in /opt/qairt`."""
        if isinstance(self.origin, Aar):
            return f"{self.origin.path} ({self.number})"
        return f"the QNN SDK {self.origin.number} in {self.origin.root}"

    @property
    def place(self) -> Path:
        """The folder of the SDK, or the AAR."""
        return self.origin.path if isinstance(self.origin, Aar) else self.origin.root

    @property
    def identity(self) -> str:
        """What tells it from another, also from another file of the same name."""
        if isinstance(self.origin, Aar):
            size_bytes, modified_ns, *_ = stat_signature(self.origin.path)
            return f"{self.number} in {self.place}, {size_bytes} bytes of {modified_ns}"
        return f"{self.version} in {self.place}"

    @property
    def number(self) -> str:
        """`QNN 2.37.0`, or that the version is not known."""
        return f"QNN {short_version(self.version)}" if self.version else "an unknown version of QNN"

    @property
    def htp_archs(self) -> tuple[str, ...]:
        """The generations of the HTP that it has libraries for, oldest first."""
        found = (_SKEL.fullmatch(name) for name in self.libraries)
        return tuple(sorted((m[1] for m in found if m), key=lambda arch: int(arch[1:])))

    def where(self, name: str, htp_arch: str) -> str:
        """Where a library of that name belongs, for a message about one that is absent."""
        if isinstance(self.origin, Aar):
            return f"{FOLDER}/{name}"
        skel = f"lib/hexagon-{htp_arch.lower()}/unsigned"
        return f"{skel if _SKEL.fullmatch(name) else ANDROID_LIBRARIES}/{name}"

    def paths(self, names: Iterable[str]) -> tuple[Path, ...]:
        """The files, for a bundle; an AAR is unpacked into the cache."""
        if isinstance(self.origin, Aar):
            folder = unpack_aar(self.origin, Workspace.default())
            return tuple(folder / name for name in names)
        return tuple(self.origin.root / self.libraries[name] for name in names)


def find_deploy_kit(station: Workstation) -> DeployKit | Blocker:
    """The AAR that the user names, or else the SDK.

    An AAR is named for the libraries alone, and an SDK also for its compiler and its headers: so
    who sets both wants the AAR's libraries.
    """
    named = station.environ.get(VARIABLE)
    if named:
        aar = read_aar(Path(named).expanduser().absolute())
        if isinstance(aar, Blocker):
            return aar
        return DeployKit(aar.version, aar, {name: f"{FOLDER}/{name}" for name in aar.libraries})
    sdk = find_sdk(station.environ, station.home, DEPLOYING)
    if isinstance(sdk, Blocker):
        why = sdk.why
        if not is_any_sdk(station.environ, station.home):
            why = (
                "Qualcomm's libraries for phones are not here: neither QNN_SDK_ROOT nor "
                f"{VARIABLE} is set, and there is no SDK in "
                f"{downloads_folder(station.environ, station.home)}"
            )
        return Blocker("QNN for phones", why, f"{sdk.remedy}\n{NAME_AN_AAR}")
    files = (path for folder in _IN_SDK for path in sdk.root.glob(f"{folder}/libQnn*.so"))
    found = {path.name: path.relative_to(sdk.root).as_posix() for path in files if path.is_file()}
    return DeployKit(sdk.version, sdk, found)


NAME_AN_AAR = (
    f"or download {COORDINATES} (an .aar with these libraries alone) from Maven, and\n"
    f"export {VARIABLE}=/path/to/qnn-runtime-VERSION.aar"
)
