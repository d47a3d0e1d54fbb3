"""Which of ExecuTorch's submodules a build compiles, and which are missing in a checkout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from etdeploy.backends.registry import runtime_backends
from etdeploy.core.errors import BuildError
from etdeploy.core.text.shell import quoted
from etdeploy.provider.checkout import Checkout, checkout_remedy
from etdeploy.provider.revision import submodule_paths

# Which option needs which submodules; None stands for every build. Taken from 1.3 to 1.5. Backends
# say themselves what they need.
_SUBMODULES: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (
        None,
        (
            "third-party/flatbuffers",
            "third-party/flatcc",
            "third-party/gflags",
            "third-party/json",
            "backends/xnnpack/third-party/FXdiv",
        ),
    ),
    ("EXECUTORCH_BUILD_PTHREADPOOL", ("backends/xnnpack/third-party/pthreadpool",)),
    ("EXECUTORCH_BUILD_CPUINFO", ("backends/xnnpack/third-party/cpuinfo",)),
    (
        "EXECUTORCH_BUILD_KERNELS_OPTIMIZED",
        ("kernels/optimized/third-party/eigen", "third-party/pocketfft"),
    ),
    ("EXECUTORCH_BUILD_KERNELS_LLM", ("third-party/ao",)),
    ("EXECUTORCH_BUILD_KERNELS_TORCHAO", ("third-party/ao",)),
    ("EXECUTORCH_BUILD_EXTENSION_LLM", ("extension/llm/tokenizers",)),
    ("EXECUTORCH_BUILD_PYBIND", ("third-party/pybind11",)),
)
_APPLE_SUBMODULE = "third-party/ios-cmake"


def needed_submodules(options: Mapping[str, str | None], *, apple: bool = False) -> tuple[str, ...]:
    """The submodules that a build with these options compiles, in a fixed order."""
    names = [
        name
        for option, submodules in (*_SUBMODULES, *_of_backends())
        if option is None or options.get(option) == "ON"
        for name in submodules
    ]
    return tuple(dict.fromkeys([*names, *([_APPLE_SUBMODULE] if apple else [])]))


def _of_backends() -> Iterator[tuple[str | None, tuple[str, ...]]]:
    yield from ((b.switch, b.submodules) for b in runtime_backends() if b.switch)


def missing_submodules(folder: Path, needed: Iterable[str]) -> tuple[str, ...]:
    """Those with empty folders. A submodule that this release does not have is not missing."""
    return tuple(name for name in in_release(folder, needed) if not _has_files(folder / name))


def in_release(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The submodules that this release has; all of them if it has no .gitmodules."""
    known = submodule_paths(folder)
    return tuple(name for name in names if known is None or name in known)


def require_complete(checkout: Checkout, needed: Iterable[str]) -> None:
    """Raises unless a checkout has all needed submodules.

    Raises:
        BuildError: Some are missing; the remedy fetches them.
    """
    missing = missing_submodules(checkout.folder, needed)
    if missing:
        raise BuildError(
            f"the checkout {checkout.path} does not have submodules that the build compiles: "
            + ", ".join(missing),
            remedy=submodule_remedy(checkout, missing),
        )


def submodule_remedy(checkout: Checkout, names: Iterable[str]) -> str:
    """How to get submodules: with git if the checkout was cloned, otherwise from a new clone."""
    if not (checkout.folder / ".git").exists():
        return (
            f"{checkout.path} was not cloned with git, so unpack each of them into its folder "
            "there, or clone:\n"
            + checkout_remedy(checkout.origin, checkout.version, checkout.folder)
        )
    return (
        f"git -C {quoted(checkout.path)} submodule update --init --recursive --depth 1 -- "
        f"{' '.join(map(quoted, names))}"
    )


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(path.name != ".git" for path in folder.iterdir())
