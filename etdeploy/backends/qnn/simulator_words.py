"""What Qualcomm's simulator and ExecuTorch's QNN backend log on this machine, and what it means.

Each line was seen with ExecuTorch 1.5.1 and QNN 2.49.40, or with an older or newer QNN in its
place: a folder without a library, a damaged one, a damaged program.
"""

from __future__ import annotations

from etdeploy.backends.causes import NEW_FILE, Cause, Word, first_cause
from etdeploy.backends.qnn.kits.package import get_package
from etdeploy.backends.qnn.kits.sdk import VARIABLE
from etdeploy.backends.qnn.words import SHARED_WEIGHTS

_UNREADABLE = Cause(
    "the simulator cannot load the program (QNN error {code}): a newer QNN compiled it, or the "
    "file is damaged",
    "See what compiled it: etdeploy inspect PROGRAM.pte\n"
    "and what simulates here: etdeploy doctor\n"
    "Export it again: etdeploy clean programs",
    "See what compiled it: etdeploy inspect PROGRAM.pte\n"
    "and what simulates here: etdeploy doctor\n"
    f"Copy the file again, or export the model again with that QNN, {NEW_FILE}.",
)
# The first pattern that matches is nearest to the cause.
_WORDS: tuple[Word, ...] = (
    SHARED_WEIGHTS,
    (r"Cannot Open QNN library (?P<name>[^\s,]+), with error: (?P<why>.+)", Cause(
        "Qualcomm's {name}, which simulates the HTP, could not be loaded: {why}",
        "See what is wrong with it: etdeploy doctor")),
    (r"Failed to interpret QNN context binary\. Error code (?P<code>\d+)", _UNREADABLE),
    (r"Can't create context from binary\. Error (?P<code>\d+)", _UNREADABLE),
)  # fmt: skip
_CONFIGURATION = r"(?:unknown custom config|error[=:] ?14001|failed: 14001)"


def simulator_cause(text: str) -> Cause | None:
    """What lines in a runner's log on this machine mean; None where none is known."""
    return first_cause(text, (*_WORDS, (_CONFIGURATION, _other_release())))


def _other_release() -> Cause:
    """The delegate is built with the headers of one QNN; the layout of this differs in others."""
    return Cause(
        "QNN rejects the configuration of its device (error 14001): the QNN that simulates is of "
        "another release than ExecuTorch's delegate works with",
        f"Use the release that works:\nunset {VARIABLE}\n{get_package()}",
    )
