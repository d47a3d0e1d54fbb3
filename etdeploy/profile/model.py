"""Where the time of an inference goes, as a value."""

from __future__ import annotations

from etdeploy.bench.records.generation import MethodTrace
from etdeploy.core.values import Value
from etdeploy.program.folder import FORWARD


class OperatorTime(Value):
    """An operator or a delegate's node with its time in one inference, the mean over those traced.

    Attributes:
        name: Of the kernel, or of the delegate's node.
        calls: In one inference.
        total_ms: With what is inside; a delegate's call includes its nodes.
        self_ms: Without.
        share: `self_ms` by the inference's time, from 0 to 1.
        module: Path of the PyTorch module; empty where it is not known.
        source: `file:line` of the model's code; empty where it is not known.
        delegate: Name of the backend that computed it; empty for a kernel.
        not_delegated: Why no backend took it; empty where one did or nothing is known.
    """

    name: str
    calls: int
    total_ms: float
    self_ms: float
    share: float
    module: str = ""
    source: str = ""
    delegate: str = ""
    not_delegated: str = ""


class ModuleTime(Value):
    """A module of the PyTorch model with its time in one inference.

    Attributes:
        path: As in `named_modules`; empty for the model itself.
        kind: Name of its class; empty where it is not known.
        total_ms: With its children.
        self_ms: Without them.
        delegates: Time of `total_ms` by backend; "" for kernels.
        children: Modules in it.
    """

    path: str
    kind: str
    total_ms: float
    self_ms: float
    delegates: dict[str, float] = {}
    children: tuple[ModuleTime, ...] = ()


class Span(Value):
    """One event of one traced inference, for a timeline.

    Attributes:
        name: Of the kernel, the delegate's call or its node.
        start_ms: Since the inference began; null where the delegate gives durations only.
        duration_ms: How long it took.
        depth: 0 for what the runtime calls, 1 for what is inside a delegate.
        module: As in OperatorTime.
        delegate: As in OperatorTime.
    """

    name: str
    start_ms: float | None
    duration_ms: float
    depth: int
    module: str = ""
    delegate: str = ""


class Profile(Value):
    """Where the time of an inference goes, from the trace of the profile pass.

    Attributes:
        run_id: Of the run.
        inferences: How many were traced.
        inference_ms: Mean time of one while it was traced.
        untraced_ms: Median time of one in the timing pass; the tracer is not in it.
        operators: The most expensive first.
        modules: The model as a tree; null without an ETRecord.
        outside_delegates: Share of `inference_ms` that is in no delegate, from 0 to 1: what the
            runtime does between operators is in it.
        shares: From 0 to 1, of `inference_ms`: each delegate by its name, `copy_`, `index_put`,
            `views` (slice, expand, view and other copies of layout), `rest`, `runtime` (time of the
            inference in no event).
        bottleneck: One sentence, with the remedy where there is one.
        spans: Of one inference, in the order in which they began.
        notes: What a reader has to know, such as what is missing and why.
        method: Of the program, that was traced.
        text: Which of the method's calls were traced, of a program that generates text; null for
            others. An inference is a call of the method.
    """

    run_id: str
    inferences: int
    inference_ms: float
    untraced_ms: float | None
    operators: tuple[OperatorTime, ...]
    modules: ModuleTime | None
    shares: dict[str, float]
    outside_delegates: float
    bottleneck: str
    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()
    method: str = FORWARD
    text: MethodTrace | None = None

    @property
    def unit(self) -> str:
        """What was traced: an inference, or a call of the method."""
        return "inference" if self.text is None else f"call of {self.method}"


class TextProfile(Value):
    """Where the time of a program that generates text goes, for each of its methods.

    Attributes:
        run_id: Of the run.
        method: The one that stands for the run.
        methods: By name; that one first.
    """

    run_id: str
    method: str
    methods: dict[str, Profile]
