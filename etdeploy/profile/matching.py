"""Whether a trace and an ETRecord are of the same program."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import UsageError
from etdeploy.core.text.shell import quoted
from etdeploy.profile.nesting import DELEGATE_CALL, KERNEL
from etdeploy.profile.protocol import Trace


def require_same_program(run: StoredRun, trace: Trace) -> None:
    """Refuses to name a trace's operators after another program's modules.

    Raises:
        UsageError: The ETRecord is another program's.
    """
    found = list(_agreements(trace))
    if found and sum(found) * 2 < len(found):
        etrecord = str(run.path("etrecord"))
        raise UsageError(
            f"the ETRecord is of another program than the trace: {len(found) - sum(found)} of "
            f"{len(found)} calls do not agree with it",
            place=etrecord,
            remedy="Put the program's own ETRecord there, or move this one away to see operators "
            f"without modules: mv {quoted(etrecord)} {quoted(etrecord + '.other')}",
        )


def _agreements(trace: Trace) -> Iterator[bool]:
    """For each call whether the graph has such an operator, or such a delegate, at its place.

    After the export ExecuTorch replaces some operators, so a few calls never agree. Those that it
    adds then, such as what writes a cache in place, name no operator of the graph and say nothing.
    """
    if trace.graph is None:
        return
    for event in (event for block in trace.blocks for event in block):
        if event.name == DELEGATE_CALL:
            yield bool(event.backend)
        elif event.name.startswith(KERNEL) and event.handles:
            base = event.name.removeprefix(KERNEL).partition(".")[0]
            nodes = [node for each in event.handles for node in trace.graph.get(each, ())]
            yield not event.backend and any(n.op.partition("::")[2] == base for n in nodes)
