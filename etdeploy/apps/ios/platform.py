"""Apps for iOS."""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

import etdeploy
from etdeploy.apps.ios.xcode import (
    LIST_IDENTITIES,
    XcodeBuild,
    build_failure,
    certificate_command,
    choose_team,
    find_built_app,
    has_thread_pool,
    identities,
    kernel_blockers,
    no_xcode,
    package_blockers,
    parse_team,
    subject_command,
    swift_products,
)
from etdeploy.apps.model import MODEL_FILE, AppModel, AppScreen, app_id, app_name
from etdeploy.apps.platform import AppRuntime, AppSubject, BuiltApp
from etdeploy.backends.registry import known_backends
from etdeploy.core.errors import Blocker, BuildError, CheckError, UsageError, refuse
from etdeploy.core.files.basic import resource_folder, write_atomic
from etdeploy.core.hashing import digest_json
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, ReasonedChoice, Value
from etdeploy.custom_ops.kernels import (
    REGISTRATION,
    CustomOps,
    read_custom_ops,
    registration_code,
)
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe

_PAYLOAD = "Model"
_OUTPUT = "build/App.ipa"


class Ios:
    """See `apps/platform.py`."""

    name = "ios"
    kind = "ios app"
    payload = _PAYLOAD
    anchor = "*/App.swift"
    output = _OUTPUT

    @property
    def templates(self) -> Path:
        return resource_folder("templates") / "ios"

    @property
    def parts(self) -> tuple[Path, ...]:
        return (self.templates,)

    def place(self, subject: AppSubject, path: str) -> str | None:
        del subject
        return f"{self.payload}/{path}"

    def runtime(
        self, recipe: Recipe, program: Program, version: str, abis: tuple[str, ...]
    ) -> AppRuntime:
        del abis  # one package for every phone
        own = own_kernels(recipe)
        refuse(_blockers(recipe, program, own))
        reason = f"ExecuTorch's Swift package {version} has everything that the program needs"
        packages = tuple(
            ReasonedChoice(name=product, value=f"swiftpm-{version}", reason=reason)
            for product in swift_products(program)
        )
        return AppRuntime(
            ReasonedChoice(name="prebuilt", value="prebuilt", reason=reason),
            packages,
            own.digest if own else None,
        )

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        return template_variables(ios_app(subject))

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        app, own = ios_app(subject), own_kernels(subject.loaded.recipe)
        return {**binary_files(app), **(_kernel_files(app, own) if own else {})}

    def notes(self, subject: AppSubject) -> tuple[str, ...]:
        own = own_kernels(subject.loaded.recipe)
        if own is None or own.operators is not None:
            return ()
        return (
            f"{own.folder} lists no operators: whether its kernels are those of the program is "
            "known once the app runs.",
        )

    def missing(self, recipe: Recipe, plan: RuntimePlan) -> tuple[Blocker, ...]:
        del plan
        if not shutil.which("xcodebuild"):
            return (
                Blocker(
                    what="Xcode",
                    why="an iOS app is built by Xcode, which runs on a Mac only",
                    remedy="Write the project with the same recipe, and open it in Xcode on a "
                    "Mac:\netdeploy app ios --output FOLDER\n"
                    "or run an app that was built there:  etdeploy run --device ios --app X.ipa",
                ),
            )
        team = choose_team(recipe.app.team, os.environ, keychain_teams)
        return (team,) if isinstance(team, Blocker) else ()

    def fingerprint(self, recipe: Recipe) -> str:
        return digest_json([xcode_version(), recipe.app.team or ""])

    def build(
        self, subject: AppSubject, project: Path, work: Path, progress: Progress, log: Path | None
    ) -> BuiltApp:
        app = ios_app(subject)
        team = choose_team(subject.loaded.recipe.app.team, os.environ, keychain_teams)
        if isinstance(team, Blocker):
            raise BuildError(team.why, remedy=team.remedy)
        build = XcodeBuild(project / f"{app.target}.xcodeproj", app.target, work, team=team)
        ipa = project / _OUTPUT
        ipa.parent.mkdir(parents=True, exist_ok=True)
        folder = build_ipa(build, ipa, progress, log)
        return BuiltApp.of(ipa, id=app.id, version=app_version(folder), how="xcodebuild")

    def read_archive(self, archive: Path) -> tuple[BuiltApp, AppModel]:
        model, facts = _contents(archive)
        # In Xcode a person may have chosen another id than the project had.
        found_id = str(facts.get("CFBundleIdentifier", model.app_id))
        version = str(facts.get("CFBundleShortVersionString", ""))
        return BuiltApp.of(archive, id=found_id, version=version, how="given"), model


def own_kernels(recipe: Recipe) -> CustomOps | None:
    """The recipe's own kernels, which become sources of the app."""
    runtime = recipe.runtime
    if runtime.custom_ops is None:
        return None
    return read_custom_ops(Path(runtime.custom_ops), runtime.custom_ops_target)


def _blockers(recipe: Recipe, program: Program, own: CustomOps | None) -> Iterator[Blocker]:
    """Reasons why an app with the program cannot have ExecuTorch's Swift package."""
    if recipe.app.runtime == "source":
        yield Blocker(
            what="app.runtime",
            why="an iOS app has ExecuTorch's Swift package: app.runtime cannot be source",
            remedy="Remove app.runtime, or: --set app.runtime=prebuilt",
        )
    yield from kernel_blockers(own)
    yield from package_blockers(program, finished=recipe.model.program is not None, own=own)


def ios_app(subject: AppSubject) -> IosApp:
    loaded, model = subject.loaded, subject.model
    own = own_kernels(loaded.recipe)
    refuse(package_blockers(subject.program, own=own), CheckError)
    require_bundle_id(app_id(loaded))
    products = swift_products(subject.program)
    return IosApp(
        id=app_id(loaded),
        name=app_name(loaded),
        target=target_name(loaded.name),
        team=loaded.recipe.app.team or "",
        workload=model.workload,
        task=model.task,
        products=products,
        package_branch=f"swiftpm-{model.executorch_version}",
        threadpool=has_thread_pool(products),
        increased_memory=subject.program.size_bytes >= _MUCH_BYTES,
        model_name=loaded.name,
        program=model.program,
        bundled=model.bundled,
        etdeploy_version=etdeploy.__version__,
        kernel_sources=_kernel_sources(own) if own else (),
        kernel_headers=tuple(f"{_KERNELS}/{name}" for name in own.headers) if own else (),
    )


# Folders beside the app's sources: the recipe's own kernels, and what etdeploy adds to them.
_KERNELS, _KERNEL_SUPPORT = "Kernels", "KernelSupport"
# ExecuTorch's package has these headers, and not the one that includes them: it gets what the
# targets of extension/module and extension/tensor export (scripts/build_apple_frameworks.sh, on the
# main branch of August 2026).
_KERNEL_INCLUDES = """\
// The header of ExecuTorch that kernels include; the Swift package has those that it includes.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
"""


def _kernel_sources(own: CustomOps) -> tuple[str, ...]:
    """By their paths beside the app's sources."""
    registration = [f"{_KERNEL_SUPPORT}/{REGISTRATION}"] if own.declared else []
    return (*registration, *(f"{_KERNELS}/{name}" for name in own.sources))


def _kernel_files(app: IosApp, own: CustomOps) -> dict[str, bytes | Path]:
    support = f"{app.target}/{_KERNEL_SUPPORT}"
    files: dict[str, bytes | Path] = {
        f"{app.target}/{_KERNELS}/{name}": own.folder / name
        for name in (*own.sources, *own.headers)
    }
    files[f"{support}/executorch/runtime/kernel/kernel_includes.h"] = _KERNEL_INCLUDES.encode()
    if own.declared:
        files[f"{support}/{REGISTRATION}"] = registration_code(own.declared).encode()
    return files


def _contents(archive: Path) -> tuple[AppModel, dict[str, object]]:
    """`model.json` and the Info.plist of an .ipa."""
    try:
        with zipfile.ZipFile(archive) as opened:
            folder = _app_folder(opened)
            model = AppModel.model_validate_json(opened.read(f"{folder}/{_PAYLOAD}/{MODEL_FILE}"))
            facts: dict[str, object] = plistlib.loads(opened.read(f"{folder}/Info.plist"))
            return model, facts
    except (
        OSError, zipfile.BadZipFile, KeyError, ValidationError, plistlib.InvalidFileException,
    ) as error:  # fmt: skip
        raise UsageError(
            f"this is not an app of an etdeploy project: it has no readable model.json ({error})",
            place=str(archive),
            remedy="Build the project that etdeploy app ios writes, and name its .ipa.",
        ) from error


def _app_folder(opened: zipfile.ZipFile) -> PurePosixPath:
    for name in opened.namelist():
        parts = PurePosixPath(name).parts
        if len(parts) > 2 and parts[0] == "Payload" and parts[1].endswith(".app"):
            return PurePosixPath(*parts[:2])
    raise KeyError("Payload")


def build_ipa(build: XcodeBuild, ipa: Path, progress: Progress, log: Path | None) -> Path:
    """Builds and signs the app, and packs it; gives the app's folder."""
    progress("building the app with Xcode")
    _run(build.build(), build.project.parent, log)
    app = find_built_app(_run(build.settings(), build.project.parent, log))
    progress("packing the app")
    write_ipa(app, ipa)
    return app


def app_version(app: Path) -> str:
    """Return the version in the Info.plist of a built app; empty if it has none."""
    with (app / "Info.plist").open("rb") as stream:
        return str(plistlib.load(stream).get("CFBundleShortVersionString", ""))


def keychain_teams() -> tuple[str, ...]:
    """The teams whose certificates this Mac's keychain has; none on another system."""
    try:
        listed = process.run(process.Request(LIST_IDENTITIES))
    except FileNotFoundError:
        return ()
    found = (_team_of(name) for name in identities(listed.stdout))
    return tuple(team for team in found if team)


def xcode_version() -> str:
    """The output of `xcodebuild -version`; empty without Xcode."""
    try:
        return process.run(process.Request(("xcodebuild", "-version"))).stdout.strip()
    except FileNotFoundError:
        return ""


def _team_of(name: str) -> str | None:
    certificate = process.run(process.Request(certificate_command(name)))
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate.stdout)
        file.flush()
        subject = process.run(process.Request(subject_command(file.name)))
    return parse_team(subject.stdout)


def _run(argv: tuple[str, ...], cwd: Path, log: Path | None) -> str:
    try:
        outcome = process.run(process.Request(argv, cwd=cwd, log=log))
    except FileNotFoundError:
        raise no_xcode() from None
    if not outcome.ok:
        raise build_failure(f"{outcome.stdout}\n{outcome.stderr}", log)
    return outcome.stdout


# The oldest time that a zip file knows: equal apps give equal archives.
_TIME = (1980, 1, 1, 0, 0, 0)


def write_ipa(app: Path, ipa: Path) -> None:
    """Packs a built app; all of it or nothing."""
    if not (app / "Info.plist").is_file():
        raise BuildError("this is not a built app: it has no Info.plist", place=str(app))
    from io import BytesIO

    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(app.rglob("*")):
            if path.is_symlink() or path.is_file():
                _add(archive, path, f"Payload/{app.name}/{path.relative_to(app).as_posix()}")
    write_atomic(ipa, packed.getvalue())


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, so that modes count
    if path.is_symlink():
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, path.readlink().as_posix())
    else:
        runs = path.stat().st_mode & 0o111
        info.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
        archive.writestr(info, path.read_bytes())


DEPLOYMENT_TARGET = "17.0"
# From here on an app may need more memory than iOS gives it by default: about half of what a phone
# has, and phones with iOS 17 have 3 GB and more.
_MUCH_BYTES = 1 << 30
_BUNDLE_ID = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./]+")


class IosApp(Value):
    """The variable `app` of the template.

    `target` names the project, its target and its Swift module. `products` are those of
    ExecuTorch's Swift package, which is on the branch `package_branch`. An app with
    `increased_memory` asks iOS for more memory than others get. `kernel_sources` and
    `kernel_headers` are paths of the recipe's own kernels beside the app's sources.
    """

    id: str
    name: str
    target: str
    team: str = ""
    deployment_target: str = DEPLOYMENT_TARGET
    workload: Literal["inference", "generation"]
    products: tuple[str, ...]
    package_branch: str
    threadpool: bool
    increased_memory: bool
    model_name: str
    program: str
    bundled: bool
    etdeploy_version: str
    task: AppScreen = "tensor"
    library: bool = False
    prefix: str = ""
    kernel_sources: tuple[str, ...] = ()
    kernel_headers: tuple[str, ...] = ()


def template_variables(app: IosApp) -> dict[str, Any]:
    """All variables of the template: `app`, and the functions `uuid` and `pbx`."""
    return {"app": app, "uuid": project_ids(app.id), "pbx": quoted}


def binary_files(app: IosApp) -> dict[str, bytes]:
    """Files of the project that no template can give, by their paths."""
    return {f"{app.target}/{ICON_FOLDER}/{name}": png for name, png in icon_files().items()}


def project_ids(app_id: str) -> Callable[[str], str]:
    """Gives each object of the project, by its name, an id of 24 hexadecimal digits.

    The same in every generation, so that Xcode and version control find an object again.
    """
    return lambda name: hashlib.sha256(f"{app_id}\0{name}".encode()).hexdigest()[:24].upper()


def quoted(text: str) -> str:
    """A string of project.pbxproj, in quotes where it needs them."""
    if _PLAIN_WORD.fullmatch(text) and "//" not in text and "___" not in text:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def target_name(model_name: str) -> str:
    """A name for files and a Swift module: `my-model.v2` gives MyModelV2.

    It begins with a letter. A name that the app's sources use, or that differs from one by case
    only, gets another end: file systems of Macs ignore case, and one module would hide the other.
    """
    words = re.findall(r"[A-Za-z0-9]+", model_name)
    name = "".join(word[0].upper() + word[1:] for word in words)
    if not name or name[0].isdigit():
        name = f"Model{name}"
    linked = {each.lower() for backend in known_backends() for each in backend.frameworks}
    return f"{name}App" if name.lower() in _TAKEN | linked else name


# Modules and types that the sources use by these names, folders of the project, and frameworks.
_TAKEN_WORDS = """
AVFoundation Accelerate App Benchmark Calls Camera Charts Chat Classifier Combine Conversation
CoreGraphics CoreImage Darwin Dispatch ExecuTorch ExecuTorchLLM Failure Foundation Front Generator
Histogram ImageIO JSON Labeller Logits Measurement Message Metal MetalPerformanceShaders Method
Model Module Native Nullable Observation Options Output Payload Photo PhotosUI Pixels Preprocessing
Program Recorder Reply Report Request Run Sampler Session Sound Speech Swift SwiftUI Taps Testing
Tokenizer Transcriber UIKit Value Verdict Vision Warmup Writer XCTest
"""
_TAKEN = frozenset(_TAKEN_WORDS.lower().split())


def require_bundle_id(text: str) -> None:
    """Refuses what Apple does not take: letters, digits, hyphens, and dots between."""
    if not _BUNDLE_ID.fullmatch(text):
        raise UsageError(
            f"'{text}' is not a bundle id: it takes letters, digits and hyphens, in at least two "
            "parts with dots between them",
            remedy="Name one that is yours: --set app.id=com.example.mymodel",
        )


ICON_FOLDER = "Assets.xcassets/AppIcon.appiconset"
ICON_PIXELS = 1024
# Left edge and height of each bar, in 64ths of the icon; the first has another colour.
_BARS = ((11, 14), (20, 36), (29, 26), (38, 17), (47, 9))
_WIDTH, _GROUND = 6, 50


class _IconVariant(NamedTuple):
    """Colours of an icon, as the bytes of a pixel; their number gives PNG's colour type."""

    background: bytes
    bar: bytes
    first: bytes


# The App Store takes no transparency in the first. iOS puts its own background behind the dark one,
# and colours the grey of the tinted one by its lightness.
# https://developer.apple.com/documentation/xcode/configuring-your-app-icon
_ICONS = {
    "AppIcon.png": _IconVariant(b"\x0f\x3a\x78", b"\x8f\xc2\xff", b"\xff\xb7\x4d"),
    "AppIconDark.png": _IconVariant(bytes(4), b"\x8f\xc2\xff\xff", b"\xff\xb7\x4d\xff"),
    "AppIconTinted.png": _IconVariant(b"\0", b"\xb0", b"\xff"),
}
_PNG_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def icon_files() -> dict[str, bytes]:
    """The icon as PNGs of 1024 x 1024 pixels, by their names in the asset catalogue."""
    return {name: _png(variant) for name, variant in _ICONS.items()}


def _png(icon: _IconVariant) -> bytes:
    rows = b"".join(b"\0" + _row(icon, y * 64 // ICON_PIXELS) for y in range(ICON_PIXELS))
    colour_type = _PNG_COLOUR_TYPES[len(icon.background)]
    header = struct.pack(">IIBBBBB", ICON_PIXELS, ICON_PIXELS, 8, colour_type, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _row(icon: _IconVariant, y: int) -> bytes:
    return b"".join(_colour(icon, x, y) * (ICON_PIXELS // 64) for x in range(64))


def _colour(icon: _IconVariant, x: int, y: int) -> bytes:
    for left, height in _BARS:
        if left <= x < left + _WIDTH and _GROUND - height <= y < _GROUND:
            return icon.first if left == _BARS[0][0] else icon.bar
    return icon.background


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
