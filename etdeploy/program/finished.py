"""How a program that somebody else exported generates text, as far as it says so itself.

ExecuTorch's exporters of language models give a method `forward` that takes tokens with their
position, and methods that return facts: `get_max_context_len`, `get_bos_id`, `get_eos_ids`. They
are those that ExecuTorch's own runner reads (extension/llm/runner/constants.h).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from etdeploy.program.folder import FORWARD
from etdeploy.program.generation import (
    CACHE_BITS,
    ENCODER,
    VISION_ENCODER,
    Generation,
    GenerationMethod,
    Layout,
    load_mode,
)
from etdeploy.program.model import Method, PlainValue, Program, TensorInfo

_CONTEXT = ("get_max_context_len", "get_max_seq_len")
_STOP = ("get_eos_ids", "get_eos_id")
_BOS = "get_bos_id"
_KV_CACHE = "use_kv_cache"
# Programs have some of these methods if they are of language models, and of no others.
_OF_LANGUAGE_MODELS = frozenset({*_CONTEXT, *_STOP, _BOS, _KV_CACHE, "get_vocab_size"})
# Facts that ExecuTorch's own runner reads, and what it does without them.
_READ = {
    "get_max_seq_len": "without which ExecuTorch's own runner refuses it",
    "enable_dynamic_shape": "so ExecuTorch's own runner takes prompts token by token",
    "get_eos_ids": "so ExecuTorch's own runner ends texts by the tokenizer's own token alone",
}
_NO_FACTS = "no method of it says that it is a language model (get_max_context_len, get_vocab_size)"
_NO_FORWARD = f"it has no method {FORWARD}, but {{names}}"
# The most tokens that a call verifies where it gives the logits of all of its tokens.
_MOST_VERIFIED = 16
# etdeploy's methods; a number is the capacity of one that is not for the whole context.
_OWN = re.compile(r"(prefill|decode)(_\d+)?")
_REWIND = "get_rewind"
_CACHE_BITS = "get_cache_bits"
_BY_BITS = {bits: cache for cache, bits in CACHE_BITS.items()}
_WHY_OWN = "the program was exported by etdeploy, and its description is not beside it"
_WHY = "another exporter made the program, with one method for all texts"


@dataclass(frozen=True)
class TokenFacts:
    """What a model's tokenizer says: see the same names in `Generation`.

    Attributes:
        adds_bos: Whether it begins each text with `bos_id`; None where it says nothing about it.
    """

    bos_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    adds_bos: bool | None = None


def constants(program: Program) -> dict[str, tuple[bool | int | float | None, ...]]:
    """What each method returns that computes nothing and returns no tensors."""
    return {
        method.name: tuple(each.value for each in method.outputs if isinstance(each, PlainValue))
        for method in program.methods
        if not method.inputs
        and method.outputs
        and all(isinstance(each, PlainValue) for each in method.outputs)
    }


def constants_for(generation: Generation) -> dict[str, bool | int | list[int]]:
    """The methods that a program has to return facts, by which ExecuTorch's own runners find them.

    Its runner of texts calls `forward` with up to `get_max_seq_len` tokens; that of several
    modalities does not split prompts.
    """
    most = max(method.max_tokens for method in generation.methods)
    facts: dict[str, bool | int | list[int]] = dict.fromkeys(_CONTEXT, generation.context)
    if generation.encoder is None:
        facts["get_max_seq_len"] = most
    facts |= {_KV_CACHE: True, "get_vocab_size": generation.vocabulary}
    facts["use_sdpa_with_kv_cache"] = (
        generation.layout == "executorch" and generation.attention == "kernel"
    )
    facts |= {"enable_dynamic_shape": any(method.dynamic for method in generation.methods)}
    if generation.rewind is not None:
        facts[_REWIND] = generation.rewind
    if generation.cache != "float32":
        facts[_CACHE_BITS] = CACHE_BITS[generation.cache]
    if generation.stop_ids:
        facts[_STOP[0]] = list(generation.stop_ids)
    return facts if generation.bos_id is None else {**facts, _BOS: generation.bos_id}


@dataclass(frozen=True)
class Contract:
    """By whose contract a program generates text.

    Attributes:
        name: `executorch`: a method `forward` takes tokens and their position. `etdeploy`: methods
            for prompts and for single tokens do, which share a cache. None: neither.
        missing: What a runner does not find, as clauses.
    """

    name: Layout | None
    missing: tuple[str, ...] = ()

    def text(self) -> str:
        """As a line about the program."""
        runners: dict[Layout | None, str] = {
            "executorch": "ExecuTorch's (a method forward; its own runner and etdeploy's call it)",
            "etdeploy": "etdeploy's (methods for prompts and for single tokens)",
            None: "neither ExecuTorch's nor etdeploy's, so it generates none",
        }
        return "; ".join((runners[self.name], *self.missing))


def contract_of(program: Program) -> Contract | None:
    """By whose contract a program generates text; None for one that shows no sign of doing so."""
    known = constants(program)
    wrong, facts = _misfit(program, known), known.keys() & _OF_LANGUAGE_MODELS
    absent = tuple(f"it has no {name}, {why}" for name, why in _READ.items() if name not in known)
    if wrong is None:
        return Contract("executorch", absent) if facts else Contract(None, (_NO_FACTS, *absent))
    if any(_callable(program, known)):
        why = "ExecuTorch's own runner finds no method forward"
        return Contract("etdeploy", (why,)) if facts else Contract(None, (_NO_FACTS,))
    has_encoder = any(method.name in (ENCODER, VISION_ENCODER) for method in program.methods)
    return None if has_encoder or not facts else Contract(None, (wrong,))


def _misfit(program: Program, known: Mapping[str, object]) -> str | None:
    """Why ExecuTorch's own runner cannot call a program; None if it can."""
    computing = {method.name: method for method in program.methods if method.name not in known}
    if FORWARD in computing:
        return _wrong_signature(computing[FORWARD], known)
    return _NO_FORWARD.format(names=", ".join(computing))


def generation_of(
    program: Program, model: str, tokenizer: str | None, facts: TokenFacts
) -> Generation | str | None:
    """How a finished program generates text.

    Args:
        program: What inspection found.
        model: Its file, for records.
        tokenizer: The folder with its tokenizer, relative to the program folder.
        facts: What the tokenizer says; what the program says comes first.

    Returns:
        None for a program that is not of a language model; a sentence for one that is, and cannot
        be called token by token.
    """
    known = constants(program)
    if not known.keys() & _OF_LANGUAGE_MODELS:
        return None
    methods = tuple(_callable(program, known))
    if not methods:
        return _misfit(program, known)
    tokens, logits = methods[0].inputs[0], methods[0].outputs[0]
    if not isinstance(tokens, TensorInfo) or not isinstance(logits, TensorInfo):
        raise TypeError(methods[0])
    contexts = [_integers(known, name) for name in _CONTEXT]
    context = next((found[0] for found in contexts if found and found[0] > 0), tokens.shape[1])
    stops = [_integers(known, name) for name in _STOP]
    bos = next(iter(_integers(known, _BOS)), facts.bos_id)
    return Generation(
        methods=tuple(_as_called(method, context) for method in methods),
        vocabulary=logits.shape[-1],
        context=context,
        stop_ids=next(filter(None, stops), facts.stop_ids),
        bos_id=None if facts.adds_bos is False else bos,
        tokenizer=tokenizer,
        model=model,
        path="finished",
        path_reason=_WHY if methods[0].name == FORWARD else _WHY_OWN,
        layout="executorch" if methods[0].name == FORWARD else "etdeploy",
        rewind=next(iter(_integers(known, _REWIND)), None),
        cache=_BY_BITS.get(next(iter(_integers(known, _CACHE_BITS)), 32), "float32"),
        load_mode=load_mode(program.operators),
    )


def _callable(program: Program, known: Mapping[str, object]) -> Iterator[Method]:
    """The methods that generate: `forward` alone, or those of etdeploy."""
    named = {method.name: method for method in program.methods if method.name not in known}
    if named.keys() & {ENCODER, VISION_ENCODER}:
        return
    own = [method for name, method in named.items() if _OWN.fullmatch(name)]
    for method in [named[FORWARD]] if FORWARD in named else own:
        if _wrong_signature(method, known) is None:
            yield method


def _as_called(method: Method, context: int) -> GenerationMethod:
    """What etdeploy's names say of a method, whose number is its capacity."""
    tokens, (_, _, capacity) = method.inputs[0], method.name.rpartition("_")
    if not isinstance(tokens, TensorInfo):
        raise TypeError(method)
    most = tokens.shape[1]
    return GenerationMethod(
        name=method.name,
        role="decode" if most == 1 else "prefill",
        max_tokens=most,
        dynamic=tokens.dynamic and most > 1,
        capacity=min(int(capacity), context) if capacity.isdecimal() else context,
        verify_tokens=_verified(method) if most > 1 else 0,
    )


def _verified(method: Method) -> int:
    """How many tokens' logits a call can give; 0 for the last one's alone."""
    logits = method.outputs[0]
    if not isinstance(logits, TensorInfo) or len(logits.shape) < 3:
        return 0
    return min(logits.shape[1], _MOST_VERIFIED)


def _wrong_signature(method: Method, known: Mapping[str, object]) -> str | None:
    """Why the runner cannot call the method; None if it can."""
    kinds = [info if isinstance(info, TensorInfo) else None for info in method.inputs]
    if len(kinds) == 1 and known.get(_KV_CACHE) in ((False,), None):
        return f"{FORWARD} takes no position: it was exported without a KV cache (use_kv_cache)"
    chooses_rows = _OWN.fullmatch(method.name) and len(kinds) == 3
    if len(kinds) != 2 and not chooses_rows:
        return f"{FORWARD} takes {len(kinds)} inputs, and tokens and their position are 2"
    tokens, position = kinds[:2]
    if tokens is None or tokens.dtype != "int64" or len(tokens.shape) != 2 or tokens.shape[0] != 1:
        return f"the first input of {FORWARD} is not int64 [1, number of tokens]"
    each = ((1,), (tokens.shape[1],))
    if position is None or position.dtype != "int64" or position.shape not in each:
        return f"the second input of {FORWARD} is not int64 [1] or [number of tokens]"
    if not tokens.dynamic and tokens.shape[1] > 1:
        return f"{FORWARD} takes {tokens.shape[1]} tokens, and no fewer"
    logits = method.outputs[0] if method.outputs else None
    if not isinstance(logits, TensorInfo) or logits.dtype != "float32":
        found = logits.dtype if isinstance(logits, TensorInfo) else "no tensor"
        return f"{FORWARD} gives logits as {found}, and the runner takes float32"
    rows = kinds[2].shape if chooses_rows and kinds[2] else (tokens.shape[1],)
    if logits.shape[:-1] not in ((1,), (1, *rows)):
        return f"{FORWARD} gives {list(logits.shape)}, which are not logits of the tokens"
    return None


def _integers(known: Mapping[str, tuple[object, ...]], name: str) -> tuple[int, ...]:
    """The whole numbers that a method returns; those below 0 stand for none."""
    found = known.get(name, ())
    return tuple(v for v in found if isinstance(v, int) and not isinstance(v, bool) and v >= 0)
