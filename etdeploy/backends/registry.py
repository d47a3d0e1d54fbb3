"""Every backend by its name, by the id of its delegates, and by its component."""

from __future__ import annotations

from etdeploy.backends.base import Backend
from etdeploy.backends.coreml import COREML
from etdeploy.backends.others import OTHERS
from etdeploy.backends.portable import PORTABLE
from etdeploy.backends.qnn.backend import QNN
from etdeploy.backends.vulkan.backend import VULKAN
from etdeploy.backends.xnnpack import XNNPACK

# In the order of the documentation.
BUILT_IN: dict[str, Backend] = {
    backend.name: backend for backend in (PORTABLE, XNNPACK, QNN, VULKAN, COREML, *OTHERS)
}
_BY_DELEGATE: dict[str, Backend] = {b.delegate_id: b for b in BUILT_IN.values() if b.delegate_id}


def exporting_backends() -> dict[str, Backend]:
    """The backends that a recipe can name, by name."""
    return {name: backend for name, backend in BUILT_IN.items() if backend.lowering}


def find_backend(name: str) -> Backend | None:
    """The backend that a recipe calls so; None if there is none to export for."""
    return exporting_backends().get(name)


def backend_named(name: str) -> Backend:
    """The backend that a loaded recipe names.

    Raises:
        KeyError: There is none; a loaded recipe names one that there is.
    """
    return exporting_backends()[name]


def backend_of(delegate_id: str) -> Backend | None:
    """The backend whose delegates carry this id; None for an unknown one."""
    return _BY_DELEGATE.get(delegate_id)


def known_socs() -> frozenset[str]:
    """The part numbers of every SoC that a backend compiles for."""
    return frozenset(soc for backend in BUILT_IN.values() for soc in backend.socs)


def runtime_backends() -> tuple[Backend, ...]:
    """The backends with a component in ExecuTorch's runtime."""
    return tuple(b for b in BUILT_IN.values() if b.component)
