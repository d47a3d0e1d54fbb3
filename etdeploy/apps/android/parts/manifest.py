"""The manifest as Gradle's plugin would complete it."""

from __future__ import annotations

import re

# Of the project's own file, which only the user writes to; entities are refused below.
from xml.etree import ElementTree

from etdeploy.apps.android.app import AndroidApp
from etdeploy.core.errors import BuildError

_ANDROID = "http://schemas.android.com/apk/res/android"
_TOOLS = "{http://schemas.android.com/tools}"
_ENTITY = re.compile(r"<!(DOCTYPE|ENTITY)")


def completed_manifest(text: str, app: AndroidApp, place: str) -> str:
    """The manifest with what a project keeps in its build files.

    These are the package, whether native libraries are extracted, and the id in placeholders;
    API levels and versions are aapt2's to add. Words for tools are left out.

    Args:
        text: Of AndroidManifest.xml.
        app: The app.
        place: The file, for messages.

    Raises:
        BuildError: It is no manifest.
    """
    if _ENTITY.search(text):
        raise BuildError("a manifest has no document type", place=place)
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
