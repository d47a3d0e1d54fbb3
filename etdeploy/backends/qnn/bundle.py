"""Which QNN SDK fits a phone and a program, and which of Qualcomm's libraries are deployed.

They are those that ExecuTorch's backends/qualcomm/export_utils.py pushes.
"""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.payload import CompiledFor
from etdeploy.backends.qnn.kits.libraries import absent_libraries, required_libraries, too_old
from etdeploy.backends.qnn.kits.sdk import QnnSdk, find_sdk, how_to_get
from etdeploy.backends.qnn.phone import compiled_version
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS
from etdeploy.backends.qnn.versions import short_version, version_numbers
from etdeploy.backends.values import ExtraFile, Extras, Partitions, Workstation
from etdeploy.core.blocker import Blocker
from etdeploy.core.errors import BuildError

# fastrpc does not split ADSP_LIBRARY_PATH at ':' (qualcomm/fastrpc 379), so one folder has all. The
# runner needs LD_LIBRARY_PATH although its libraries are beside it: $ORIGIN in its run path is the
# folder that its symbolic link leads to.
_FOLDER_VARIABLES = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH")


def sdk_blockers(
    sdk: QnnSdk | Blocker, soc: str, compiled_with: str | None = None
) -> Iterator[Blocker]:
    """What is wrong with an SDK for a phone and a program.

    Args:
        sdk: The result of `find_sdk`.
        soc: The phone's, or the recipe's.
        compiled_with: Version of the SDK that compiled the program; None if it is unknown, or if
            there is no program yet.
    """
    if isinstance(sdk, Blocker):
        yield sdk
        return
    facts = QUALCOMM_SOCS.get(soc)
    if facts is None:
        yield Blocker(
            what=f"SoC {soc}",
            why=f"QNN does not compile for {soc}, as far as ExecuTorch knows",
            remedy=f"Name one of: {', '.join(QUALCOMM_SOCS)}",
        )
        return
    problem = too_old(sdk.version, str(sdk.root), facts) or absent_libraries(sdk, facts)
    if problem:
        yield problem
    if compiled_with and version_numbers(sdk.version) < version_numbers(compiled_with):
        wanted = short_version(compiled_with)
        yield Blocker(
            what=f"QNN {wanted}",
            why=f"the program was compiled with QNN {wanted}, and the SDK in {sdk.root}, whose "
            f"libraries go to the phone, is {sdk.number}: an older QNN cannot load what a "
            "newer one compiled",
            remedy=f"{how_to_get(wanted)}\nor export the program again with the older one",
        )


def qnn_extras(sdk: QnnSdk | Blocker, soc: str, compiled_with: str | None = None) -> Extras:
    """The additional files in the bundle of a QNN program.

    Args:
        sdk: The result of `find_sdk`.
        soc: The phone's.
        compiled_with: Version of the SDK that compiled the program, if it is known.

    Raises:
        BuildError: There is no SDK, or it does not fit the phone or the program.
    """
    if isinstance(sdk, Blocker):
        raise BuildError(f"a QNN program needs {sdk.what}: {sdk.why}", remedy=sdk.remedy)
    for blocker in sdk_blockers(sdk, soc, compiled_with):
        raise BuildError(blocker.why, remedy=blocker.remedy)
    libraries = required_libraries(sdk, QUALCOMM_SOCS[soc])
    return Extras(
        files=tuple(ExtraFile(source=str(path), name=path.name) for path in libraries),
        folder_variables=_FOLDER_VARIABLES,
    )


def missing_sdk(station: Workstation, soc: str | None, partitions: Partitions) -> Iterator[Blocker]:
    """What a build and a bundle with QNN need and the QNN SDK here does not provide.

    Args:
        station: This machine.
        soc: The recipe's or the phone's; None where only the program may know.
        partitions: Of the program.
    """
    sdk, compiled = find_sdk(station.environ, station.home), partitions.compiled
    known = soc or _soc_of(compiled)
    if isinstance(sdk, Blocker):
        yield sdk
    elif known:
        yield from sdk_blockers(sdk, known, compiled_version(compiled, None))


def program_extras(station: Workstation, soc: str | None, partitions: Partitions) -> Extras:
    """Qualcomm's libraries for the bundle of a program.

    Args:
        station: This machine.
        soc: The phone's; None if it does not report it.
        partitions: Of the program; nothing is deployed if it does not say what it is for.

    Raises:
        BuildError: The SDK is missing, too old, or older than the one that compiled the program.
    """
    compiled = partitions.compiled
    if not compiled:
        return Extras()
    return qnn_extras(
        find_sdk(station.environ, station.home),
        soc or _soc_of(compiled) or "",
        compiled_version(compiled, partitions.versions.get("qnn")),
    )


def _soc_of(compiled: tuple[CompiledFor, ...]) -> str | None:
    if not compiled:
        return None
    return compiled[0].soc or f"number {compiled[0].soc_id}"
