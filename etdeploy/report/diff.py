"""The comparison of a program with eager, node by node: as text and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.backends.schemes import FLOAT_SCHEMES, module_label
from etdeploy.bench.diff import DiffReport
from etdeploy.bench.verdict import explain, strain
from etdeploy.core.console import count
from etdeploy.core.errors import MismatchError
from etdeploy.export.diff import LayerSensitivity, ModelNode, NodeError
from etdeploy.report.document import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Fact,
    Facts,
    Figure,
    Page,
    PageSection,
    Source,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.plots import Values, axis, escape, rounded
from etdeploy.report.terminal import render

_NEIGHBOURS = 3
_LAYERS = 10
_STAGES = {
    "none": ("no wrong node", GOOD),
    "random": ("the model is random", WARN),
    "undefined": ("the model's own values are undefined", WARN),
    "rewrite": ("a rewrite of the graph is wrong", BAD),
    "backend": ("a node is wrong", BAD),
    "accumulated": ("no node alone is wrong", WARN),
    "vanished": ("the fault vanishes when nodes are observed", WARN),
}


def diff_blocks(report: DiffReport) -> Iterator[Block]:
    """The finding, its neighbours, and what quantization costs."""
    yield Facts(tuple(_facts(report)))
    if report.culprit:
        yield _neighbours(report, report.culprit)
    yield from _sensitivity(report)


def diff_text(report: DiffReport, width: int | None) -> str:
    """The report for a terminal; a section of a recipe stands at its end, to be copied."""
    text = render(diff_blocks(report), width)
    return f"{text}\n\n{report.overrides.yaml}" if report.overrides else text


def require_agreement(report: DiffReport) -> None:
    """Raises MismatchError if the program's outputs are wrong."""
    wrong = report.wrong_outputs
    if not wrong:
        return
    worst = max(wrong, key=lambda check: (check.problem is not None, strain(check)))
    where = f"; the first wrong node is {_place(report.culprit.node)}" if report.culprit else ""
    raise MismatchError(
        f"{worst.name} differs from the model's: {explain(worst)}{where}",
        place=report.device,
        remedy=_remedy(report),
    )


def _remedy(report: DiffReport) -> str:
    if report.stage == "rewrite":
        return "Export without rewrites: --set export.rewrites=none"
    if report.stage == "random":
        return "Make the model deterministic: call eval(), and seed or remove what draws numbers."
    if report.stage == "undefined":
        return "Give inputs that the model has finite values for."
    if report.stage == "accumulated":
        scheme = report.overrides.scheme if report.overrides else "none"
        return (
            "Make the layers whose errors grow most along the graph more exact, or all:\n"
            f"--set export.quantization={scheme}"
            if report.quantization not in FLOAT_SCHEMES
            else "If the outputs are good enough for their use, set benchmark.tolerance."
        )
    if report.stage == "vanished":
        return "Report what the backend fuses to its authors, with the smallest model."
    if report.culprit and report.backend != "portable":
        return (
            "Compare with ExecuTorch's own kernels, which tells a fault of the backend from one of "
            "the kernel:\n--set export.backend=portable"
        )
    return "Report the node with its inputs' shapes to the authors of its kernel."


def _facts(report: DiffReport) -> Iterator[Fact]:
    title, tone = _STAGES[report.stage]
    yield Fact("result", tuple(_explained(report)), title, tone)
    yield Fact("program", (f"{report.backend}, {report.quantization}, on {report.device}",))
    for check in report.outputs:
        word = {True: "correct", False: "WRONG", None: "not compared"}[check.within_tolerance]
        yield Fact("output", (f"{check.name}: {explain(check)}",), word,
                   BAD if check.within_tolerance is False else "")  # fmt: skip
    if node := _subject(report):
        shape = f", {node.dtype} {list(node.shape)}" if node.dtype else ""
        yield Fact("node", (f"{node.name}, {node.operator}{shape}",))
        yield Fact("module", (module_label(node.module),))
        if node.file:
            yield Fact("line", (f"{node.file}:{node.line}", *([node.code] if node.code else [])))
        if node.rewrite:
            yield Fact("put there by", (f"the rewrite {node.rewrite}",))
    if report.culprit:
        each = report.culprit
        yield Fact("local error", (f"{_number(each.local_error)}, of values up to "
                                   f"{_number(each.largest)}; allowed are "
                                   f"{_number(each.allowed_error)}",))  # fmt: skip
    elif report.errors and report.stage in ("none", "accumulated"):
        near = max(report.errors, key=lambda each: each.strain)
        yield Fact("nearest", (f"{_place(near.node)}: local error {_number(near.local_error)}, "
                               f"allowed are {_number(near.allowed_error)}",))  # fmt: skip
    observed = [str(each.observed) for each in report.rounds if each.failed is None]
    yield Fact(
        "observed", (f"{' + '.join(observed)} nodes, {count(len(report.rounds), 'program')}",)
    )
    for note in report.notes:
        yield Fact("note", (note,))


def _subject(report: DiffReport) -> ModelNode | None:
    if report.stage == "rewrite" and report.rewrite_error:
        return report.rewrite_error.node
    if report.stage == "random":
        return report.random[0]
    if report.stage == "undefined":
        return report.undefined
    return report.culprit.node if report.culprit else None


def _explained(report: DiffReport) -> Iterator[str]:
    if report.stage == "rewrite" and report.rewrite_error:
        error = report.rewrite_error
        by = f" by {', '.join(error.rewrites)}" if error.rewrites else ""
        yield (
            f"its value in eager changes{by}: largest difference {_number(error.error)}, allowed "
            f"are {_number(error.allowed)}"
        )
    if report.stage == "random":
        yield "two evaluations of the node in eager differ, so there is nothing to compare with"
    if report.stage == "undefined":
        if report.undefined_inputs:
            yield f"the inputs {', '.join(report.undefined_inputs)} have NaN"
        elif report.undefined:
            yield "it is the first whose eager value has NaN, and its inputs have none"
    if report.stage == "backend" and report.culprit:
        yield (
            "lowering or runtime: the device's value is not what eager computes from the device's "
            "own inputs of the node"
        )
        if len(report.region) > 1:
            names = ", ".join(node.name for node in report.region)
            yield f"it is one of these, which cannot be observed apart: {names}"
    if report.stage == "accumulated":
        yield "each node is as exact as its inputs allow; the errors add up along the graph"
    if report.stage == "vanished":
        yield (
            "with observed nodes, the backend computes the outputs right: it fuses other operators "
            "then"
        )


def _place(node: ModelNode) -> str:
    at = f" of {node.module}" if node.module else ""
    line = f" ({node.file}:{node.line})" if node.file else ""
    return f"{node.name}{at}{line}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3g} %"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3g}"


_COLUMNS = ("node", "operator", "module", "local error", "allowed", "accumulated", "")
_RIGHT = ("local error", "allowed", "accumulated")


def _neighbours(report: DiffReport, culprit: NodeError) -> Table:
    """The wrong node and those around it, of the round with most nodes."""
    errors = list(report.errors)
    names = [each.node.name for each in errors]
    if culprit.node.name not in names:
        names.append(culprit.node.name)
        errors.append(culprit)
    place = names.index(culprit.node.name)
    near = errors[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS + 1]
    rows = [_row(each, is_culprit=each.node.name == culprit.node.name) for each in near]
    return table("Around the first wrong node", _COLUMNS, rows, _RIGHT)


def _row(each: NodeError, *, is_culprit: bool = False) -> list[object]:
    wrong = each.strain > 1
    word = "FIRST WRONG" if is_culprit else "wrong" if wrong else ""
    local = "undefined" if each.odd_places else _number(each.local_error)
    return [
        code(each.node.name),
        code(each.node.operator),
        code(each.node.module),
        Cell(local, BAD if wrong else ""),
        _number(each.allowed_error),
        _number(each.accumulated_error),
        Cell(word, BAD if wrong else QUIET),
    ]


def _sensitivity(report: DiffReport) -> Iterator[Block]:
    found = report.sensitivity
    if found is None:
        return
    if found.problem:
        yield Text(found.problem, title="quantization")
        return
    yield Text(
        f"The quantization moves the outputs by {100 * found.error:.3g} % of their size (root mean "
        f"square, {found.inputs} inputs).",
        title="quantization",
    )
    yield _layers(found.layers[:_LAYERS], len(found.layers))
    if suggestion := report.overrides:
        is_float = suggestion.scheme in FLOAT_SCHEMES
        kept = "stay in floats" if is_float else f"have {suggestion.scheme}"
        how = "exported and measured" if suggestion.exported else "computed eagerly"
        yield Text(
            f"With these overrides, {how}: {100 * suggestion.before:.3g} % becomes "
            f"{100 * suggestion.after:.3g} %; {suggestion.weights_percent:.1f} % of the weights "
            f"{kept}.",
            title="suggestion",
        )
        yield Source(suggestion.yaml)


def _layers(layers: Sequence[LayerSensitivity], total: int) -> Table:
    rows = [
        [code(each.module or f"({module_label('')})"), each.operators, f"{each.weights:,}",
         _percent(each.alone), _percent(each.without)]
        for each in layers
    ]  # fmt: skip
    columns = ("module", "operators", "weights", "only it quantized", "all but it")
    more = f"and {total - len(layers)} more" if total > len(layers) else ""
    return table("What the quantization of each module costs", columns, rows, columns[1:], more)


def diff_page(report: DiffReport) -> Page:
    """The page, with the error along the graph."""
    title, tone = _STAGES[report.stage]
    sections = [
        PageSection("finding", "Finding", tuple(diff_blocks(report)), is_open=True),
        PageSection("graph", "Error along the graph", (plot_errors("errors", report),)),
        PageSection("nodes", "Nodes", (_nodes(report),)),
    ]
    return Page(
        title=f"{report.recipe}: first wrong node",
        subtitle=f"{report.backend}, {report.quantization}, on {report.device}",
        badges=(Cell(title, tone),),
        cards=tuple(_cards(report)),
        notices=(),
        sections=tuple(sections),
    )


def _cards(report: DiffReport) -> Iterator[Card]:
    node = _subject(report)
    title, tone = _STAGES[report.stage]
    yield Card(
        "first wrong node", node.name if node else "none", lines=(title,), tone=tone, lead=True
    )
    wrong = sum(each.strain > 1 for each in report.errors)
    yield Card("wrong nodes", str(wrong), lines=(f"of {len(report.errors)} observed",))


def _nodes(report: DiffReport) -> Table:
    name = report.culprit.node.name if report.culprit else None
    rows = [_row(each, is_culprit=each.node.name == name) for each in report.errors]
    return table("Every observed node", _COLUMNS, rows, _RIGHT)


def plot_errors(key: str, report: DiffReport) -> Figure:
    """Local, allowed and accumulated error of each node, by that node's largest value."""
    errors = report.errors
    traces = [
        _trace("local error", errors, [each.local_error for each in errors], "@blue", "markers"),
        _trace("allowed", errors, [each.allowed_error for each in errors], "@grey", "lines"),
        _trace("accumulated", errors, [e.accumulated_error for e in errors], "@orange", "lines"),
    ]
    wrong = [each for each in errors if each.strain > 1]
    if wrong:
        own = _trace("wrong", errors, [e.local_error if e.strain > 1 else None for e in errors],
                     "@red", "markers")  # fmt: skip
        traces.append({**own, "marker": {"size": 12, "color": "@red", "symbol": "circle-open"}})
    layout = {
        "xaxis": axis("node, in the graph's order"),
        "yaxis": axis("error by the node's largest value", type="log", exponentformat="power"),
        "showlegend": True,
    }
    label = f"error of each node of {report.recipe} on {report.device}"
    caption = (
        "The local error is against eager with the device's own inputs of the node, the "
        "accumulated one against eager from the start. A node without a point is exact."
    )
    return Figure(key, traces, layout, label, caption, height=420)


def _trace(
    name: str, errors: Sequence[NodeError], values: Sequence[float | None], tone: str, mode: str
) -> Values:
    shares = [
        value / each.largest if value and each.largest else None
        for each, value in zip(errors, values, strict=True)
    ]
    return {
        "type": "scatter", "mode": mode, "name": name,
        "x": list(range(len(errors))),
        "y": rounded(shares),
        "text": [escape(f"{e.node.name} {e.node.operator} {e.node.module}") for e in errors],
        "marker": {"size": 6, "color": tone},
        "line": {"color": tone, "width": 1.5},
        "hovertemplate": "%{text}<br>%{y:.3g}<extra></extra>",
    }  # fmt: skip
