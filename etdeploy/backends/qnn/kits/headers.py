"""QNN's headers, which a build of ExecuTorch from source needs: only an SDK has them."""

from __future__ import annotations

from etdeploy.backends.qnn.kits.sdk import (
    BUILDING,
    VARIABLE,
    QnnSdk,
    downloads_folder,
    find_sdk,
    how_to_get,
    is_any_sdk,
)
from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker
from etdeploy.core.values import Explained


def find_headers(station: Workstation) -> QnnSdk | Blocker:
    """The SDK whose headers a build uses."""
    return find_sdk(station.environ, station.home, BUILDING)


def headers_problem(station: Workstation) -> Blocker | None:
    """The blocker for a build without headers; None if there are some."""
    found = find_headers(station)
    if not isinstance(found, Blocker):
        return None
    why = found.why
    if not is_any_sdk(station.environ, station.home):
        why = (
            f"{VARIABLE} is not set, and there is no SDK in "
            f"{downloads_folder(station.environ, station.home)}"
        )
    return Blocker(
        found.what,
        "building ExecuTorch's part for QNN needs the headers of Qualcomm's SDK, which neither "
        f"its package nor its AAR has: {why}",
        found.remedy if is_any_sdk(station.environ, station.home) else how_to_get(),
    )


def sdk_option(sdk: QnnSdk | Blocker) -> Explained:
    """The cmake variable for the SDK's headers.

    It is always set: without it, ExecuTorch's CMakeLists.txt downloads an SDK itself.
    """
    if isinstance(sdk, Blocker):
        return Explained(name="QNN_SDK_ROOT", reason=f"headers of the QNN SDK: {sdk.why}")
    return Explained(
        name="QNN_SDK_ROOT",
        value=str(sdk.root),
        reason=f"headers of QNN {sdk.number}, found by {sdk.from_}",
    )
