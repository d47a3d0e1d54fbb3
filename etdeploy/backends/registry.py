"""Every backend by its name, by the id of its delegates, and by its component.

A table says which module has a built-in backend, and what identifies it in programs and plans: a
run imports only the backends that its recipe or program uses. Other packages' are entry points of
the group `etdeploy.backends`, which are looked for only where a name or an id is not a built-in
one: to find them costs more than all the rest of a start. A plug-in can replace only those that
etdeploy does not export for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from etdeploy.backends.base import Backend
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import PluginError, UsageError
from etdeploy.core.plugins import (
    attributed,
    check_hooks,
    load_plugin,
    plugin_code,
    plugin_names,
    plugin_owner,
)
from etdeploy.core.values import DoctorCheck

OTHERS: tuple[Backend, ...] = (
    Backend(
        name="mps",
        delegate_id="MPSBackend",
        component="backend_mps",
        switch="EXECUTORCH_BUILD_MPS",
        cmake_target="mpsdelegate",
        systems=("macos", "ios"),
    ),
    Backend(
        name="mlx",
        delegate_id="MLXBackend",
        component="backend_mlx",
        switch="EXECUTORCH_BUILD_MLX",
        cmake_target="mlxdelegate",
        submodules=("backends/mlx/third-party/mlx",),
        wheels=("macos-arm64",),
        systems=("macos",),
    ),
    Backend(
        name="neuropilot",
        delegate_id="NeuropilotBackend",
        component="backend_neuron",
        switch="EXECUTORCH_BUILD_NEURON",
        cmake_target="neuron_backend",
        systems=("android",),
        arches=("aarch64",),
        loads=True,
    ),
    Backend(
        name="enn",
        delegate_id="EnnBackend",
        component="backend_enn",
        switch="EXECUTORCH_BUILD_ENN",
        cmake_target="enn_backend",
        systems=("android",),
        arches=("aarch64",),
        loads=True,
    ),
    Backend(
        name="vgf",
        delegate_id="VgfBackend",
        component="backend_vgf",
        switch="EXECUTORCH_BUILD_VGF",
        cmake_target="vgf_backend",
        systems=("android", "linux"),
        loads=True,
    ),
)


GROUP = "etdeploy.backends"


@dataclass(frozen=True)
class BackendEntry:
    """What identifies a built-in backend, as its `Backend` states it too.

    Attributes:
        module: Below `etdeploy.backends`; its attribute is the name in capitals.
    """

    module: str
    delegate_id: str | None = None
    component: str | None = None
    switch: str | None = None


# In the order of the documentation.
_EXPORTING: dict[str, BackendEntry] = {
    "portable": BackendEntry("portable"),
    "xnnpack": BackendEntry(
        "xnnpack", "XnnpackBackend", "backend_xnnpack", "EXECUTORCH_BUILD_XNNPACK"
    ),
    "qnn": BackendEntry("qnn.backend", "QnnBackend", "backend_qnn", "EXECUTORCH_BUILD_QNN"),
    "vulkan": BackendEntry("vulkan", "VulkanBackend", "backend_vulkan", "EXECUTORCH_BUILD_VULKAN"),
    "coreml": BackendEntry("coreml", "CoreMLBackend", "backend_coreml", "EXECUTORCH_BUILD_COREML"),
    "openvino": BackendEntry(
        "openvino", "OpenvinoBackend", "backend_openvino", "EXECUTORCH_BUILD_OPENVINO"
    ),
}
BUILT_IN: dict[str, BackendEntry] = _EXPORTING | {
    b.name: BackendEntry("registry", b.delegate_id, b.component, b.switch) for b in OTHERS
}
_loaded: dict[str, Backend] = {backend.name: backend for backend in OTHERS}
# Plug-ins that were looked for, by name; None for a name that no package has.
_plugged: dict[str, Backend | None] = {}


def built_in(name: str) -> Backend:
    """The built-in backend of a name, whose module is imported now if it was not."""
    if name not in _loaded:
        module = import_module(f"etdeploy.backends.{BUILT_IN[name].module}")
        _loaded[name] = getattr(module, name.upper())
    return _loaded[name]


def built_in_backends() -> tuple[Backend, ...]:
    """Every built-in backend; imports all of them."""
    return tuple(map(built_in, BUILT_IN))


def exporting_backends() -> dict[str, Backend]:
    """The built-in backends that a recipe can name, by name; imports all of them."""
    return {name: built_in(name) for name in _EXPORTING}


def exporting_names() -> tuple[str, ...]:
    """What a recipe can name, with the plug-ins of other packages; nothing is imported."""
    return (*_EXPORTING, *plugged_names())


@functools.cache
def plugged_names() -> tuple[str, ...]:
    """The names of the backends of all other packages; they are not imported."""
    return tuple(name for name in plugin_names(GROUP) if name not in _EXPORTING)


def plugged_backends() -> dict[str, Backend]:
    """The backends of all other packages, by name.

    Raises:
        UsageError: One of them cannot be loaded; names its package.
    """
    return {name: backend for name in plugged_names() if (backend := plugged_backend(name))}


def find_backend(name: str) -> Backend | None:
    """The backend that a recipe calls so; None if there is none to export for.

    Raises:
        UsageError: It is a plug-in that cannot be loaded.
    """
    backend = built_in(name) if name in _EXPORTING else plugged_backend(name)
    return backend if backend and backend.lowering else None


def backend_named(name: str) -> Backend:
    """The backend that a loaded recipe names.

    Raises:
        KeyError: There is none; a loaded recipe names one that there is.
        UsageError: It is a plug-in that cannot be loaded.
    """
    backend = find_backend(name)
    if backend is None:
        raise KeyError(name)
    return backend


def backend_of(delegate_id: str) -> Backend | None:
    """The backend whose delegates carry this id; None for an unknown one.

    Raises:
        UsageError: The id is not a built-in backend's, and a plug-in cannot be loaded.
    """
    for name, entry in BUILT_IN.items():
        if entry.delegate_id == delegate_id:
            return built_in(name) if name in _EXPORTING else plugged_backend(name) or built_in(name)
    return next((b for b in _plugins() if b.delegate_id == delegate_id), None)


def known_backends() -> tuple[Backend, ...]:
    """The built-in backends, all imported, and the plug-ins that something named in this process.

    For messages and for what can use any backend; a plan asks for those that it has.
    """
    return tuple(({each.name: each for each in built_in_backends()} | _named_plugins()).values())


def known_entries() -> Mapping[str, BackendEntry]:
    """The same by name, without importing a built-in backend."""
    return BUILT_IN | {
        name: BackendEntry("", backend.delegate_id, backend.component, backend.switch)
        for name, backend in _named_plugins().items()
    }


def _named_plugins() -> dict[str, Backend]:
    return {name: backend for name, backend in _plugged.items() if backend}


def backends_with(components: Iterable[str]) -> tuple[Backend, ...]:
    """The known backends that these components of the runtime register."""
    wanted, plugged = set(components), _named_plugins()
    return tuple(
        plugged.get(name) or built_in(name)
        for name, entry in known_entries().items()
        if entry.component in wanted
    )


def backends_built_with(options: Mapping[str, str | None]) -> tuple[Backend, ...]:
    """The known backends whose components a build with these cmake options has."""
    entries = known_entries().values()
    return backends_with(
        entry.component
        for entry in entries
        if entry.component and entry.switch and options.get(entry.switch) == "ON"
    )


def known_socs() -> frozenset[str]:
    """The part numbers of every SoC that a backend compiles for."""
    return frozenset(soc for backend in known_backends() for soc in backend.socs)


def code_of(backend: Backend) -> str | None:
    """A digest of a plug-in's code, for keys of what it decides; None for a built-in backend."""
    if _loaded.get(backend.name) is backend:
        return None
    return plugin_code(GROUP, backend.name, *filter(None, [backend.lowering]))


def release_of(name: str) -> str | None:
    """The package that brings a backend, with its version; None for a built-in backend."""
    if name in _EXPORTING or name not in plugged_names():
        return None
    return plugin_owner(GROUP, name)


def _plugins() -> Iterator[Backend]:
    """Every plug-in, those that were named before first."""
    names = dict.fromkeys((*_plugged, *plugged_names()))
    yield from filter(None, map(plugged_backend, names))


def plugged_backend(name: str) -> Backend | None:
    """The backend that another package brings under a name; None if no package does."""
    if name not in _plugged:
        found = load_plugin(GROUP, name, Backend)
        if found and found.name != name:
            raise UsageError(
                f"the plug-in {name!r} of the package {plugin_owner(GROUP, name)} calls its "
                f"backend {found.name!r}",
                remedy="The entry point and the backend must have the same name: tell its author.",
            )
        if found:
            check_hooks(GROUP, name, found, Backend)
        _plugged[name] = found
    return _plugged[name]


def plugged_findings(station: Workstation) -> Iterator[DoctorCheck]:
    """Each plug-in with what it looks for itself, or why it cannot be used."""
    for name in plugin_names(GROUP):
        owner = plugin_owner(GROUP, name)
        if name in _EXPORTING:
            why = f"{owner} has a backend {name!r}, and so has etdeploy, which uses its own."
            yield _finding(name, None, f"{why}\nTell its author, who can choose another name.")
            continue
        try:
            backend = plugged_backend(name)
        except UsageError as error:
            yield _finding(name, None, f"{error.message}\n{error.remedy}")
            continue
        yield _finding(name, owner, None)
        try:
            with attributed():
                yield from backend.findings(station) if backend else ()
        except PluginError as error:
            yield _finding(f"{name}: its findings", None, str(error))


def _finding(name: str, found: str | None, remedy: str | None) -> DoctorCheck:
    return DoctorCheck(
        name=f"backend {name}",
        state="ok" if found else "optional",
        found=found,
        needed_for="recipes and programs that name it",
        remedy=remedy,
    )
