"""Lays out folders like Qualcomm's QNN SDK and package, with small files for the libraries."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

VERSION = "2.37.0.250724175447"
# Each release keeps the architectures of the ones before.
ARCHS = ("V66", "V68", "V69", "V73", "V75", "V79")

_LIBRARIES = ("libQnnHtp.so", "libQnnHtpPrepare.so", "libQnnSystem.so", "libQnnGpu.so")


def lay_out_sdk(root: Path, version: str = VERSION, archs: Sequence[str] = ARCHS) -> Path:
    """An SDK in `root`, as Qualcomm's archive unpacks it below qairt/VERSION.

    Returns:
        The folder itself, for QNN_SDK_ROOT.
    """
    _write(root / "sdk.yaml", f"product: qairt\r\nversion: {version}\r\n")
    _write(
        root / "include/QNN/QnnSdkBuildId.h",
        f'#pragma once\n#define QNN_SDK_BUILD_ID "v{version}_124859"\n',
    )
    for folder in ("lib/x86_64-linux-clang", "lib/aarch64-android"):
        for name in _LIBRARIES:
            _write(root / folder / name, f"{folder} {name}")
    for arch in archs:
        stub = f"libQnnHtp{arch}Stub.so"
        _write(root / "lib/aarch64-android" / stub, stub)
        skel = f"libQnnHtp{arch}Skel.so"
        _write(root / f"lib/hexagon-{arch.lower()}/unsigned" / skel, skel)
    return root


def lay_out_package(site: Path) -> Path:
    """The parts of onnxruntime-qnn that are used, in the folder that it is installed into.

    Returns:
        The folder of its libraries.
    """
    for name in ("libQnnHtp.so", "libQnnSystem.so", "libQnnGpu.so", "Qualcomm_LICENSE.pdf"):
        _write(site / "onnxruntime_qnn" / name, name)
    for name in ("libc++-71bc274c.so.1.0", "libc++abi-0539aa51.so.1.0", "libunwind-6b.so.1.0"):
        _write(site / "onnxruntime_qnn.libs" / name, name)
    return site / "onnxruntime_qnn"


AAR_VERSION = "2.49.0.260810104044"


def lay_out_aar(
    path: Path,
    version: str = AAR_VERSION,
    archs: Sequence[str] = ("V75", "V79"),
    without: str = "",
    machine: int = 183,
) -> Path:
    """An archive like com.qualcomm.qti:qnn-runtime; `machine` is an ELF file's, 183 for arm64."""
    head = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine.to_bytes(2, "little")
    contents = {"libQnnHtp.so": head + bytes(3_000) + f"v{version}_1".encode()}
    own = (f"libQnnHtp{arch}{part}.so" for arch in archs for part in ("Stub", "Skel"))
    for name in ("libQnnHtpPrepare.so", "libQnnSystem.so", "libQnnCpu.so", *own):
        contents[name] = name.encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("AndroidManifest.xml", "<manifest/>")
        for name, content in contents.items():
            if name != without:
                archive.writestr(f"jni/arm64-v8a/{name}", content)
    return path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
