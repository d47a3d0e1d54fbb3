"""The layout that docs/design.md promises: direction of imports, and one owner for each thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "etdeploy"

# From the top down; a package imports only from lower lines (and itself).
LAYERS = (
    ("cli",),
    ("serve", "evaluate"),
    ("farm", "session", "tune"),
    ("graph", "doctor"),
    ("apps", "report", "device_pool"),
    ("profile", "history"),
    ("compare",),
    ("bench",),
    ("devices", "runner", "export"),
    ("provider",),
    ("plan", "custom_ops"),
    ("program",),
    ("recipe",),
    ("backends",),
    ("targets",),
    ("cache",),
    ("core",),
)
RANK = {package: len(LAYERS) - i for i, layer in enumerate(LAYERS) for package in layer}
# Subpackages, from the top down: one imports only from lower lines of its package (and itself). ""
# stands for the modules that no line names.
ROOMS = {
    "devices": (("registry",), ("android", "ios", "ssh"), ("adb", "local", "remote"), ("",)),
    "graph": (("",), ("tasks",)),
    "runner": (("",), ("tools",)),
    "bench": (("",), ("records",)),
}

# The farm's modules for several hosts.
DASK = tuple(f"farm/engine/{name}.py" for name in ("cluster", "host", "settings", "wire"))
# Who alone may import what.
OWNERS = {
    "doit": ("graph/tasks/engine.py",),
    "subprocess": ("core/processes/process.py",),
    "multiprocessing": ("export/worker/background.py",),  # a fork without another program
    "rich": ("core/console.py",),
    "starlette": ("serve/*",),
    "uvicorn": ("serve/server.py",),
    "alembic": ("history/store/*",),
    "sqlalchemy": ("history/store/*",),
    "torch": ("export/worker/*", "profile/worker/*"),
    "torchao": ("export/worker/*",),
    "executorch": ("export/worker/*", "profile/worker/*"),
    "coremltools": ("export/worker/*",),
    "transformers": ("export/worker/*",),
    # The recipe for a model is chosen by its configuration, before there is a child process.
    "huggingface_hub": ("export/worker/*", "export/hf/config.py"),
    "adb_shell": ("devices/adb/*", "devices/android/*"),
    "adbutils": ("devices/adb/*", "devices/android/*"),
    "pymobiledevice3": (),
    "distributed": DASK,
    "dask": DASK,
}
# What the same values make the same on every machine, and what it must not ask therefore.
PURE = ("plan",)
MACHINE = (
    "os", "sys", "time", "datetime", "platform", "pathlib", "shutil", "socket", "random",
    "etdeploy.core.processes.process", "etdeploy.cache",
    "etdeploy.core.console", "etdeploy.core.files",
)  # fmt: skip
FILE_METHODS = (".read_text", ".read_bytes", ".exists", ".is_file", ".is_dir", ".iterdir", ".stat")
# Where a backend has its place, and what may name one elsewhere, with the reason.
BACKENDS = re.compile(r"qnn|xnnpack|vulkan|core_?ml|openvino", re.IGNORECASE)
OF_BACKENDS = ("backends/*", "export/worker/backends/*")
NAMING_BACKENDS = {
    "plan/cmake_options.py": "lists every option of ExecuTorch's releases, as their files do",
    "recipe/llm_config.py": "reads keys of ExecuTorch's LlmConfig, which has one for each backend",
    "provider/checkout.py": "ExecuTorch keeps its thread pool's sources in XNNPACK's folder",
    "runner/kernel_sources.py": "reads what XNNPACK's own cmake file downloads",
    "targets/ndk.py": "says what an old NDK cannot compile",
}
# Slow to import, so a verb that does not need them must not pay: only inside functions.
HEAVY = {
    "alembic", "dask", "distributed", "plotly", "psutil", "sqlalchemy",
    "adb_shell", "adbutils", "cryptography", "doit", "elftools", "flatbuffers", "jinja2", "numpy",
    "rich", "torch",
}  # fmt: skip
# What only the actions of steps use: a run that skips them must not pay for it either.
OF_ACTIONS = {
    "etdeploy.bench.assemble", "etdeploy.bench.measure", "etdeploy.custom_ops.kernels",
    "etdeploy.bench.bundle", "etdeploy.provider.clone",
    "etdeploy.history.record_sink",
    "etdeploy.runner.builder", "etdeploy.runner.missing",
}  # fmt: skip
# Where a heavy import at the top costs nobody else: these modules are imported when needed.
HEAVY_OWNERS = (
    "export/worker/*", *DASK, "history/store/*", "profile/worker/*",
)  # fmt: skip
PRINTS = {"print", "sys.stdout", "sys.__stdout__"}
STARTS = re.compile(r"os\.(system|popen|fork|forkpty|exec[lv]p?e?|spawn\w+|posix_spawnp?)")


@dataclass(frozen=True)
class Use:
    """A name that a module imports or refers to, and where."""

    name: str
    line: int
    top: bool = False


def imports(tree: ast.Module) -> Iterator[Use]:
    """Every imported module; `top` when importing the module imports it too."""
    lazy = {id(n) for f in ast.walk(tree) if isinstance(f, _LAZY) for n in ast.walk(f)}
    lazy |= {id(n) for f in ast.walk(tree) if _is_for_types(f) for n in ast.walk(f)}
    for node in ast.walk(tree):
        top = id(node) not in lazy
        if isinstance(node, ast.Import):
            yield from (Use(alias.name, node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from etdeploy.core import console` imports the module etdeploy.core.console.
            yield from (Use(f"{module}.{alias.name}", node.lineno, top) for alias in node.names)


_LAZY = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def names(tree: ast.Module) -> Iterator[Use]:
    """Every dotted name that is read or called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            yield Use(ast.unparse(node), node.lineno)


def wrong_direction(path: str, tree: ast.Module) -> Iterator[str]:
    own = path.split("/")[0].removesuffix(".py")
    for use in imports(tree):
        parts = use.name.split(".")
        if not parts[0]:
            yield f"{path}:{use.line}: the relative import {use.name} hides its direction"
        if parts[0] != "etdeploy" or len(parts) < 2 or parts[1] not in RANK or parts[1] == own:
            continue
        if own in RANK and RANK[parts[1]] >= RANK[own]:
            yield f"{path}:{use.line}: {own} imports {use.name}"


def wrong_room(path: str, tree: ast.Module) -> Iterator[str]:
    """Imports of a room from one that stands before it in its package."""
    package = path.split("/")[0]
    own = _room(path.removesuffix(".py").replace("/", "."))
    for use in imports(tree):
        parts = use.name.split(".")
        if package not in ROOMS or parts[:2] != ["etdeploy", package]:
            continue
        other = _room(".".join(parts[1:]))
        if other != own and _line(package, other) <= _line(package, own):
            yield f"{path}:{use.line}: {own or package} imports {use.name}"


def _room(module: str) -> str:
    """The room that a module is in; "" for none: `devices.adb.wire` is in `adb`."""
    package, name, *_ = [*module.split("."), ""]
    return name if any(name in line for line in ROOMS.get(package, ())) else ""


def _line(package: str, room: str) -> int:
    return next(i for i, line in enumerate(ROOMS[package]) if room in line)


def impure(path: str, tree: ast.Module) -> Iterator[str]:
    """Ways to a process, the environment, the clock, files or the cache, in what has to be pure."""
    if path.split("/")[0] not in PURE:
        return
    for use in imports(tree):
        if use.name.startswith(MACHINE):
            yield f"{path}:{use.line}: imports {use.name}"
    for use in names(tree):
        if use.name == "open" or use.name.endswith(FILE_METHODS):
            yield f"{path}:{use.line}: {use.name}"


def wrong_owner(path: str, tree: ast.Module) -> Iterator[str]:
    for use in imports(tree):
        owners = OWNERS.get(use.name.split(".")[0])
        if owners is not None and not any(fnmatch(path, owner) for owner in owners):
            yield f"{path}:{use.line}: imports {use.name}"


def heavy_at_the_top(path: str, tree: ast.Module) -> Iterator[str]:
    for use in imports(tree):
        if use.top and use.name.split(".")[0] in HEAVY:
            yield f"{path}:{use.line}: imports {use.name} whenever it is imported"


def starts_processes(path: str, tree: ast.Module) -> Iterator[str]:
    for use in names(tree):
        if STARTS.fullmatch(use.name):
            yield f"{path}:{use.line}: {use.name}"


def prints(path: str, tree: ast.Module) -> Iterator[str]:
    for use in names(tree):
        if use.name in PRINTS:
            yield f"{path}:{use.line}: {use.name}"


def names_a_backend(path: str, tree: ast.Module) -> Iterator[str]:
    """Backends in identifiers and strings; prose, in docstrings and comments, may name them."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        for text in _texts(node) if id(node) not in prose else ():
            if BACKENDS.search(text):
                yield f"{path}:{getattr(node, 'lineno', 0)}: {text[:60]}"


def _texts(node: ast.AST) -> Iterator[str]:
    """The identifiers and the string of one node."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, str):
            yield value


Rule = Callable[[str, ast.Module], Iterator[str]]
# Each rule with the modules that it spares.
RULES: dict[Rule, tuple[str, ...]] = {
    wrong_direction: (),
    wrong_room: (),
    impure: (),
    wrong_owner: (),
    heavy_at_the_top: HEAVY_OWNERS,
    # The preloaded worker forks itself: only it knows whether that is safe.
    starts_processes: ("core/processes/process.py", "export/worker/serve.py"),
    prints: ("core/console.py",),
    names_a_backend: (*OF_BACKENDS, *NAMING_BACKENDS),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert len(modules) > 50
    broken = [
        text
        for name, path in sorted(modules.items())
        if not any(fnmatch(name, spared) for spared in RULES[rule])
        for text in rule(name, ast.parse(path.read_text()))
    ]
    assert broken == []


def test_a_run_with_nothing_to_do_imports_no_module_of_an_action() -> None:
    found: set[str] = set()
    waiting = {"etdeploy.cli.verbs.run", "etdeploy.graph.invocation"}
    while waiting:
        module = waiting.pop()
        found.add(module)
        path = PACKAGE.parent / (module.replace(".", "/") + ".py")
        tops = [use.name for use in imports(ast.parse(path.read_text())) if use.top]
        waiting |= {name for top in tops for name in _modules(top)} - found
    assert len(found) > 50
    assert found & OF_ACTIONS == set()


def _modules(name: str) -> Iterator[str]:
    """The modules of etdeploy that importing this name imports."""
    for module in (name, name.rpartition(".")[0]):
        if (
            module.startswith("etdeploy.")
            and (PACKAGE.parent / (module.replace(".", "/") + ".py")).is_file()
        ):
            yield module


def _bound(tree: ast.Module) -> Iterator[str]:
    """The names that a module binds, wherever."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_benchmarks_import_what_exists() -> None:
    """Nothing else runs or type-checks them."""
    missing = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            source = node.module
            if source.partition(".")[0] not in ("etdeploy", "tests"):
                continue
            folder = ROOT.joinpath(*source.split("."))
            file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            known = set(_bound(ast.parse(file.read_text()))) if file.is_file() else set()
            for name in (alias.name for alias in node.names):
                if name not in known and not any(folder.glob(f"{name}*")):
                    missing.append(f"{path.name}: from {source} import {name}")
    assert missing == []


def test_the_name_of_a_class_is_unique() -> None:
    """So that a search for a name finds one thing."""
    owners: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where = f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}"
                owners.setdefault(node.name, []).append(where)
    assert len(owners) > 50
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(RANK)


def test_the_layers_are_those_of_the_design() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    [line] = re.findall(r"^Direction of imports: `(.*)`", text, re.MULTILINE)
    written = [tuple(re.findall(r"\w+", part)) for part in line.split("->")]
    assert [set(layer) for layer in written] == [set(layer) for layer in LAYERS]


@pytest.mark.parametrize(
    ("rule", "path", "code"),
    [
        (wrong_direction, "core/x.py", "from etdeploy.recipe.load import load_recipe"),
        (wrong_direction, "core/x.py", "def f():\n    import etdeploy.cli.main"),
        (wrong_direction, "backends/x.py", "from etdeploy.recipe import model"),
        (wrong_direction, "targets/x.py", "from etdeploy.backends import base"),
        (wrong_direction, "bench/x.py", "from etdeploy import report"),
        (wrong_direction, "devices/x.py", "from ..graph import engine"),
        (wrong_direction, "doctor.py", "import etdeploy.cli.main"),
        (wrong_direction, "plan/x.py", "from etdeploy.runner.toolchains import find_zig"),
        (wrong_room, "devices/adb/x.py", "from etdeploy.devices.android import link"),
        (wrong_room, "devices/remote/x.py", "from etdeploy.devices.adb.wire import Packet"),
        (wrong_room, "devices/local/x.py", "from etdeploy.devices.adb.wire import Packet"),
        (wrong_room, "devices/local/x.py", "from etdeploy.devices.registry import open_device"),
        (
            wrong_room,
            "graph/tasks/x.py",
            "from etdeploy.graph.jobs import RecipeDevicePair",
        ),
        (wrong_room, "bench/records/x.py", "from etdeploy.bench import measure"),
        (impure, "plan/x.py", "import os"),
        (impure, "plan/x.py", "from time import time"),
        (impure, "plan/x.py", "from etdeploy.core.processes import process"),
        (impure, "plan/x.py", "from etdeploy.cache.workspace import Workspace"),
        (impure, "plan/x.py", "def f(path):\n    return path.read_text()"),
        (wrong_owner, "graph/pipeline.py", "from doit.task import Task"),
        (wrong_owner, "devices/host.py", "def f():\n    import subprocess as s"),
        (wrong_owner, "export/run.py", "import torch.nn"),
        (wrong_owner, "devices/local/device.py", "from adb_shell.auth import keygen"),
        (heavy_at_the_top, "bench/x.py", "import numpy as np"),
        (heavy_at_the_top, "bench/x.py", "class A:\n    import numpy"),
        (starts_processes, "cli/x.py", "import os\nos.execv('x', [])"),
        (starts_processes, "cli/x.py", "import os\nrun = os.system"),
        (names_a_backend, "plan/x.py", "if name == 'qnn': pass"),
        (names_a_backend, "runner/x.py", "def find_vulkan_sdk(): ..."),
        (names_a_backend, "graph/x.py", "import etdeploy.backends.xnnpack"),
        (names_a_backend, "bench/x.py", "text = f'see CoreMLBackend {name}'"),
        (prints, "cli/x.py", "print(1)"),
        (prints, "cli/x.py", "import sys\nsys.stdout.write('')"),
    ],
)
def test_the_rules_see_what_they_forbid(rule: Rule, path: str, code: str) -> None:
    assert len(list(rule(path, ast.parse(code)))) == 1


@pytest.mark.parametrize(
    ("rule", "path", "code"),
    [
        (wrong_direction, "cli/x.py", "from etdeploy.core import console\nimport etdeploy"),
        (
            wrong_direction,
            "recipe/x.py",
            "from etdeploy.recipe.document import SourceLocation\nimport yaml",
        ),
        (wrong_room, "devices/android/x.py", "from etdeploy.devices.adb.wire import Packet"),
        (wrong_room, "devices/registry.py", "from etdeploy.devices.local import device"),
        (impure, "plan/x.py", "from etdeploy.core.values import Value"),
        (impure, "runner/x.py", "import os"),
        (wrong_owner, "devices/android/push.py", "import adb_shell"),
        (wrong_owner, "export/worker/trace.py", "import torch"),
        (heavy_at_the_top, "bench/x.py", "def f():\n    import numpy"),
        (heavy_at_the_top, "bench/x.py", "if TYPE_CHECKING:\n    import numpy"),
        (names_a_backend, "cli/x.py", 'def f():\n    """As with QNN."""  # and XNNPACK'),
        (prints, "cli/x.py", "blueprint = 1\nfingerprint(blueprint)"),
    ],
)
def test_the_rules_let_the_rest_pass(rule: Rule, path: str, code: str) -> None:
    assert list(rule(path, ast.parse(code))) == []
