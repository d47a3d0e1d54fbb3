"""Rewrites of a model's graph before it is lowered, by the names that a recipe uses; all pure.

Each computes the same in a form that the stock runtime runs faster. How is in
`export/worker/rewrites/`, one module each; what was measured is in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from etdeploy.backends.schemes import SEARCHED_SCHEMES, STATIC_SCHEMES

AUTO, NONE = "auto", "none"
CHANNELS_LAST, LINEARS = "channels_last", "linears"


@dataclass(frozen=True)
class Rewrite:
    """A rewrite, with what it does as a clause; `schemes` are those that it is for, None for all.

    `arches` are those on which it was measured to be faster, None where it removes work, which is
    faster everywhere; with `kernel`, no other architecture has the kernel that it needs.
    `unless_asked` is the reason why `auto` leaves it out on every machine. Only those
    `for_texts` are for language models without an encoder, too.
    """

    summary: str
    schemes: tuple[str, ...] | None = None
    arches: tuple[str, ...] | None = None
    kernel: bool = False
    unless_asked: str = ""
    for_texts: bool = False


REWRITES: dict[str, Rewrite] = {
    CHANNELS_LAST: Rewrite(
        "takes image inputs in NHWC order, in which XNNPACK computes, instead of NCHW",
        unless_asked="callers must then pass image inputs in NHWC order; to enable it, name it in "
        "export.rewrites",
    ),
    "silu": Rewrite(
        "writes SiLU as a product with a sigmoid before quantization, so the product is "
        "computed in 8 bits",
        schemes=STATIC_SCHEMES,
    ),
    "depthwise": Rewrite(
        "splits depthwise kernels of more than 25 taps into strips, for which XNNPACK has kernels",
        arches=("x86_64",),
    ),
    LINEARS: Rewrite(
        "computes quantized linear layers by etdeploy's kernels, outside of the delegate",
        schemes=SEARCHED_SCHEMES,
        arches=("x86_64",),
        kernel=True,
        for_texts=True,
    ),
    "constants": Rewrite("computes values that do not depend on the inputs during the export"),
    "attention": Rewrite("computes attention without checking each row of scores for a full mask"),
    "masks": Rewrite("writes masked_fill and where as products and sums"),
    "norms": Rewrite("writes the means of layer and group norms as matrix products"),
    "powers": Rewrite("writes small powers, vector norms and variances as products and roots"),
    "sums": Rewrite("writes means and sums as matrix products"),
    "pools": Rewrite("writes average pooling that includes the padding as convolutions"),
    "softmax": Rewrite("moves the dimension of a softmax to the end, as backends require"),
    "prelu": Rewrite("writes PReLU of inputs other than images as two ReLUs"),
    "maxima": Rewrite("computes the maximum along a dimension without its index"),
    "upsampling": Rewrite("writes nearest upsampling by whole factors as a product with ones"),
    "patches": Rewrite("writes unfold and fold of adjacent windows as views"),
    "slices": Rewrite("writes select, split, roll and small flips as slices"),
    "views": Rewrite("writes squeeze, unsqueeze and reshape as views"),
}


@dataclass(frozen=True)
class Chosen:
    """Which rewrites an export tries, in their order, and why it leaves the others out."""

    names: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def as_everywhere(names: Sequence[str]) -> tuple[str, ...]:
    """Without the rewrites that depend on the target."""
    return tuple(name for name in names if REWRITES[name].arches is None)


def with_idle(names: Sequence[str], idle: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return other choices that give the same program; `idle` rewrites change nothing in it."""
    without = tuple(name for name in names if name not in idle)
    every = tuple(name for name in REWRITES if name in {*names, *idle})
    return tuple(each for each in dict.fromkeys((without, every)) if each != tuple(names))


def chosen_rewrites(
    wanted: str | Sequence[str],
    offered: Sequence[str],
    scheme: str | None,
    arch: str | None,
    no_kernels: str = "",
) -> Chosen:
    """Choose the rewrites that a recipe names, or that are known to help.

    `wanted` is `auto`, `none`, or names, of which one may be `auto`; `offered` are the backend's.
    With `no_kernels`, the reason as a clause, `auto` leaves out those that need a kernel.
    """
    names, left_out = [], {}
    for name in (each for each in REWRITES if each in offered):
        reason = _why_not(name, wanted, scheme, arch, no_kernels)
        if reason:
            left_out[name] = reason
        else:
            names.append(name)
    return Chosen(tuple(names), left_out)


def _why_not(
    name: str, wanted: str | Sequence[str], scheme: str | None, arch: str | None, no_kernels: str
) -> str:
    """A clause; empty for a rewrite that is tried."""
    rewrite = REWRITES[name]
    if wanted == NONE:
        return "export.rewrites is none"
    is_named = not isinstance(wanted, str) and name in wanted
    if not is_named and wanted != AUTO and AUTO not in wanted:
        return "export.rewrites does not name it"
    if rewrite.schemes is not None and (scheme or "none") not in rewrite.schemes:
        return f"it is for quantization {', '.join(rewrite.schemes)}"
    if rewrite.arches is not None and rewrite.kernel and arch not in (None, *rewrite.arches):
        return f"its kernel is for {', '.join(rewrite.arches)}, and the target is {arch}"
    if is_named:
        return ""
    if rewrite.arches is not None and arch not in rewrite.arches:
        measured = ", ".join(rewrite.arches)
        return f"it was measured only on {measured}, and the target is {arch or 'not known'}"
    return rewrite.unless_asked or (no_kernels if rewrite.kernel else "")
