"""ExecuTorch's cmake options, and what they require of each other.

With a checkout, its files are read (`parse_options`). Without one, `known_options` has what
releases 1.3 to 1.5 have in common, taken from their tools/cmake/preset/default.cmake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.values import ReasonedChoice

DEFAULTS_FILE = "tools/cmake/preset/default.cmake"
# A number sign inside a string does not start a comment.
_COMMENT = re.compile(r"(\"(?:[^\"\\]|\\.)*\")|#(?!\[\[)[^\n]*")
_CALL = re.compile(
    r"\b(define_overridable_option|check_required_options_on|check_conflicting_options_on)"
    r"\s*\(((?:[^()\"]|\"(?:[^\"\\]|\\.)*\")*)\)"
)
_WORD = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[^\s\"]+")
_ASKED = re.compile(r"\b(?:if|elseif|option)\s*\(\s*(?:NOT\s+)?(EXECUTORCH_[A-Z0-9_]+)(?![\w$])")


@dataclass(frozen=True)
class Relation:
    """A condition while the option `if_on` is on: the `others` must be on, or off."""

    if_on: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class OptionTable:
    """The options of one release.

    Attributes:
        names: Every option that exists.
        requires: Options that require others to be on.
        conflicts: Options that require others to be off.
        origin: Where the table comes from, for messages.
    """

    names: frozenset[str]
    requires: tuple[Relation, ...]
    conflicts: tuple[Relation, ...]
    origin: str

    def name_for(self, name: str) -> str | None:
        """This release's name for an option; None when it has no such option."""
        return next((n for n in (name, *_OLD_NAMES.get(name, ())) if n in self.names), None)


# Earlier names of options; EXECUTORCH_BUILD_KERNELS_CUSTOM was renamed in #12389.
_OLD_NAMES: dict[str, tuple[str, ...]] = {
    "EXECUTORCH_BUILD_KERNELS_LLM": ("EXECUTORCH_BUILD_KERNELS_CUSTOM",),
    "EXECUTORCH_BUILD_KERNELS_LLM_AOT": ("EXECUTORCH_BUILD_KERNELS_CUSTOM_AOT",),
}


def parse_options(text: str, origin: str, main: str = "") -> OptionTable:
    """Reads the options of a checkout from the texts of its files.

    Args:
        text: Of its default.cmake, with definitions and relations.
        origin: What it is, for messages.
        main: Of its CMakeLists.txt, which tests some switches that are defined nowhere, such as
            EXECUTORCH_BUILD_ENN.
    """
    names: set[str] = set()
    requires: list[Relation] = []
    conflicts: list[Relation] = []
    for call, words in _calls(text):
        if call == "define_overridable_option" and words:
            names.add(words[0])
        elif call == "check_required_options_on":
            requires += _relation(words, "REQUIRES")
        elif call == "check_conflicting_options_on":
            conflicts += _relation(words, "CONFLICTS_WITH")
    names |= set(_ASKED.findall(_uncommented(main)))
    return OptionTable(frozenset(names), tuple(requires), tuple(conflicts), origin)


def _calls(text: str) -> Iterator[tuple[str, list[str]]]:
    for match in _CALL.finditer(_uncommented(text)):
        yield match[1], _WORD.findall(match[2])


def _uncommented(text: str) -> str:
    return _COMMENT.sub(lambda match: match[1] or "", text)


def _relation(words: list[str], keyword: str) -> Iterator[Relation]:
    if len(words) > 3 and words[0] == "IF_ON" and words[2] == keyword:
        yield Relation(words[1], tuple(words[3:]))


def known_options(version: str) -> OptionTable:
    """The options of a release, without a checkout."""
    minor = tuple(int(part) for part in version.split(".")[:2])
    names = _COMMON | (_SINCE_1_4 if minor >= (1, 4) else frozenset())
    return OptionTable(
        names, _REQUIRES, _CONFLICTS, f"ExecuTorch {'.'.join(version.split('.')[:2])}"
    )


def _prefixed(prefix: str, names: str) -> frozenset[str]:
    return frozenset(f"EXECUTORCH_{prefix}{name}" for name in names.split())


# Options of 1.3, 1.4 and 1.5 alike that are useful in a build for a device.
_COMMON = (
    _prefixed(
        "BUILD_",
        "ARM_BAREMETAL ARM_ETHOSU_LINUX CADENCE COREML CORTEX_M CPUINFO CUDA DEVTOOLS ENN "
        "EXECUTOR_RUNNER KERNELS_CUSTOM_AOT KERNELS_LLM KERNELS_LLM_AOT KERNELS_OPTIMIZED "
        "KERNELS_QUANTIZED KERNELS_QUANTIZED_AOT KERNELS_TORCHAO METAL MLX MPS NEURON NXP_NEUTRON "
        "OPENVINO PORTABLE_OPS PTHREADPOOL PYBIND QNN SHARED SIZE_TEST TESTS TOKENIZERS_WASM VGF "
        "VULKAN WASM WEBGPU XNNPACK ANDROID_JNI",
    )
    | _prefixed(
        "BUILD_EXTENSION_",
        "APPLE ASR_RUNNER DATA_LOADER EVALUE_UTIL FLAT_TENSOR LLM LLM_APPLE LLM_RUNNER MODULE "
        "NAMED_DATA_MAP RUNNER_UTIL TENSOR TRAINING",
    )
    | _prefixed(
        "ENABLE_",
        "BUNDLE_IO DTYPE_SELECTIVE_BUILD EVENT_TRACER LOGGING PROGRAM_VERIFICATION",
    )
    | _prefixed("SELECT_OPS_", "LIST MODEL YAML")
    | _prefixed("XNNPACK_", "ENABLE_KLEIDI ENABLE_WEIGHT_CACHE SHARED_WORKSPACE")
    | _prefixed("THREADPOOL_USE_", "ALL_LOGICAL_CORES PERFORMANCE_CORES")
    | _prefixed(
        "",
        "COREML_BUILD_EXECUTOR_RUNNER FLATBUFFERS_MAX_ALIGNMENT LOG_LEVEL OPTIMIZE_SIZE "
        "PAL_DEFAULT PAL_DEFAULT_FILE_PATH USE_CPP_CODE_COVERAGE USE_DL USE_SANITIZER",
    )
)
_SINCE_1_4 = _prefixed("BUILD_", "CMSIS_NN_PYBINDS EXTENSION_IMAGE")


def _relations(texts: tuple[str, ...]) -> tuple[Relation, ...]:
    """From "A: B C" with EXECUTORCH_ left out."""
    split = (text.split(": ") for text in texts)
    return tuple(
        Relation(f"EXECUTORCH_{name}", tuple(f"EXECUTORCH_{other}" for other in others.split()))
        for name, others in split
    )


_REQUIRES = _relations(
    (
        "THREADPOOL_USE_ALL_LOGICAL_CORES: BUILD_PTHREADPOOL BUILD_CPUINFO",
        "THREADPOOL_USE_PERFORMANCE_CORES: BUILD_PTHREADPOOL BUILD_CPUINFO",
        "ENABLE_EVENT_TRACER: BUILD_DEVTOOLS",
        "BUILD_QNN: BUILD_EXTENSION_TENSOR",
        "ENABLE_BUNDLE_IO: BUILD_DEVTOOLS",
        "BUILD_EXECUTOR_RUNNER: BUILD_EXTENSION_EVALUE_UTIL BUILD_EXTENSION_RUNNER_UTIL",
        "BUILD_EXTENSION_FLAT_TENSOR: BUILD_EXTENSION_DATA_LOADER",
        "BUILD_EXTENSION_LLM_APPLE: BUILD_EXTENSION_LLM_RUNNER",
        "BUILD_EXTENSION_LLM_RUNNER: BUILD_EXTENSION_LLM",
        "BUILD_EXTENSION_MODULE: BUILD_EXTENSION_DATA_LOADER BUILD_EXTENSION_FLAT_TENSOR "
        "BUILD_EXTENSION_NAMED_DATA_MAP",
        "BUILD_EXTENSION_NAMED_DATA_MAP: BUILD_EXTENSION_DATA_LOADER",
        "BUILD_PYBIND: BUILD_EXTENSION_MODULE",
        "BUILD_KERNELS_LLM: BUILD_KERNELS_OPTIMIZED",
        "BUILD_KERNELS_LLM_AOT: BUILD_EXTENSION_TENSOR BUILD_KERNELS_LLM",
        "BUILD_EXTENSION_TRAINING: BUILD_EXTENSION_DATA_LOADER BUILD_EXTENSION_FLAT_TENSOR "
        "BUILD_EXTENSION_MODULE BUILD_EXTENSION_TENSOR",
        "BUILD_TESTS: BUILD_EXTENSION_FLAT_TENSOR",
        "ENABLE_DTYPE_SELECTIVE_BUILD: SELECT_OPS_MODEL",
        "BUILD_XNNPACK: BUILD_CPUINFO BUILD_PTHREADPOOL",
        "BUILD_WASM: BUILD_EXTENSION_MODULE BUILD_EXTENSION_TENSOR",
        "BUILD_TOKENIZERS_WASM: BUILD_EXTENSION_LLM",
        "BUILD_CUDA: BUILD_EXTENSION_TENSOR",
        "BUILD_METAL: BUILD_EXTENSION_TENSOR",
    )
)
_CONFLICTS = _relations(
    (
        "THREADPOOL_USE_PERFORMANCE_CORES: THREADPOOL_USE_ALL_LOGICAL_CORES",
        "BUILD_ARM_ETHOSU_LINUX: BUILD_ARM_BAREMETAL",
        "BUILD_ARM_BAREMETAL: BUILD_PTHREADPOOL BUILD_CPUINFO",
        "SELECT_OPS_YAML: SELECT_OPS_LIST SELECT_OPS_MODEL",
        "SELECT_OPS_LIST: SELECT_OPS_MODEL",
    )
)


BY_HAND = "recipe"
_OFF = frozenset({"", "OFF", "0", "NO", "FALSE", "N", "IGNORE", "NOTFOUND"})


def with_overrides(
    options: tuple[ReasonedChoice, ...], by_hand: Mapping[str, str | bool | int], table: OptionTable
) -> tuple[ReasonedChoice, ...]:
    """The options, with those of `runtime.cmake` replacing derived ones or added at the end."""
    forced = {
        name: ReasonedChoice(
            name=name, value=_text(value), reason=_override_reason(name, table), by_hand=True
        )
        for name, value in by_hand.items()
    }
    replaced = tuple(forced.pop(option.name, option) for option in options)
    return (*replaced, *forced.values())


def apply_relations(
    options: tuple[ReasonedChoice, ...], table: OptionTable
) -> tuple[tuple[ReasonedChoice, ...], tuple[Blocker, ...]]:
    """Turns on the options that others which are on require."""
    found = {option.name: option for option in options}
    while added := _required(found, table):
        found |= added
    blockers = (*_unmet(found, table), *_conflicts(found, table))
    return tuple(found.values()), blockers


def _required(found: Mapping[str, ReasonedChoice], table: OptionTable) -> dict[str, ReasonedChoice]:
    """What to turn on next, because an option that is on requires it."""
    return {
        other: ReasonedChoice(name=other, value="ON", reason=f"{relation.if_on} requires it")
        for relation in table.requires
        if is_on(found.get(relation.if_on))
        for other in relation.others
        if not is_on(found.get(other)) and not _is_fixed(other, found.get(other))
    }


def _is_fixed(name: str, option: ReasonedChoice | None) -> bool:
    """Set by the recipe, or an option with a value: a requirement turns on neither."""
    return (option is not None and option.by_hand) or name.startswith("EXECUTORCH_SELECT_OPS_")


def _unmet(found: Mapping[str, ReasonedChoice], table: OptionTable) -> Iterator[Blocker]:
    for relation in table.requires:
        for other in relation.others:
            if is_on(found.get(relation.if_on)) and not is_on(found.get(other)):
                yield _refused(found[relation.if_on], other)


def _conflicts(found: Mapping[str, ReasonedChoice], table: OptionTable) -> Iterator[Blocker]:
    for relation in table.conflicts:
        for other in relation.others:
            if is_on(found.get(relation.if_on)) and is_on(found.get(other)):
                yield _conflict(found[relation.if_on], found[other])


def spelled_for(
    options: tuple[ReasonedChoice, ...], table: OptionTable
) -> tuple[ReasonedChoice, ...]:
    """The options, by this release's names for them."""
    return tuple(_spelled(option, table) for option in options)


def is_on(option: ReasonedChoice | None) -> bool:
    """Whether cmake reads the value as true: anything but its words for false."""
    if option is None or option.value is None:
        return False
    value = option.value.upper()
    return value not in _OFF and not value.endswith("-NOTFOUND")


def _spelled(option: ReasonedChoice, table: OptionTable) -> ReasonedChoice:
    if not option.name.startswith("EXECUTORCH_") or option.by_hand:
        return option
    name = table.name_for(option.name)
    if name is None:
        raise BuildError(
            f"etdeploy derived the option {option.name} because {option.reason}, and "
            f"{table.origin} has no such option",
            remedy="This is a bug in etdeploy, or a release of ExecuTorch that it does not support "
            "(1.3 to 1.5 are).\nUse another checkout: "
            "--set runtime.source=/path/to/executorch",
        )
    if name == option.name:
        return option
    reason = f"{option.reason}; {table.origin} calls {option.name} this"
    return option.model_copy(update={"name": name, "reason": reason})


def _text(value: str | bool | int) -> str:
    return (
        value
        if isinstance(value, str)
        else str(value).replace("True", "ON").replace("False", "OFF")
    )


def _override_reason(name: str, table: OptionTable) -> str:
    if not name.startswith("EXECUTORCH_") or name in table.names:
        return BY_HAND
    near = get_close_matches(name, table.names, n=1, cutoff=0.8)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{BY_HAND}, though {table.origin} has no option of that name{meant}"


def _refused(option: ReasonedChoice, other: str) -> Blocker:
    return Blocker(
        what=other,
        why=f"{option.name} is on ({option.reason}) and requires {other}, which is not",
        remedy=f"In runtime.cmake, set {other} or remove {option.name}.",
    )


def _conflict(one: ReasonedChoice, other: ReasonedChoice) -> Blocker:
    by_hand = [o.name for o in (one, other) if o.by_hand]
    remedy = (
        f"Remove {by_hand[0]} from runtime.cmake."
        if by_hand
        else "Change the recipe so that only one of them is derived."
    )
    return Blocker(
        what=f"{one.name} and {other.name}",
        why=f"{one.name} ({one.reason}) and {other.name} ({other.reason}) exclude each other",
        remedy=remedy,
    )
