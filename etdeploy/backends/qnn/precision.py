"""What prevents an export for QNN, and in what the HTP computes floats."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from etdeploy.backends.options import OptionValue
from etdeploy.backends.qnn.compiler import compile_problem, find_compile_kit, runs_here
from etdeploy.backends.qnn.facts import (
    ADAPTOR_SDK,
    IN_BLOCKS,
    OUTPUT_LAYER,
    QUALCOMM_SOCS,
    QualcommSoc,
    dotted,
    finer_scheme,
)
from etdeploy.backends.qnn.loading import loading_problem
from etdeploy.backends.qnn.payload import FLOATS
from etdeploy.backends.qnn.sdk import for_soc
from etdeploy.backends.schemes import FLOAT_SCHEMES, first_override
from etdeploy.backends.values import (
    CompiledFor,
    ExportRequest,
    LanguageModelSizes,
    Workstation,
)
from etdeploy.core.console import count, size
from etdeploy.core.errors import Blocker
from etdeploy.targets.ndk import soc_name

# ExecuTorch, backends/qualcomm/quantizer: "LPBQ requires V69 or a newer version".
_WITHOUT_BLOCKS = "V68"


def scheme_blocker(quantization: str, soc: str | None) -> Blocker | None:
    """What prevents the export of a model in floats, or with weights in blocks.

    Without this, ExecuTorch fails on the first operator that QNN did not take.
    """
    facts = QUALCOMM_SOCS.get(soc or "")
    if facts is None:
        return None
    if quantization == IN_BLOCKS and facts.htp_arch == _WITHOUT_BLOCKS:
        return Blocker(
            what=f"blocks on {facts.name}",
            why=f"export.quantization is {quantization}, and the HTP of {facts.name} "
            f"({facts.htp_arch}) has no weights in blocks; V69 is the first that has",
            remedy="Use one scale for each output channel: --set export.quantization=16a4w",
        )
    if quantization not in FLOAT_SCHEMES or facts.float_bits:
        return None
    return Blocker(
        what=f"floats on {facts.name}",
        why=f"export.quantization is {quantization}, and QNN compiles no floats for {facts.name}, "
        "whose HTP has no 16-bit ones",
        remedy="Quantize the model: --set export.quantization=int8_static",
    )


def precision_notes(quantization: str | None, soc: str | None) -> Iterator[str]:
    """Yield notes about a program's floats, as sentences."""
    if quantization == "none":
        yield (
            "The HTP has no 32-bit floats: floats are computed in 16 bits, and the outputs are "
            "judged as such."
        )
    facts = _untried(soc)
    if quantization in FLOAT_SCHEMES and facts:
        yield (
            f"The HTP of {facts.name} ({facts.htp_arch}) may not compute floats at all: ExecuTorch "
            "names Snapdragon 8 Gen 1 as the first phone's SoC whose HTP has 16-bit floats. "
            "Qualcomm's simulator computes them in 32 bits for it, so that a simulated run does "
            "not show whether the phone can. Quantized models run: "
            "--set export.quantization=int8_static"
        )


def finished_notes(compiled: Iterable[CompiledFor]) -> Iterator[str]:
    """What to know of the floats of a program that was given as a file, as sentences."""
    for soc in dict.fromkeys(c.soc for c in compiled if FLOATS in c.settings):
        facts = _untried(soc)
        if facts:
            yield (
                f"the program computes floats, and the HTP of {facts.name} ({facts.htp_arch}) may "
                "not be able to, which the simulator does not show: ExecuTorch names Snapdragon 8 "
                "Gen 1 as the first phone's SoC whose HTP has 16-bit floats"
            )


def _untried(soc: str | None) -> QualcommSoc | None:
    """The SoC, if only the simulator is known to compute floats for it.

    ExecuTorch, backends/qualcomm/utils/utils.py: "Only premium tier SoC like Snapdragon 8 Gen 1 or
    newer can support HTP fp16." That one is SM8450, with V69.
    """
    facts = QUALCOMM_SOCS.get(soc or "")
    return facts if facts and facts.float_bits == 32 else None


_NEEDS = f"the backend qnn needs Qualcomm's compiler (QNN {dotted(ADAPTOR_SDK)} or newer)"


def export_blockers(soc: str | None, station: Workstation) -> Iterator[Blocker]:
    """What prevents an export, the most general first."""
    if not runs_here():
        yield Blocker(
            "Linux x86_64",
            f"{_NEEDS} on Linux x86_64; this is {sys.platform} {platform.machine()}",
            "Export on a Linux x86_64 machine, and use that program with\n"
            "model: {program: model.pte}",
        )
        return
    kit = find_compile_kit(station, soc)
    if isinstance(kit, Blocker):
        yield for_soc(Blocker(kit.what, f"{_NEEDS}; {kit.why}", kit.remedy), soc)
        return
    unknown = _soc_blocker(soc)
    if unknown:
        yield unknown
        return
    problem = compile_problem(kit, QUALCOMM_SOCS[str(soc)]) or loading_problem(kit, station.environ)
    if problem:
        yield for_soc(problem, soc)


def _soc_blocker(name: str | None) -> Blocker | None:
    """A SoC that is not known yet, or that QNN does not list; a variant's own name is told."""
    if name in (None, "auto"):
        return Blocker(
            "SoC",
            "a qnn program is compiled for one SoC, and no device has reported which",
            "Name a device with --device android, or the SoC with --set export.soc=SM8650",
        )
    if name in QUALCOMM_SOCS:
        return None
    near = soc_name(name, None, QUALCOMM_SOCS)
    return Blocker(
        f"SoC {name}",
        f"export.soc: QNN does not compile for the SoC {name!r}, as far as ExecuTorch knows",
        f"--set export.soc={near}"
        if near in QUALCOMM_SOCS
        else f"Name one of: {', '.join(QUALCOMM_SOCS)}",
    )


# QNN 2.49 ignores weight sharing for V68; for V69, V75 and V81 it stores weights once.
_NOT_SHARING = "V68"


def option_blocker(options: Mapping[str, OptionValue], soc: str | None) -> Blocker | None:
    """What prevents an export with these options for a SoC."""
    facts = QUALCOMM_SOCS.get(soc or "")
    return (_vtcm_blocker(options, facts) or _sharing_blocker(options, facts)) if facts else None


def _vtcm_blocker(options: Mapping[str, OptionValue], soc: QualcommSoc) -> Blocker | None:
    wanted = options.get("vtcm_mib", 0)
    if isinstance(wanted, int) and 0 <= wanted <= soc.vtcm_mib:
        return None
    return Blocker(
        what="VTCM",
        why=f"export.options.vtcm_mib is {wanted}, and {soc.name} has {soc.vtcm_mib} MiB of VTCM",
        remedy=f"Name 1 to {soc.vtcm_mib}, or 0 for all: --set export.options.vtcm_mib=0",
    )


def _sharing_blocker(options: Mapping[str, OptionValue], soc: QualcommSoc) -> Blocker | None:
    if not options.get("weight_sharing") or soc.htp_arch != _NOT_SHARING:
        return None
    return Blocker(
        what="weight sharing",
        why=f"export.options.weight_sharing is on, and the HTP of {soc.name} ({soc.htp_arch}) "
        "shares no weights",
        remedy="--set export.options.weight_sharing=false",
    )


# Of a partition: "a context binary has at most 2 GB", and of the addresses of a process on the HTP
# 4 GB, of which Qualcomm's compiler finds about 3.7 GB free.
CONTEXT_LIMIT_BYTES, ADDRESS_LIMIT_BYTES = 1 << 31, 3_700_000_000
_WEIGHT_BITS = {"none": 16, "fp16": 16, "int8_static": 8, "16a8w": 8}
_SIXTEEN_BITS = ("16a8w", "16a4w", IN_BLOCKS)  # of activations
_SMALL_WEIGHT_BITS = 4  # 8a4w, 16a4w, and in blocks with a scale each
# Measured with QNN 2.49.40 for layers of 11 million weights and 16 heads: the libraries, copies of
# the weights as 32-bit floats for each method, and seconds of one core for a million weights.
_LIBRARIES_BYTES, _COPIES, _FLOAT_BYTES, _SECONDS = 640 << 20, 3.7, 4, 0.6
_SECONDS_PER_MINUTE, _MILLION = 60, 1_000_000


def language_export_bytes(sizes: LanguageModelSizes) -> int:
    """The memory that an export takes on this machine: each method is compiled with its weights."""
    floats = _FLOAT_BYTES * sizes.parameters
    return _LIBRARIES_BYTES + round(_COPIES * floats * sizes.methods)


def _context_bytes(request: ExportRequest, sizes: LanguageModelSizes) -> int:
    """The weights of a method in its context binary; of all methods if they share them."""
    scheme = request.quantization
    # What is looked up is an activation: a model of 28 million weights, of which 8 were embeddings,
    # took 37 MB for each method as 16a8w.
    embedded_bits = 16 if scheme in (*FLOAT_SCHEMES, *_SIXTEEN_BITS) else 8
    layers = sizes.layers or {OUTPUT_LAYER: sizes.embedded}
    others = sizes.parameters - sizes.embedded - sum(layers.values())
    bits = sum(weights * _weight_bits(request, path) for path, weights in layers.items())
    bits += others * _WEIGHT_BITS.get(scheme, _SMALL_WEIGHT_BITS)
    return (bits + sizes.embedded * embedded_bits) // 8


def _weight_bits(request: ExportRequest, path: str) -> int:
    """The bits of a layer's weights."""
    override = first_override(request.overrides, [path])
    scheme = override[1] if override else finer_scheme(request.quantization, path)
    return _WEIGHT_BITS.get(scheme or request.quantization, _SMALL_WEIGHT_BITS)


def _copies_of_weights(request: ExportRequest, sizes: LanguageModelSizes) -> int:
    return 1 if request.options.get("weight_sharing") else sizes.methods


def _cache_bytes(request: ExportRequest, sizes: LanguageModelSizes) -> int:
    """Keys and values as the program takes them; a model in floats takes 32-bit ones."""
    if request.quantization in FLOAT_SCHEMES:
        return sizes.cached_values * _FLOAT_BYTES
    return sizes.cached_values


def language_blocker(request: ExportRequest, sizes: LanguageModelSizes) -> Blocker | None:
    """What prevents the export of a language model that is too large for the HTP."""
    if _fits(request, sizes):
        return None
    weights, caches = _context_bytes(request, sizes), _cache_bytes(request, sizes)
    remedy = "\n".join((*_smaller_programs(request, sizes), "Name a smaller model."))
    if weights > CONTEXT_LIMIT_BYTES:
        return Blocker(
            what="2 GB of a context binary",
            why=f"the weights take {size(weights)} as {request.quantization}, and one part of a "
            f"model for the HTP, a context binary, has at most {size(CONTEXT_LIMIT_BYTES)}",
            remedy=remedy,
        )
    copies = _copies_of_weights(request, sizes)
    times = (
        f"{copies} methods with {size(weights)} of weights each"
        if copies > 1
        else f"{size(weights)} of weights"
    )
    return Blocker(
        what="4 GB of addresses on the HTP",
        why=f"{times} and {size(caches)} of keys and values for {sizes.context:,} positions are "
        f"{size(copies * weights + caches)}, and of the HTP's 4 GB of addresses "
        f"{size(ADDRESS_LIMIT_BYTES)} are free",
        remedy=remedy,
    )


def _fits(request: ExportRequest, sizes: LanguageModelSizes) -> bool:
    weights = _context_bytes(request, sizes)
    needed = _copies_of_weights(request, sizes) * weights + _cache_bytes(request, sizes)
    return weights <= CONTEXT_LIMIT_BYTES and needed <= ADDRESS_LIMIT_BYTES


def _smaller_programs(request: ExportRequest, sizes: LanguageModelSizes) -> list[str]:
    """Settings, a line each, with which the model fits; two at once where none does alone."""
    soc, shared = QUALCOMM_SOCS.get(request.soc or ""), {**request.options, "weight_sharing": True}
    fewer: list[tuple[str, ExportRequest, LanguageModelSizes]] = []
    if _copies_of_weights(request, sizes) > 1:
        if soc is None or soc.htp_arch != _NOT_SHARING:
            once = "Store the weights once (not for the simulator): --set export.options."
            fewer = [(f"{once}weight_sharing=true", replace(request, options=shared), sizes)]
        single = "Have one method alone: --set export.generation.methods=kv"
        fewer.append((single, request, replace(sizes, methods=1)))
    tried = [*fewer, *_shorter_context(request, sizes)]
    if request.quantization in _WEIGHT_BITS:
        small = "Take 4-bit weights: --set export.quantization=16a4w"
        tried.append((small, replace(request, quantization="16a4w"), sizes))
    found = [line for line, asked, smaller in tried if _fits(asked, smaller)]
    if not found and request.quantization in _WEIGHT_BITS:
        found = [
            f"{line} --set export.quantization=16a4w"
            for line, asked, smaller in fewer
            if _fits(replace(asked, quantization="16a4w"), smaller)
        ]
    return found


def _shorter_context(
    request: ExportRequest, sizes: LanguageModelSizes
) -> Iterator[tuple[str, ExportRequest, LanguageModelSizes]]:
    """With as many positions as fit, if a prompt's part has room there."""
    weights = _copies_of_weights(request, sizes) * _context_bytes(request, sizes)
    free, caches = ADDRESS_LIMIT_BYTES - weights, _cache_bytes(request, sizes)
    if caches == 0:
        return
    fitting = free * sizes.context // caches // _POSITIONS * _POSITIONS
    if fitting > sizes.prefill_tokens:
        values = sizes.cached_values * fitting // sizes.context
        yield (
            f"Look back on fewer tokens: --set export.generation.context={fitting}",
            request,
            replace(sizes, context=fitting, cached_values=values),
        )


_POSITIONS = 64  # what a context that is recommended is a multiple of


def language_notes(request: ExportRequest, sizes: LanguageModelSizes) -> Iterator[str]:
    """What the program and its export will take, as a sentence each."""
    weights, caches = _context_bytes(request, sizes), _cache_bytes(request, sizes)
    total = weights * _copies_of_weights(request, sizes)
    with_each = ", with each of its methods" if total > weights else ""
    millions = sizes.parameters / _MILLION
    number = f"{millions:,.0f} million" if millions >= 1 else f"{sizes.parameters:,}"
    yield (
        f"{number} weights take about {size(total)} of the "
        f"program as {request.quantization}{with_each}; keys and values of {sizes.context:,} "
        f"positions take {size(caches)}. A context binary has at most {size(CONTEXT_LIMIT_BYTES)}."
    )
    seconds = _SECONDS * sizes.parameters / _MILLION * sizes.methods
    minutes = round(seconds / _SECONDS_PER_MINUTE)
    if minutes:
        is_float = request.quantization in FLOAT_SCHEMES
        more = "" if is_float else ", and calibration and quantization come on top"
        yield (
            f"The export takes about {size(language_export_bytes(sizes))} of memory and at least "
            f"{count(minutes, 'minute')} in Qualcomm's compiler, measured in floats; a long "
            f"context takes longer{more}. ExecuTorch documents 1 to 4 hours and 80 GB for a model "
            "of a billion weights with two methods."
        )
    yield from _scratch_note(request, sizes)


def _scratch_note(request: ExportRequest, sizes: LanguageModelSizes) -> Iterator[str]:
    """That the scores of an attention leave the HTP's own memory."""
    soc = QUALCOMM_SOCS.get(request.soc or "")
    if soc is None or not sizes.heads:
        return
    together = request.options.get("mha2sha") == "never"
    heads, tokens, vtcm = sizes.heads if together else 1, sizes.prefill_tokens, soc.vtcm_mib << 20

    def scores(tokens: int) -> int:
        return 2 * heads * tokens * (sizes.context - 1 + tokens)

    if scores(tokens) <= vtcm:
        return
    fitting = next((n for n in _PREFILLS if n < tokens and scores(n) <= vtcm), None)
    advice = f"--set export.generation.prefill_tokens={fitting}" if fitting else _NO_PREFILL
    split = ", or with single heads: --set export.options.mha2sha=auto" if together else ""
    yield (
        f"The scores of {'all heads' if heads > 1 else 'one head'} take {size(scores(tokens))} for "
        f"{tokens} tokens at once, and {soc.name} has {size(vtcm)} of on-chip memory (VTCM): "
        f"calls are faster with {advice}{split}."
    )


_PREFILLS = (128, 64, 32, 16, 8, 4, 2)
_NO_PREFILL = "a smaller export.generation.context"
