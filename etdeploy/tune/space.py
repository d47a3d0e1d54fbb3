"""What a search varies: knobs derived from the recipe and the backends' tables, and the grid."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from etdeploy.backends.registry import exporting_names, find_backend
from etdeploy.backends.rewrites import AUTO, LINEARS, NONE
from etdeploy.backends.schemes import (
    EIGHT_BITS,
    EMBEDDINGS_BESIDE,
    GPTQ,
    GROUPED_EMBEDDINGS,
    GROUPED_SCHEMES,
    NEAREST,
    QUANTIZATIONS,
    SEARCHED_SCHEMES,
    STATIC_SCHEMES,
)
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.values import StrEnum, Value, cached_property
from etdeploy.export.derive import rewrites_of
from etdeploy.recipe.document import parse_value
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.tasks import has_encoder
from etdeploy.targets.platforms import Target
from etdeploy.tune.metrics import PEAK_MEMORY, PERPLEXITY, SIZE, TTFT
from etdeploy.tune.search import NOT_APPLICABLE, Point

BACKEND, SCHEME, GROUPS = "export.backend", "export.quantization", "export.group_size"
REWRITES, OVERRIDES, ROUNDING = "export.rewrites", "export.overrides", "export.rounding"
TARGET_BITS = "export.target_bits"
EMBEDDINGS = "export.embeddings"
ATTENTION, CACHE = "export.generation.attention", "export.generation.cache"
PREFILL, THREADS = "export.generation.prefill_tokens", "runtime.threads"
# Keys that change how a runner is started, and neither the program nor the runner.
RUN_KEYS = (THREADS,)
# Of which sections any key can be varied: the others say what the model is, and what is measured.
_SECTIONS = ("export", "runtime")
_FURTHER = ("benchmark.generation.speculation",)
# By PT2E, which quantizes a graph of all layers.
_INT8_DYNAMIC = "int8_dynamic"
_MOST_CANDIDATES = 3000
# From so many positions on, `attention: auto` is the kernel.
_KERNEL_FROM = 512
# On SmolLM2-135M-Instruct, 0.76 and 0.63 times the KL divergence of the default's 4.61.
_MORE_BITS = (5, 5.5)


class KnobCost(StrEnum):
    """What another value of a knob takes."""

    EXPORT = "an export"
    RUN = "a measurement"


class Knob(Value):
    """A key of the recipe with the values that are tried.

    Attributes:
        key: Its dotted name.
        values: That of the recipe first.
        cost: What another value takes.
        reason: Why it is varied, as a clause.
    """

    key: str
    values: tuple[Any, ...]
    cost: KnobCost
    reason: str


class LeftOut(Value):
    """A key, or a value of one, that is not tried, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class Combination:
    """A combination of settings.

    Attributes:
        changes: What differs from the recipe, in the order of the knobs; None for the default.
        features: The value of each knob as text; NOT_APPLICABLE where the knob does not apply.
        program: Of its changes those that need another export or build, as JSON.
    """

    changes: tuple[tuple[str, Any], ...]
    features: tuple[str, ...]
    program: str

    @property
    def key(self) -> str:
        """Identifies it in the journal, whatever else is varied."""
        return canonical(dict(self.changes))

    @property
    def label(self) -> str:
        """The changes in short: `quantization=int8_static, threads=2`."""
        parts = [f"{key.rpartition('.')[2]}={_plain(value)}" for key, value in self.changes]
        return ", ".join(parts) or "the recipe as it is"


@dataclass(frozen=True)
class Space:
    """Everything that is tried.

    Attributes:
        knobs: Those with more than one value.
        left_out: What is not tried.
        candidates: All combinations that are valid recipes, the recipe as it is first.
    """

    knobs: tuple[Knob, ...]
    left_out: tuple[LeftOut, ...]
    candidates: tuple[Combination, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """The candidates as the search sees them."""
        return tuple(Point(c.features, c.program) for c in self.candidates)

    @property
    def programs(self) -> int:
        """How many exports the whole grid would take."""
        return len({candidate.program for candidate in self.candidates})


@dataclass(frozen=True)
class TuneSubject:
    """What the space is derived from.

    Attributes:
        recipe: As it is.
        target: What the runner is for.
        cores: Numbers of threads that are worth trying: those of clusters of cores and their sums.
        metrics: Names of the objective and of the limits.
        fixed: Keys that stay, each with the reason.
        varied: Further knobs, or other values for one.
        unusable: Backends that cannot run there, each with the reason.
        layers: The first and the last layer with weights; empty while they are not known.
    """

    recipe: Recipe
    target: Target
    cores: tuple[int, ...]
    metrics: frozenset[str]
    fixed: Mapping[str, str]
    varied: Mapping[str, tuple[Any, ...]]
    unusable: Mapping[str, str]
    layers: tuple[str, ...] = ()

    @cached_property
    def values(self) -> dict[str, Any]:
        """All values of the recipe."""
        return self.recipe.model_dump(mode="json")

    @cached_property
    def given(self) -> dict[str, Any]:
        """Those that are not defaults."""
        return self.recipe.model_dump(mode="json", exclude_unset=True)

    def value(self, key: str) -> Any:
        """What the recipe has for a key, or the default."""
        return _find(self.values, key)


def _find(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def parse_varied(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The values of `--vary KEY=A,B`; raises UsageError for another form or key."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        require_key(key, "--vary")
        parsed = parse_value(f"[{values}]", f"--vary {key}") if equals else []
        if not parsed:
            raise UsageError(
                f"{text!r} names no values",
                place="--vary",
                remedy="Write it as in: --vary export.group_size=32,64",
            )
        found[key] = tuple(parsed)
    return found


def require_key(key: str, option: str) -> None:
    """Raise UsageError unless the key can be varied or fixed."""
    section, _, rest = key.partition(".")
    if (section in _SECTIONS and rest) or key in _FURTHER:
        return
    raise UsageError(
        f"{key!r} is not a key that can be varied",
        place=option,
        remedy="Name a key of the sections export and runtime, for example "
        f"{SCHEME}, {REWRITES} or {THREADS}. Other keys say what the model is, and what is "
        "measured.",
    )


def derive_space(subject: TuneSubject) -> Space:
    """The knobs that apply, the values that each has, and all valid combinations.

    Raises:
        UsageError: A value of --vary is in no valid combination, or there are too many.
    """
    knobs, left_out = [], []
    for found in _offered(subject):
        if found.key in subject.fixed:
            left_out.append(LeftOut(key=found.key, reason=subject.fixed[found.key]))
        elif isinstance(found, LeftOut):
            left_out.append(found)
        elif len(found.values) > 1:
            knobs.append(found)
        else:
            left_out.append(LeftOut(key=found.key, reason="there is one value only"))
    candidates, invalid = _grid(subject, knobs)
    left_out += [LeftOut(key="combinations", reason=reason) for reason in invalid]
    return Space(tuple(knobs), tuple(left_out), candidates)


def _offered(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    """Every knob with its values, and what is left out before that."""
    if subject.recipe.model.program or subject.recipe.export.llm_config:
        makers: tuple[Callable[[TuneSubject], Iterator[Knob | LeftOut]], ...] = (_threads,)
        yield LeftOut(key="export", reason="the program is finished, or ExecuTorch exports it")
    else:
        makers = (_backends, _schemes, _parts, _rewrites, _generation, _threads)
    own = [each for make in makers for each in make(subject)]
    for each in own:
        if isinstance(each, Knob) and each.key in subject.varied:
            yield _varied(subject, each.key)
        else:
            yield each
    known = [each.key for each in own if isinstance(each, Knob)]
    yield from (_varied(subject, key) for key in subject.varied if key not in known)


def _varied(subject: TuneSubject, key: str) -> Knob:
    values = subject.varied[key]
    return _knob(subject, key, values, "requested with --vary")


def _knob(subject: TuneSubject, key: str, values: Sequence[Any], reason: str) -> Knob:
    """The knob with the recipe's own value first."""
    own = subject.value(key)
    distinct = {canonical(value): value for value in (own, *values)}
    cost = KnobCost.RUN if key in RUN_KEYS else KnobCost.EXPORT
    return Knob(key=key, values=tuple(distinct.values()), cost=cost, reason=reason)


def _backends(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    own = subject.recipe.export.backend
    values = []
    for name in exporting_names():
        backend = find_backend(name)
        if backend is None or name == own:
            continue
        if reason := _why_not(subject, name):
            yield LeftOut(key=f"{BACKEND}={name}", reason=reason)
        else:
            values.append(name)
    yield _knob(subject, BACKEND, values, "each computes with other kernels")


def _why_not(subject: TuneSubject, name: str) -> str:
    backend = find_backend(name)
    if backend is None:
        return "there is no such backend"
    if not backend.runs_on(subject.target):
        return f"it runs on {backend.where}, and the target is {subject.target.name}"
    if backend.delegate_id is None:
        return "it delegates nothing, and is for reference"
    return subject.unusable.get(name, "")


def _schemes(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    names = [subject.recipe.export.backend]
    if BACKEND in subject.varied:
        names += subject.varied[BACKEND]
    elif BACKEND not in subject.fixed:
        names += [name for name in exporting_names() if not _why_not(subject, name)]
    offered = {scheme for name in names if (b := find_backend(name)) for scheme in b.quantizations}
    values = [scheme for scheme in QUANTIZATIONS if scheme in offered]
    redundant = subject.recipe.is_language_model and {EIGHT_BITS, _INT8_DYNAMIC} <= offered
    named = SCHEME in subject.fixed.keys() | subject.varied.keys()
    if redundant and not named and subject.value(SCHEME) != _INT8_DYNAMIC:
        values.remove(_INT8_DYNAMIC)
        reason = f"{EIGHT_BITS} runs the same kernels, and takes less time to export"
        yield LeftOut(key=f"{SCHEME}={_INT8_DYNAMIC}", reason=reason)
    if PERPLEXITY in subject.metrics:  # a token takes as long as its weights take to be read
        values.sort(key=lambda scheme: scheme == "none")
    yield _knob(subject, SCHEME, values, "fewer bits are faster and smaller, and less exact")
    if offered & {*GROUPED_SCHEMES}:
        yield _knob(subject, GROUPS, (32, 64, 128), "larger groups are smaller, and less exact")
    if PERPLEXITY in subject.metrics and offered & {*SEARCHED_SCHEMES}:
        reason = "it lowers the perplexity at the same speed"
        yield _knob(subject, ROUNDING, (NEAREST, GPTQ), reason)
        reason = "it lowers the perplexity for less size than 8 bits in all layers"
        yield _knob(subject, TARGET_BITS, (None, *_MORE_BITS), reason)


def _parts(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    """Schemes of single layers: those at the ends are the most sensitive ones."""
    if subject.value(OVERRIDES):
        yield LeftOut(key=OVERRIDES, reason="the recipe has its own")
    elif subject.recipe.is_language_model:
        yield LeftOut(key=OVERRIDES, reason=f"{TARGET_BITS} chooses the layers with 8 bits")
    elif subject.layers:
        first, last = subject.layers[0], subject.layers[-1]
        own_layers = [{last: "none"}, {first: "none", last: "none"}]
        reason = "the first and the last layer lose most in few bits"
        yield _knob(subject, OVERRIDES, ({}, *own_layers[: len(set(subject.layers))]), reason)
    else:
        yield LeftOut(key=OVERRIDES, reason="the layers are known after the first profile")


def _rewrites(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    recipe = subject.recipe
    if recipe.is_language_model and not has_encoder(recipe.model.task):
        left = rewrites_of(recipe, subject.target.arch).left_out.get(LINEARS)
        if left:
            yield LeftOut(key=REWRITES, reason=f"only {LINEARS} is for such a model, and {left}")
            return
    more = ([AUTO, LINEARS],) if _may_name_linears(subject) else ()
    reason = "a rewrite may be slower on some processors"
    yield _knob(subject, REWRITES, (AUTO, NONE, *more), reason)


def _may_name_linears(subject: TuneSubject) -> bool:
    """Whether naming the rewrite gives another program than the default, with a scheme for it."""
    export = subject.recipe.export.model_copy(update={"rewrites": (AUTO, LINEARS)})
    named = subject.recipe.model_copy(update={"export": export})
    fits = LINEARS in rewrites_of(named, subject.target.arch).names
    return fits and LINEARS not in rewrites_of(subject.recipe, subject.target.arch).names


def _generation(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    generation = subject.recipe.export.generation
    if not subject.recipe.is_language_model or generation is None:
        return
    # By default, the table has 8 bits beside quantized layers.
    small = ("8w",) if subject.metrics & {SIZE, PEAK_MEMORY} else ()
    yield _knob(subject, EMBEDDINGS, ("4w", *small), "the table is a large part of the size")
    by_kernel = generation.attention == "kernel" or (
        generation.attention == "auto" and generation.context >= _KERNEL_FROM
    )
    other = "stock" if by_kernel else "kernel"
    yield _knob(subject, ATTENTION, (other,), "which is faster depends on the context")
    yield _knob(subject, CACHE, ("float32", "float16", "int8"), "less memory is read per token")
    if TTFT in subject.metrics:
        values = [n for n in (64, 128, 256, 512) if n <= generation.context]
        yield _knob(subject, PREFILL, values, "more tokens at once use the cores better")
    else:
        yield LeftOut(key=PREFILL, reason="it changes ttft, which is neither objective nor limit")


def _threads(subject: TuneSubject) -> Iterator[Knob | LeftOut]:
    yield _knob(subject, THREADS, subject.cores, "it needs no export, and slow cores may not pay")
    if BACKEND not in subject.fixed:
        yield LeftOut(
            key="runtime",
            reason="other keys need a build of ExecuTorch; name them: --vary "
            "runtime.kleidiai=true,false",
        )


def _backend_has(attribute: str) -> Callable[[Mapping[str, Any]], bool]:
    def has(export: Mapping[str, Any]) -> bool:
        backend = find_backend(str(export.get("backend")))
        return bool(backend and getattr(backend, attribute))

    return has


def _scheme_in(*schemes: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda export: export.get("quantization") in schemes


def _has_groups(export: Mapping[str, Any]) -> bool:
    grouped = export.get("embeddings") in GROUPED_EMBEDDINGS
    return grouped or export.get("quantization") in GROUPED_SCHEMES


# Keys that only apply to some programs, by the section `export`; others have the default.
_APPLIES: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    EMBEDDINGS: lambda export: (
        _backend_has("embeddings")(export) and _scheme_in(*EMBEDDINGS_BESIDE)(export)
    ),
    GROUPS: _has_groups,
    ROUNDING: _scheme_in(*SEARCHED_SCHEMES),
    TARGET_BITS: _scheme_in(*SEARCHED_SCHEMES),
    "export.scaling": _scheme_in(*SEARCHED_SCHEMES),
    "export.calibration": _scheme_in(*SEARCHED_SCHEMES, *STATIC_SCHEMES),
    REWRITES: lambda export: (
        _backend_has("rewrites")(export)
        # Of a language model, the only one is for these schemes.
        and (
            (not export.get("generation") and LINEARS not in export.get("rewrites", ()))
            or _scheme_in(*SEARCHED_SCHEMES)(export)
        )
    ),
    ATTENTION: _backend_has("own_kernels"),
    CACHE: _backend_has("own_kernels"),
    "export.soc": _backend_has("socs"),
}


def _grid(
    subject: TuneSubject, knobs: Sequence[Knob]
) -> tuple[tuple[Combination, ...], tuple[str, ...]]:
    """All valid combinations, and why others are invalid."""
    at_export = [knob for knob in knobs if knob.cost == KnobCost.EXPORT]
    found: dict[tuple[str, ...], Combination] = {}
    problems: dict[str, int] = {}
    tried: set[str] = set()
    for values in itertools.product(*(knob.values for knob in at_export)):
        named = dict(zip((knob.key for knob in at_export), values, strict=True))
        chosen = _canonical_choice(subject, named)
        changes = _changes(subject, chosen)
        if canonical(changes) in tried:
            continue
        tried.add(canonical(changes))
        if problem := _problem(subject, changes):
            problems[problem] = problems.get(problem, 0) + 1
            continue
        for candidate in _with_runs(subject, knobs, chosen):
            found.setdefault(candidate.features, candidate)
        if len(found) > _MOST_CANDIDATES:
            raise _too_many(knobs)
    _require_used(subject, knobs, list(found.values()), problems)
    listed = sorted(found.values(), key=lambda c: bool(c.changes))
    texts = (f"{count(number, 'combination')}: {text}" for text, number in problems.items())
    return tuple(listed), tuple(texts)


def _with_runs(
    subject: TuneSubject, knobs: Sequence[Knob], chosen: Mapping[str, Any]
) -> Iterator[Combination]:
    """The candidates of one program: every value of the knobs that need none of their own."""
    at_run = [knob for knob in knobs if knob.cost == KnobCost.RUN]
    program = canonical(_changes(subject, chosen))
    export = {**subject.value("export"), **_of_export(chosen)}
    for values in itertools.product(*(knob.values for knob in at_run)):
        whole = {**chosen, **dict(zip((knob.key for knob in at_run), values, strict=True))}
        features = tuple(_feature(whole, knob, export) for knob in knobs)
        yield Combination(tuple(_changes(subject, whole).items()), features, program)


def _changes(subject: TuneSubject, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the recipe's."""
    return {
        key: value
        for key, value in chosen.items()
        if value != (_find(subject.given, key) if value is None else subject.value(key))
    }


def _feature(values: Mapping[str, Any], knob: Knob, export: Mapping[str, Any]) -> str:
    value, applies = values.get(knob.key), _APPLIES.get(knob.key)
    is_default = None in knob.values and (applies is None or applies(export))
    return canonical(value) if value is not None or is_default else NOT_APPLICABLE


def plain_feature(feature: str) -> str:
    """The value of a knob as it is shown."""
    return feature if feature == NOT_APPLICABLE else _plain(json.loads(feature))


def _canonical_choice(subject: TuneSubject, chosen: dict[str, Any]) -> dict[str, Any]:
    """The choice without what does not apply; also without keys of the recipe that do not."""
    export = {**subject.value("export"), **_of_export(chosen)}
    result = dict(chosen)
    for key, applies in _APPLIES.items():
        export_now = {**export, **_of_export(result)}
        given = key in result or _find(subject.given, key) is not None
        if given and not applies(export_now):
            result[key] = None
    if result.get(BACKEND, subject.value(BACKEND)) != subject.value(BACKEND):
        # They are the backend's own.
        result |= {"export.options": None} if subject.value("export.options") else {}
    return result


def _of_export(chosen: Mapping[str, Any]) -> dict[str, Any]:
    prefix = "export."
    return {k.removeprefix(prefix): v for k, v in chosen.items() if k.startswith(prefix)}


def _problem(subject: TuneSubject, changes: Mapping[str, Any]) -> str:
    """Why the changed recipe is not valid; empty if it is."""
    try:
        changed_recipe(subject.given, changes)
    except ValidationError as error:
        messages = [each["msg"].removeprefix("Value error, ") for each in error.errors()]
        return messages[0].split("; ")[0]
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def changed_recipe(given: Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """The recipe of these values with others for some keys, by dotted name; None for the default.

    Raises:
        pydantic.ValidationError: It is not a valid recipe.
    """
    data = copy.deepcopy(dict(given))
    for key, value in changes.items():
        *sections, name = key.split(".")
        section = data
        for part in sections:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise TypeError(f"{key}: {part} is not a section")
        if value is None:
            section.pop(name, None)
        else:
            section[name] = value
    return Recipe.model_validate(data)


def _require_used(
    subject: TuneSubject,
    knobs: Sequence[Knob],
    candidates: Sequence[Combination],
    problems: Mapping[str, int],
) -> None:
    """Raise UsageError for a value of --vary that no valid combination has."""
    for place, knob in enumerate(knobs):
        used = {candidate.features[place] for candidate in candidates}
        for value in subject.varied.get(knob.key, ()):
            if canonical(value) not in used:
                why = next(iter(problems), "it applies to no program of this space")
                raise UsageError(
                    f"{knob.key}={_plain(value)} is in no valid combination: {why}",
                    place="--vary",
                    remedy="Leave the value out, or vary what it needs, too.",
                )


def _too_many(knobs: Sequence[Knob]) -> UsageError:
    largest = sorted(knobs, key=lambda knob: -len(knob.values))[:3]
    names = " ".join(f"--fix {knob.key}" for knob in largest)
    return UsageError(
        f"there are more than {_MOST_CANDIDATES} combinations",
        remedy=f"Fix some keys, for example: {names}",
    )


def canonical(value: Any) -> str:
    """A value as text, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else "default" if value is None else canonical(value)
