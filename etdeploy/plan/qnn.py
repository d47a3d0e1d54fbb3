"""Running QNN programs: which phone, which SDK and which of Qualcomm's libraries fit together.

The rules are pure: they take what a phone, an SDK and a program say of themselves. What goes to a
phone is what ExecuTorch's backends/qualcomm/export_utils.py pushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etdeploy.core.errors import BuildError
from etdeploy.core.values import Explained
from etdeploy.deploy.extras import ExtraFile, Extras
from etdeploy.plan.model import Obstacle
from etdeploy.program.model import CompiledFor
from etdeploy.targets.android import QUALCOMM_SOCS, soc_name, soc_of
from etdeploy.targets.missing import Missing
from etdeploy.targets.qnn_libraries import absent_libraries, required_libraries, too_old
from etdeploy.targets.qnn_sdk import QnnSdk, how_to_get
from etdeploy.targets.qnn_versions import short_version, version_numbers

_OTHER_BACKEND = "Lower to another backend: --set export.backend=xnnpack"
# fastrpc does not split ADSP_LIBRARY_PATH at ':' (qualcomm/fastrpc 379), so one folder has all. The
# runner needs LD_LIBRARY_PATH although its libraries lie beside it: $ORIGIN in its run path is
# where its symbolic link leads.
_FOLDER_VARIABLES = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH")


def soc_obstacle(wanted: str | None, device: str, reported: str | None) -> Obstacle | None:
    """What keeps a program for the recipe's SoC from running on a device; None when nothing does.

    Args:
        wanted: `export.soc` of the recipe; None stands for `auto`.
        device: Its name, as the command line takes it.
        reported: The SoC that it says it has; None where it does not say.
    """
    has = soc_name(reported, None)
    if has is None:
        return None if _named(wanted) else _says_nothing(device)
    if has not in QUALCOMM_SOCS:
        return Obstacle(
            what=f"SoC {has}",
            why=f"{device} says that its SoC is {has}, which QNN does not compile for: it is none "
            "of Qualcomm's, or one that ExecuTorch does not know",
            remedy=_OTHER_BACKEND,
        )
    if not _named(wanted) or soc_name(wanted, None) == has:
        return None
    return Obstacle(
        what=f"SoC {wanted}",
        why=f"export.soc is {wanted}, and {device} has {has}: a QNN program runs on the SoC that "
        "it was compiled for, and on no other",
        remedy=f"--set export.soc={has}   or let it be asked: --set export.soc=auto",
    )


def program_obstacles(
    compiled: Iterable[CompiledFor], device: str, reported: str | None
) -> Iterator[Obstacle]:
    """What keeps a compiled program from running on a device.

    Nothing where the device does not say which SoC it has.

    Args:
        compiled: What the program says (`Program.compiled_for`).
        device: Its name.
        reported: The SoC that it says it has.
    """
    has = QUALCOMM_SOCS.get(soc_name(reported, None) or "")
    for number in sorted({c.soc_id for c in compiled}) if has else ():
        if has and number != has.qnn_id:
            soc = soc_of(number)
            name = f"{soc.name} (HTP {soc.htp_arch})" if soc else f"QNN's SoC number {number}"
            yield Obstacle(
                what="the program's SoC",
                why=f"the program was compiled for {name}, and {device} has {has.name} (HTP "
                f"{has.htp_arch}): a QNN program runs on the SoC that it was compiled for",
                remedy=f"Export the model for this phone: --set export.backend=qnn --set "
                f"export.soc={has.name}\nor name a device that has "
                f"{soc.name if soc else 'that SoC'}: etdeploy devices",
            )


def sdk_obstacles(
    sdk: QnnSdk | Missing, soc: str, compiled_with: str | None = None
) -> Iterator[Obstacle]:
    """What is wrong with an SDK for a phone and a program.

    Args:
        sdk: As `find_sdk` found it.
        soc: The phone's, or the recipe's.
        compiled_with: Version of the SDK that compiled the program; None where it is not known, or
            where there is no program yet.
    """
    if isinstance(sdk, Missing):
        yield Obstacle(what=sdk.what, why=sdk.why, remedy=sdk.remedy)
        return
    facts = QUALCOMM_SOCS.get(soc)
    if facts is None:
        yield Obstacle(
            what=f"SoC {soc}",
            why=f"QNN does not compile for {soc}, as far as ExecuTorch knows",
            remedy=f"Name one of: {', '.join(QUALCOMM_SOCS)}",
        )
        return
    problem = too_old(sdk, facts) or absent_libraries(sdk, facts)
    if problem:
        yield Obstacle(what=problem.what, why=problem.why, remedy=problem.remedy)
    if compiled_with and version_numbers(sdk.version) < version_numbers(compiled_with):
        wanted = short_version(compiled_with)
        yield Obstacle(
            what=f"QNN {wanted}",
            why=f"the program was compiled with QNN {wanted}, and the SDK in {sdk.root}, whose "
            f"libraries go to the phone, is {sdk.number}: an older QNN cannot load what a "
            "newer one compiled",
            remedy=f"{how_to_get(wanted)}\nor export the program again with the older one",
        )


def qnn_extras(sdk: QnnSdk | Missing, soc: str, compiled_with: str | None = None) -> Extras:
    """What goes into the bundle of a QNN program.

    Args:
        sdk: As `find_sdk` found it.
        soc: The phone's.
        compiled_with: Version of the SDK that compiled the program, where it is known.

    Raises:
        BuildError: There is no SDK, or it does not fit the phone or the program.
    """
    if isinstance(sdk, Missing):
        raise BuildError(f"a QNN program needs {sdk.what}: {sdk.why}", remedy=sdk.remedy)
    for obstacle in sdk_obstacles(sdk, soc, compiled_with):
        raise BuildError(obstacle.why, remedy=obstacle.remedy)
    libraries = required_libraries(sdk, QUALCOMM_SOCS[soc])
    return Extras(
        files=tuple(ExtraFile(source=str(path), name=path.name) for path in libraries),
        folder_variables=_FOLDER_VARIABLES,
    )


def sdk_option(sdk: QnnSdk | Missing) -> Explained:
    """The cmake variable for the SDK's headers.

    It is always given: without it, ExecuTorch's CMakeLists.txt downloads an SDK of its own choice.
    """
    if isinstance(sdk, Missing):
        return Explained(name="QNN_SDK_ROOT", reason=f"headers of the QNN SDK: {sdk.why}")
    return Explained(
        name="QNN_SDK_ROOT",
        value=str(sdk.root),
        reason=f"headers of QNN {sdk.number}, found by {sdk.from_}",
    )


def compiled_version(compiled: Iterable[CompiledFor], noted: str | None) -> str | None:
    """The version of the SDK that compiled a program; the newest where partitions differ.

    Args:
        compiled: What the program says.
        noted: What the export noted (`Provenance.versions["qnn"]`).
    """
    shown = [c.sdk_version for c in compiled if c.sdk_version]
    return noted or max(shown, key=version_numbers, default=None)


def _named(wanted: str | None) -> bool:
    return wanted not in (None, "auto")


def _says_nothing(device: str) -> Obstacle:
    return Obstacle(
        what="SoC",
        why=f"a QNN program is compiled for one SoC, and {device} does not say which it has",
        remedy="Name it: --set export.soc=SM8650   (for one that is not Qualcomm's: "
        "--set export.backend=xnnpack)",
    )
