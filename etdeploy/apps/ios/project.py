"""What the template of an iOS app is filled in with: facts of the app, ids, words.

Nothing here depends on the machine or the time: equal programs give equal projects.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Literal

from etdeploy.apps.ios.icon import ICON_PATH, icon_png
from etdeploy.apps.ios.products import has_thread_pool, package_blockers, swift_products
from etdeploy.core.blocker import refuse
from etdeploy.core.errors import CheckError, UsageError
from etdeploy.core.values import Value
from etdeploy.program.model import Program

DEPLOYMENT_TARGET = "17.0"
# From here on an app may need more memory than iOS gives it by default: about half of what a phone
# has, and phones with iOS 17 have 3 GB and more.
_MUCH_BYTES = 1 << 30
_BUNDLE_ID = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./]+")


class IosApp(Value):
    """The variable `app` of the template.

    Attributes:
        id: The bundle id.
        name: Under the icon.
        target: The name of project, target and Swift module.
        team: The developer team's id; empty to choose it in Xcode.
        deployment_target: The oldest iOS.
        workload: What the app does.
        products: Of ExecuTorch's Swift package, sorted.
        package_branch: Where that package is.
        threadpool: Whether ExecuTorch's thread pool is linked.
        increased_memory: Whether the app asks for more memory than others get.
        model_name: The recipe's name.
        program: The file's name.
        bundled: Whether the program is a part of the app.
        etdeploy_version: For the files that say who made them.
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


def ios_app(
    program: Program,
    *,
    app_id: str,
    name: str,
    model_name: str,
    workload: Literal["inference", "generation"],
    executorch_version: str,
    etdeploy_version: str,
    team: str = "",
    file: str = "program.pte",
    bundled: bool = True,
) -> IosApp:
    """The facts of an app with this program.

    Raises:
        CheckError: The program cannot run in an app with ExecuTorch's Swift package.
        UsageError: The bundle id is not valid.
    """
    refuse(package_blockers(program), CheckError)
    require_bundle_id(app_id)
    products = swift_products(program)
    return IosApp(
        id=app_id,
        name=name,
        target=target_name(model_name),
        team=team,
        workload=workload,
        products=products,
        package_branch=f"swiftpm-{executorch_version}",
        threadpool=has_thread_pool(products),
        increased_memory=program.size_bytes >= _MUCH_BYTES,
        model_name=model_name,
        program=file,
        bundled=bundled,
        etdeploy_version=etdeploy_version,
    )


def template_variables(app: IosApp) -> dict[str, Any]:
    """All variables of the template: `app`, and the functions `uuid` and `pbx`."""
    return {"app": app, "uuid": project_ids(app.id), "pbx": quoted}


def further_files(app: IosApp) -> dict[str, bytes]:
    """Files of the project that no template can give, by their paths."""
    return {f"{app.target}/{ICON_PATH}": icon_png()}


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

    It begins with a letter and is none of the names that the app's sources import.
    """
    words = re.findall(r"[A-Za-z0-9]+", model_name)
    name = "".join(word[0].upper() + word[1:] for word in words)
    if not name or name[0].isdigit():
        name = f"Model{name}"
    return f"{name}App" if name in _TAKEN else name


# Modules and types that the sources use by these names, and folders of the project.
_TAKEN_WORDS = """
App Benchmark Charts ExecuTorch Foundation Generator Histogram JSON Logits Measurement Method Model
Module Native Nullable Options Output Payload Program Report Request Run Sampler Session Speech
Swift SwiftUI Tokenizer UIKit Value Verdict Warmup
"""
_TAKEN = frozenset(_TAKEN_WORDS.split())


def require_bundle_id(text: str) -> None:
    """Refuses what Apple does not take: letters, digits, hyphens, and dots between.

    Raises:
        UsageError: It is not valid.
    """
    if not _BUNDLE_ID.fullmatch(text):
        raise UsageError(
            f"'{text}' is not a bundle id: it takes letters, digits and hyphens, in at least two "
            "parts with dots between them",
            remedy="Name one that is yours: --set app.id=com.example.mymodel",
        )
