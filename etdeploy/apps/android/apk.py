"""Builds the APK of a project with the SDK's tools alone: no Gradle, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from etdeploy.apps.android import app as layout
from etdeploy.apps.android.app import AndroidApp, BuiltApk, require_room, require_valid
from etdeploy.apps.android.parts.archive import (
    Entry,
    asset_entry,
    entries_of,
    library_entry,
    write_archive,
)
from etdeploy.apps.android.parts.code import (
    CODE_OF_RESOURCES,
    KEPT,
    LINKED,
    compile_code,
    link_resources,
    shrink,
)
from etdeploy.apps.android.parts.libraries import unpack_libraries
from etdeploy.apps.android.parts.manifest import completed_manifest
from etdeploy.apps.android.parts.signing import require_keystore, sign
from etdeploy.apps.android.parts.stages import Stages
from etdeploy.apps.android.parts.verify import apk_parts, apk_problems, require_sound
from etdeploy.apps.android.tools.find import Tools
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import folder_files
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import sha256_file
from etdeploy.core.progress import Progress, silent

APK = "app-debug.apk"
_RESULT = "apk.json"
# Changes when other code makes other APKs of the same inputs.
_MAKING = "1"


def build_apk(
    project: Path,
    work: Path,
    tools: Tools,
    app: AndroidApp,
    progress: Progress = silent,
    *,
    station: Workstation | None = None,
    log: Path | None = None,
) -> BuiltApk:
    """Builds and signs the APK; what did not change since the last time is not made again.

    Args:
        project: The generated project.
        work: A folder for this project alone; its stages stay there for the next time.
        tools: What compiles, and the app's libraries.
        app: The app.
        progress: Reports each stage that is made.
        station: This machine, whose debug key signs.
        log: Receives all commands and their output.

    Raises:
        BuildError: A tool failed, or the project is not whole.
    """
    require_valid(app)
    require_room(project)
    with exclusive(work / ".lock", f"the build of {app.id}", progress):
        build = _Build(project, tools, app, Stages(work, _MAKING), progress, log)
        try:
            return build.signed(require_keystore(station or Workstation.this(), tools.jdk, log))
        finally:
            build.stages.save()


class _Build:
    """The stages of one build, each of which asks for those before it."""

    def __init__(
        self,
        project: Path,
        tools: Tools,
        app: AndroidApp,
        stages: Stages,
        progress: Progress,
        log: Path | None,
    ) -> None:
        self.project = project
        self.tools = tools
        self.app = app
        self.stages = stages
        self.progress = progress
        self.log = log

    def libraries(self) -> Path:
        """The libraries, taken apart."""
        libraries = self.tools.libraries
        inputs = {
            "abis": self.app.abis,
            "files": [[each.name, self.stages.digest(each.path)] for each in libraries],
        }

        def make(folder: Path) -> None:
            self.progress("unpacking the libraries")
            unpack_libraries(libraries, self.app.abis, folder)

        return self.stages.obtain("libraries", inputs, make)

    def resources(self) -> Path:
        """The manifest and the resources in binary form, and the class R."""
        place = self.project / layout.MANIFEST
        try:
            text = place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BuildError(
                f"this is no project for Android: its manifest cannot be read: {error}",
                place=str(place),
            ) from error
        manifest = completed_manifest(text, self.app, str(place))
        folder = self.project / layout.RESOURCES
        sdk = self.tools.sdk
        inputs = {
            "app": self.app.model_dump(mode="json"),
            "manifest": manifest,
            "resources": self.stages.digests(folder),
            "tools": [self.stages.digest(path) for path in (sdk.aapt2, sdk.android_jar)],
        }

        def make(made: Path) -> None:
            self.progress("compiling the resources")
            link_resources(self.app, sdk, manifest, folder, made, self.log)

        return self.stages.obtain("resources", inputs, make)

    def jars(self) -> tuple[Path, ...]:
        """The libraries' classes, and those that the project brings."""
        own = sorted((self.project / layout.JARS).glob("*.jar"))
        return (*sorted(self.libraries().glob("*.jar")), *own)

    def classes(self) -> Path:
        """The app's own classes."""
        generated = self.resources() / CODE_OF_RESOURCES
        folders = (*(self.project / folder for folder in layout.CODE), generated)
        named = [(name, f / name) for f in folders for name in folder_files(f) if _is_code(name)]
        sources = [path for _, path in named]
        tools = self.tools
        inputs = {
            "sources": [[name, self.stages.digest(path)] for name, path in named],
            "libraries": self._digests(self.jars()),
            "android": self.stages.digest(tools.sdk.android_jar),
            "kotlin": self._digests(tools.kotlin.compiler),
            "java": tools.jdk.version,
        }

        def make(made: Path) -> None:
            self.progress("compiling the code")
            compile_code(
                tools.jdk, tools.kotlin, tools.sdk.android_jar, sources, self.jars(), made, self.log
            )

        return self.stages.obtain("classes", inputs, make)

    def dex(self) -> Path:
        """What the app uses of its code and its libraries, as Android runs it."""
        classes, tools = self.classes(), self.tools
        jars = (*self.jars(), tools.kotlin.stdlib)
        rules = self._rules()
        inputs = {
            "classes": self.stages.digests(classes),
            "libraries": self._digests(jars),
            "rules": self._digests(rules),
            "min_sdk": self.app.min_sdk,
            "tools": [self.stages.digest(p) for p in (tools.sdk.r8, tools.sdk.android_jar)],
        }

        def make(made: Path) -> None:
            self.progress("shrinking the code")
            programs = [classes / name for name in folder_files(classes) if _is_class(name)]
            shrink(
                tools.jdk, tools.sdk, self.app.min_sdk, [*programs, *jars], rules, made, self.log
            )

        return self.stages.obtain("dex", inputs, make)

    def signed(self, keystore: Path) -> BuiltApk:
        """The APK."""
        linked, dex, native = self.resources() / LINKED, self.dex(), self._native()
        assets = self.project / layout.ASSETS
        tools = self.tools
        inputs = {
            "linked": self.stages.digest(linked),
            "dex": self.stages.digests(dex),
            "native": {"/".join(key): self.stages.digest(path) for key, path in native.items()},
            "assets": self.stages.digests(assets),
            "extracted": self.app.extracted,
            "min_sdk": self.app.min_sdk,
            "keystore": self.stages.digest(keystore),
            "signer": self.stages.digest(tools.sdk.apksigner),
        }

        def make(made: Path) -> None:
            self.progress("packing and signing the app")
            unsigned = made / "unsigned.apk"
            write_archive(unsigned, self._entries(linked, dex, native, assets))
            apk = made / APK
            sign(tools.jdk, tools.sdk, keystore, self.app.min_sdk, unsigned, apk, self.log)
            unsigned.unlink()
            require_sound(apk)
            described(made / APK, "sdk tools").save(made / _RESULT)

        folder = self.stages.obtain("apk", inputs, make)
        built = BuiltApk.load(folder / _RESULT)
        return built.model_copy(update={"path": str(folder / APK)})

    def _entries(
        self, linked: Path, dex: Path, native: Mapping[tuple[str, str], Path], assets: Path
    ) -> Iterator[Entry]:
        yield from entries_of(linked)
        for name in folder_files(dex):
            if name.endswith(".dex"):
                yield Entry(name, dex / name)
        for (abi, name), path in sorted(native.items()):
            yield library_entry(abi, name, path, extracted=self.app.extracted)
        for name in folder_files(assets):
            yield asset_entry(name, assets / name)

    def _native(self) -> dict[tuple[str, str], Path]:
        """Native libraries by ABI and name: the project's own before those of its libraries."""
        found: dict[tuple[str, str], Path] = {}
        for folder in (self.libraries(), self.project / layout.NATIVE):
            for abi in self.app.abis:
                found |= {(abi, path.name): path for path in sorted((folder / abi).glob("*.so"))}
        return found

    def _rules(self) -> tuple[Path, ...]:
        own = self.project / layout.RULES
        return (
            self.resources() / KEPT,
            *sorted(self.libraries().glob("*.pro")),
            *([own] if own.is_file() else []),
        )

    def _digests(self, paths: tuple[Path, ...]) -> list[list[str]]:
        return [[path.name, self.stages.digest(path)] for path in paths]


def described(apk: Path, how: Literal["sdk tools", "gradle"]) -> BuiltApk:
    """What is known of an APK that was built."""
    return BuiltApk(
        path=str(apk),
        sha256=sha256_file(apk),
        size_bytes=apk.stat().st_size,
        parts=apk_parts(apk),
        how=how,
        notes=tuple(apk_problems(apk)),
    )


def _is_code(name: str) -> bool:
    return name.endswith((".kt", ".java"))


def _is_class(name: str) -> bool:
    return name.endswith(".class")
