"""Rewrites of a model's graph before it is lowered, by the names that a recipe uses; all pure.

Each computes the same in a form that the stock runtime runs faster. How is in
`export/worker/rewrites/`, one module each; what was measured is in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from etdeploy.backends.schemes import STATIC_SCHEMES

AUTO, NONE = "auto", "none"
CHANNELS_LAST = "channels_last"


@dataclass(frozen=True)
class Rewrite:
    """A rewrite, with what it does as a clause; `schemes` are those that it is for, None for all.

    `arches` are those on which it was measured to be faster, None where it removes work, which is
    faster everywhere. `unless_asked` is the reason why `auto` leaves it out on every machine.
    """

    summary: str
    schemes: tuple[str, ...] | None = None
    arches: tuple[str, ...] | None = None
    unless_asked: str = ""


REWRITES: dict[str, Rewrite] = {
    CHANNELS_LAST: Rewrite(
        "takes images by pixel (NHWC), as XNNPACK computes, and not by channel (NCHW)",
        unless_asked="it changes the order of the inputs' values, which whoever calls the program "
        "has to know",
    ),
    "silu": Rewrite(
        "writes SiLU as a product with a sigmoid before quantization, so that the product is "
        "computed in 8 bits",
        schemes=STATIC_SCHEMES,
    ),
    "depthwise": Rewrite(
        "splits depthwise kernels of more than 25 taps into strips, for which XNNPACK has kernels",
        arches=("x86_64",),
    ),
    "constants": Rewrite("computes once what does not depend on the inputs"),
    "attention": Rewrite(
        "computes attention without checking each row of scores for being masked wholly"
    ),
    "masks": Rewrite("hides what a mask hides by products and sums"),
    "norms": Rewrite("computes norms of layers and groups with their means as matrix products"),
    "powers": Rewrite("writes small powers, lengths and variances as products and roots"),
    "sums": Rewrite("computes means and sums as matrix products"),
    "pools": Rewrite("averages windows of images by convolutions where the padding counts"),
    "softmax": Rewrite("moves the dimension of a softmax to the end, where backends take it"),
    "prelu": Rewrite("computes PReLU of what is no image by two ReLUs"),
    "maxima": Rewrite("takes a largest value without looking for its place"),
    "upsampling": Rewrite("repeats pixels by a product with ones"),
    "patches": Rewrite("takes images apart into windows, and puts them together, as views"),
    "slices": Rewrite("takes parts of tensors, rolls and flips them, as slices"),
    "views": Rewrite("makes every change of shape a view"),
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
    wanted: str | Sequence[str], offered: Sequence[str], scheme: str | None, arch: str | None
) -> Chosen:
    """Choose the rewrites that a recipe names, or that are known to help.

    `wanted` is `auto`, `none`, or names, of which one may be `auto`; `offered` are the backend's.
    """
    names, left_out = [], {}
    for name in (each for each in REWRITES if each in offered):
        reason = _why_not(name, wanted, scheme, arch)
        if reason:
            left_out[name] = reason
        else:
            names.append(name)
    return Chosen(tuple(names), left_out)


def _why_not(name: str, wanted: str | Sequence[str], scheme: str | None, arch: str | None) -> str:
    """A clause; empty for a rewrite that is tried."""
    rewrite = REWRITES[name]
    if wanted == NONE:
        return "export.rewrites is none"
    is_named = not isinstance(wanted, str) and name in wanted
    if not is_named and wanted != AUTO and AUTO not in wanted:
        return "export.rewrites does not name it"
    if rewrite.schemes is not None and (scheme or "none") not in rewrite.schemes:
        return f"it is for quantization {', '.join(rewrite.schemes)}"
    if is_named:
        return ""
    if rewrite.arches is not None and arch not in rewrite.arches:
        measured = ", ".join(rewrite.arches)
        return f"it was measured on {measured} only, and the target is {arch or 'not known'}"
    return rewrite.unless_asked
