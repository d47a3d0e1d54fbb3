"""What a program requires of the runtime or, before the export, what the recipe suggests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from etdeploy.backends.registry import backend_named
from etdeploy.core.errors import Blocker
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.components import (
    ETDUMP,
    KERNELS_ETDEPLOY,
    KERNELS_LLM,
    KERNELS_OPTIMIZED,
    KERNELS_QUANTIZED,
    RUNTIME,
    STAND_INS,
    backend_component,
    operator_component,
)
from etdeploy.program.generation import attention_of, layout_for
from etdeploy.program.model import Method, Program
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.sections.export import ExportGeneration
from etdeploy.targets import ndk, platforms
from etdeploy.targets.platforms import ANDROID_ABIS, Target

_NAMES_SHOWN = 4
_BITS = {"8w": 8, "4w": 4}
_STAND_IN = "the wheel has no kernels_llm, and etdeploy's kernels have these operators, too"
_EVERY_RUNNER = "every runner loads programs with it"


@dataclass(frozen=True)
class Requirements:
    """What has to be linked, and why.

    Attributes:
        reasons: By component; operators of aten count as `kernels_optimized`.
        delegate_ids: The backends of the program, or the one that the recipe requests.
        operators: Of the program, outside its delegates, with their data types; None if only the
            recipe is known.
        unknown: Operators that no component has, by namespace.
        finished: Whether the program was given as a file, so that no recipe can change it.
        selectable: Whether all operators are of one program, from which a build can select them.
    """

    reasons: dict[str, str]
    delegate_ids: tuple[str, ...]
    operators: dict[str, frozenset[str]] | None = None
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    finished: bool = False
    selectable: bool = True


def derive_requirements(
    recipe: Recipe, program: Program | None, draft: Program | None = None
) -> Requirements:
    """From the program if there is one; the recipe only says what is wanted.

    With those of a draft, which the same runner loads.
    """
    requirements = _of_program(program) if program else _of_recipe(recipe)
    if draft:
        requirements = _joined(requirements, _of_program(draft))
    if recipe.benchmark.profile:
        requirements.reasons[ETDUMP] = "benchmark.profile is on: the profile pass records an ETDump"
    return replace(requirements, finished=recipe.model.program is not None)


def _of_program(program: Program) -> Requirements:
    sentences: dict[str, list[str]] = {}
    for method in program.methods:
        for component, sentence in _method_requirements(method):
            sentences.setdefault(component, []).append(sentence)
    own = sentences.pop(RUNTIME, [])
    reasons = {name: "; ".join(texts) for name, texts in sentences.items()}
    return Requirements(
        {RUNTIME: "; ".join([_EVERY_RUNNER, *own])} | reasons,
        program.backend_ids,
        _operators(program),
        _unknown_operators(program),
    )


def _joined(own: Requirements, draft: Requirements) -> Requirements:
    """What a program and its draft require."""
    more = {name: f"the draft: {why}" for name, why in draft.reasons.items()}
    operators, selectable = own.operators, True
    if operators is not None:
        drafted = draft.operators or {}
        selectable = all(
            name in operators and dtypes <= operators[name] for name, dtypes in drafted.items()
        )
        both = {**operators, **drafted}
        operators = {
            name: operators.get(name, frozenset()) | drafted.get(name, frozenset()) for name in both
        }
    unknown = {
        namespace: tuple(
            dict.fromkeys((*own.unknown.get(namespace, ()), *draft.unknown.get(namespace, ())))
        )
        for namespace in sorted({*own.unknown, *draft.unknown})
    }
    return replace(
        own,
        reasons={**more, **own.reasons},
        delegate_ids=tuple(dict.fromkeys((*own.delegate_ids, *draft.delegate_ids))),
        operators=operators,
        unknown=unknown,
        selectable=selectable,
    )


def _method_requirements(method: Method) -> Iterator[tuple[str, str]]:
    """Pairs of a component and why the method requires it."""
    for backend_id in sorted({d.backend_id for d in method.delegates}):
        component = backend_component(backend_id)
        if component:
            number = sum(d.backend_id == backend_id for d in method.delegates)
            yield (
                component,
                f"method {method.name} delegates {count(number, 'partition')} to {backend_id}",
            )
    by_component: dict[str, list[str]] = {}
    for operator in method.operators:
        component = operator_component(operator.name)
        if component:
            by_component.setdefault(component, []).append(operator.name)
    for component, names in sorted(by_component.items()):
        kind = "primitive operator" if component == RUNTIME else "operator"
        yield (
            component,
            f"method {method.name} calls {count(len(names), kind)} outside the delegates: "
            f"{some(names)}",
        )


def _operators(program: Program) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for method in program.methods:
        for operator in method.operators:
            found[operator.name] = found.get(operator.name, frozenset()) | set(operator.dtypes)
    return found


def _unknown_operators(program: Program) -> dict[str, tuple[str, ...]]:
    by_namespace: dict[str, list[str]] = {}
    for name in program.operators:
        if operator_component(name) is None:
            by_namespace.setdefault(name.split("::", 1)[0], []).append(name)
    return {namespace: tuple(names) for namespace, names in sorted(by_namespace.items())}


def _of_recipe(recipe: Recipe) -> Requirements:
    """What a program of this recipe will probably require."""
    reasons = {RUNTIME: _EVERY_RUNNER}
    if recipe.model.program:
        reasons[RUNTIME] += f"; more is known once {recipe.model.program} has been inspected"
        return Requirements(reasons, ())
    export = recipe.export
    delegate_id = backend_named(export.backend).delegate_id
    component = backend_component(delegate_id) if delegate_id else None
    if component:
        reasons[component] = f"export.backend is {export.backend}; nothing is exported yet"
    reasons[KERNELS_OPTIMIZED] = (
        f"operators that {export.backend} does not support may remain; nothing is exported yet"
        if delegate_id
        else f"export.backend is {export.backend}; nothing is exported yet"
    )
    if export.quantization.startswith("int8"):
        reasons[KERNELS_QUANTIZED] = (
            f"export.quantization {export.quantization} may leave quantize and dequantize "
            "operators outside the delegates; nothing is exported yet"
        )
    elif recipe.embeddings:
        reasons[KERNELS_QUANTIZED] = (
            f"embeddings in {_BITS[recipe.embeddings]} bits are looked up outside the delegates; "
            "nothing is exported yet"
        )
    attention = attention_of(recipe)
    if attention and attention[0] == "kernel":
        asked = recipe.export.generation or ExportGeneration()
        kernels = KERNELS_LLM if layout_for(asked) == "executorch" else KERNELS_ETDEPLOY
        reasons[kernels] = f"it has the attention: {attention[1]}; nothing is exported yet"
    return Requirements(reasons, (delegate_id,) if delegate_id else ())


def with_stand_ins(requirements: Requirements, shipped: frozenset[str]) -> Requirements:
    """With etdeploy's kernels in place of ExecuTorch's for language models, where these are absent.

    They have the operators of the usual programs, and the wheel has none.
    """
    why = requirements.reasons.get(KERNELS_LLM)
    if why is None or KERNELS_LLM in shipped:
        return requirements
    for name, dtypes in (requirements.operators or {}).items():
        own = name in STAND_INS and dtypes <= STAND_INS[name]
        if operator_component(name) == KERNELS_LLM and not own:
            return requirements
    reasons = {name: text for name, text in requirements.reasons.items() if name != KERNELS_LLM}
    both = filter(None, (reasons.get(KERNELS_ETDEPLOY), f"{why}; {_STAND_IN}"))
    return replace(requirements, reasons={**reasons, KERNELS_ETDEPLOY: "; ".join(both)})


def count(number: int, noun: str) -> str:
    """`1 operator`, `2 operators`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


MUSL = "linux-aarch64-musl"
_ABI = {target: abi for abi, target in ANDROID_ABIS.items()}


def plan_toolchain(target: Target, host: Target) -> ReasonedChoice | None:
    """The toolchain file, in terms that hold on every machine; None for a native build."""
    if target.system == "android":
        value = f"<NDK>/{ndk.TOOLCHAIN_FILE}"
        reason = "the NDK's own toolchain file"
    elif target.system in ("ios", "macos"):
        value = f"<checkout>/{platforms.APPLE_TOOLCHAIN_FILE}"
        reason = "ExecuTorch builds for Apple's systems with ios-cmake, a part of the checkout"
    elif target.name == host.name or target.toolchain is None:
        return None
    else:
        value = target.toolchain
        with_ = "zig (PyPI: ziglang)" if target.name == MUSL else target.compiler
        reason = f"{host.name} builds for {target.name} with {with_}"
    return ReasonedChoice(name="toolchain", value=value, reason=reason)


def plan_definitions(target: Target, android_api: int) -> tuple[ReasonedChoice, ...]:
    """The definitions that the toolchain file reads; they depend on the target alone."""
    if target.system == "android":
        return ndk.android_definitions(_ABI[target.name], android_api)
    if target.system in ("ios", "macos"):
        return platforms.apple_definitions(target.name)
    return ()


def host_blocker(target: Target, host: Target) -> Blocker | None:
    """Why such a host can never build for the target, whatever is installed; None if it can."""
    if target.system in ("ios", "macos") and host.system != "macos":
        return Blocker(
            what=f"target {target.name}",
            why=f"{target.name} cannot be built on {host.name}: Apple's compiler and SDK exist on "
            "Macs only",
            remedy="Run etdeploy on a Mac.",
        )
    if target.system == "android" and (host.system, host.arch) == ("linux", "aarch64"):
        return Blocker(
            what=f"target {target.name}",
            why="Google publishes no NDK whose compiler runs on 64-bit Arm Linux",
            remedy="Run etdeploy on x86_64 or a Mac, or use the static runner, which also runs on "
            f"Android: --target {MUSL}",
        )
    return None
