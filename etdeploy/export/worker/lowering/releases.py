"""Whether the releases of PyTorch, ExecuTorch and torchao are those that are tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from etdeploy.export.cache import installed_version
from etdeploy.export.spec import ExportSpec

# ExecuTorch 1.5.1 takes every 0.18.
_TORCHAO = {"torchao": "0.18.0"}


def may_replace_parts(spec: ExportSpec) -> bool:
    """Whether lowering may replace parts of these packages, to do with less work.

    Another release may have other parts, or rely on what they do in another way. That would not
    always fail, but could give another program.
    """
    return not _others(spec.wanted_versions | _TORCHAO)


def release_notes(spec: ExportSpec, *, shortens: bool) -> Iterator[str]:
    """Sentences about releases that are not those that are tested."""
    for name, (installed, tested) in _others(spec.wanted_versions).items():
        yield f"Exported with {name} {installed}; {tested} is the version that is tested."
    others = _others(spec.wanted_versions | _TORCHAO)
    if shortens and others:
        told = " and ".join(f"{name} {tested}" for name, (_, tested) in others.items())
        yield (
            f"Lowering took longer than with {told}: what ExecuTorch repeats is left out with "
            "tested releases only."
        )


def _others(wanted: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The installed and the wanted version where they differ; builds of one version do not."""
    found = {name: (installed_version(name) or "").partition("+")[0] for name in wanted}
    return {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}
