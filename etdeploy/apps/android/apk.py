"""Builds the APK of a project with the SDK's tools alone: no Gradle, and nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from etdeploy.apps.android import app as layout
from etdeploy.apps.android.app import AndroidApp, require_room, require_valid
from etdeploy.apps.android.archive import (
    ApkEntry,
    apk_problems,
    asset_entry,
    library_entry,
    read_entries,
    require_sound,
    unpack_libraries,
    write_archive,
)
from etdeploy.apps.android.commands import (
    CODE_OF_RESOURCES,
    KEEP_RULES,
    LINKED,
    compile_code,
    link_resources,
    require_keystore,
    shrink,
    sign,
)
from etdeploy.apps.android.tools import Tools
from etdeploy.apps.platform import BuiltApp
from etdeploy.backends.values import Workstation
from etdeploy.cache.workspace import NOTES, FileDigests, fill_folder, is_intact
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import folder_files
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Progress, silent

APK = "app-debug.apk"
_RESULT = "apk.json"
# Changes when other code makes other APKs of the same inputs.
_MAKING = "2"


def build_apk(
    project: Path,
    work: Path,
    tools: Tools,
    app: AndroidApp,
    progress: Progress = silent,
    *,
    station: Workstation | None = None,
    log: Path | None = None,
) -> BuiltApp:
    """Build and sign the APK; unchanged stages are reused."""
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
                f"this is not an Android project: its manifest cannot be read: {error}",
                place=str(place),
            ) from error
        manifest = complete_manifest(text, self.app, str(place))
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
        files = ((name, folder / name) for folder in folders for name in folder_files(folder))
        named = [(name, path) for name, path in files if name.endswith((".kt", ".java"))]
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
        """The used code of the app and its libraries, as Android runs it."""
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
            programs = [classes / name for name in folder_files(classes) if name.endswith(".class")]
            shrink(
                tools.jdk, tools.sdk, self.app.min_sdk, [*programs, *jars], rules, made, self.log
            )

        return self.stages.obtain("dex", inputs, make)

    def signed(self, keystore: Path) -> BuiltApp:
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
            describe_apk(apk, self.app, "sdk tools").save(made / _RESULT)

        folder = self.stages.obtain("apk", inputs, make)
        built = BuiltApp.load(folder / _RESULT)
        return built.model_copy(update={"archive": str(folder / APK)})

    def _entries(
        self, linked: Path, dex: Path, native: Mapping[tuple[str, str], Path], assets: Path
    ) -> Iterator[ApkEntry]:
        yield from read_entries(linked)
        for name in folder_files(dex):
            if name.endswith(".dex"):
                yield ApkEntry(name, dex / name)
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
            self.resources() / KEEP_RULES,
            *sorted(self.libraries().glob("*.pro")),
            *([own] if own.is_file() else []),
        )

    def _digests(self, paths: tuple[Path, ...]) -> list[list[str]]:
        return [[path.name, self.stages.digest(path)] for path in paths]


def describe_apk(apk: Path, app: AndroidApp, how: str) -> BuiltApp:
    """Return the facts of a built APK."""
    notes = tuple(apk_problems(apk))
    return BuiltApp.of(apk, id=app.id, version=app.version_name, how=how, notes=notes)


_ANDROID = "http://schemas.android.com/apk/res/android"
_TOOLS = "{http://schemas.android.com/tools}"
_ENTITY = re.compile(r"<!(DOCTYPE|ENTITY)")


def complete_manifest(text: str, app: AndroidApp, place: str) -> str:
    """The manifest with what a project keeps in its build files.

    These are the package, whether native libraries are extracted, and the id in placeholders;
    API levels and versions are aapt2's to add. Words for tools are left out.
    """
    if _ENTITY.search(text):
        raise BuildError("DOCTYPE is not allowed in a manifest", place=place)
    try:
        root = ElementTree.fromstring(text.replace("${applicationId}", app.id))  # noqa: S314
    except ElementTree.ParseError as error:
        raise BuildError(f"this is not XML: {error}", place=place) from error
    application = root.find("application")
    if root.tag != "manifest" or application is None:
        raise BuildError("this manifest has no <application>", place=place)
    ElementTree.register_namespace("android", _ANDROID)
    root.set("package", app.id)
    application.set(f"{{{_ANDROID}}}extractNativeLibs", "true" if app.extracted else "false")
    for element in root.iter():
        _complete(element, app.id)
    return ElementTree.tostring(root, encoding="unicode")


def _complete(element: ElementTree.Element, package: str) -> None:
    """Class names that begin with a dot are in the package."""
    name = element.get(f"{{{_ANDROID}}}name", "")
    if name.startswith("."):
        element.set(f"{{{_ANDROID}}}name", package + name)
    for attribute in [word for word in element.attrib if word.startswith(_TOOLS)]:
        del element.attrib[attribute]


class Stages:
    """The stages of one build, each in a folder of `work`; another `version` remakes them all."""

    def __init__(self, work: Path, version: str) -> None:
        self.work = work
        self._version = version
        self._digests = FileDigests(work / "digests.json")

    def digest(self, path: Path) -> str:
        """The SHA-256 of a file, read again only if it was touched."""
        found = self._digests.of(path)
        if found is None:
            raise BuildError(f"{path} cannot be read", remedy="Generate the project again.")
        return found

    def digests(self, folder: Path) -> dict[str, str]:
        """The SHA-256 of each file below a folder, by its path there; empty for no folder."""
        names = (name for name in folder_files(folder) if name not in NOTES)
        return {name: self.digest(folder / name) for name in names}

    def obtain(self, name: str, inputs: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """The folder of a stage, made again unless its inputs are those of the last time."""
        folder = self.work / name
        key = digest_json({"version": self._version, "inputs": inputs})
        if not is_intact(folder, key):
            fill_folder(folder, make, key)
        return folder

    def save(self) -> None:
        """Keeps the digests of files for the next time."""
        self._digests.save()
