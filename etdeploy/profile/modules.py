"""The time of a model's modules, as a tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from etdeploy.profile.calls import Call, Chain
from etdeploy.profile.model import ModuleTime


@dataclass
class _Growing:
    path: str
    kind: str
    self_ms: float = 0.0
    delegates: dict[str, float] = field(default_factory=dict)
    children: dict[str, _Growing] = field(default_factory=dict)

    def finished(self) -> ModuleTime:
        children = [child.finished() for child in self.children.values()]
        delegates = dict(self.delegates)
        for child in children:
            for name, time_ms in child.delegates.items():
                delegates[name] = delegates.get(name, 0.0) + time_ms
        return ModuleTime(
            path=self.path,
            kind=self.kind,
            total_ms=self.self_ms + sum(child.total_ms for child in children),
            self_ms=self.self_ms,
            delegates=delegates,
            children=tuple(children),
        )


def module_tree(calls: Iterable[Call]) -> ModuleTime:
    """The modules in the order in which they are called first.

    The time of a partition whose nodes have no times of their own belongs to the module that all
    of them are in.
    """
    root = _Growing("", "")
    for call in calls:
        place = _place(root, call.modules)
        place.self_ms += call.self_ms
        place.delegates[call.delegate] = place.delegates.get(call.delegate, 0.0) + call.self_ms
    return root.finished()


def _place(root: _Growing, modules: Chain) -> _Growing:
    place = root
    for path, kind in modules:
        if not path:
            root.kind = root.kind or kind
        else:
            place = place.children.setdefault(path, _Growing(path, kind))
    return place
