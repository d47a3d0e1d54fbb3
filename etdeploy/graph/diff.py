"""Compares a program on a device with eager, node by node: the exports and runs of `etdeploy diff`.

Each round is the pipeline up to one inference, for a program that returns values of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import FLOAT_SCHEMES
from etdeploy.bench.diff import DiffReport, ObservedRun, Search, SuggestedOverrides, stage_of
from etdeploy.bench.outputs import Expectation, compare_outputs, tolerance_scheme
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, ExportError, RunError, UsageError
from etdeploy.export.diff import (
    LOGIT_NOISE,
    NODES_FILE,
    SENSITIVITY,
    ObservedGraph,
    ReplayRequest,
    Sensitivity,
    more_exact_scheme,
    replay,
)
from etdeploy.export.methods import values_of_method
from etdeploy.export.spec import NodeObservation
from etdeploy.graph.job import Job, StepName, load_program
from etdeploy.graph.jobs import Member, RecipeDevicePair
from etdeploy.graph.on_device import load_observed
from etdeploy.graph.resolve import export_spec_of
from etdeploy.graph.run import JobEnd
from etdeploy.program.folder import Provenance, TensorFile, load_provenance
from etdeploy.program.generation import LogitNoise
from etdeploy.runner.protocol import RunnerOutput

# Runs steps of jobs up to one, together; each end has what failed.
RunSteps = Callable[[Sequence[Member], StepName], list[JobEnd]]
_ORIGINAL, _OBSERVED, _SUGGESTED = "#diff", "#diff-observed", "#diff-overrides"
_REPLAY = "replay"
# A suggestion leaves at most this share of the error.
_LEAST_GAIN = 0.9


def require_comparable(job: Job) -> None:
    """Raises UsageError for a program whose nodes cannot be compared with eager."""
    spec = export_spec_of(job)
    place = str(job.loaded.path)
    if spec.is_finished or spec.llm_config is not None:
        raise UsageError(
            "the nodes of a program that another exporter made cannot be compared: there is no "
            "eager model",
            place=place,
            remedy="Name a recipe with a model: model.python, model.hf or model.example.",
        )
    if job.app:
        raise UsageError("apps return no values of nodes", remedy="Leave out --as and --app.")
    if job.device is None:
        raise UsageError("nodes are compared on a device", remedy="--device host")


@dataclass
class ProgramDiff:
    """The comparison of one recipe's program on one device.

    Attributes:
        member: The job; others are made from it.
        run_steps: Runs steps of a job.
        display: Shows the evaluation in eager.
    """

    member: Member
    run_steps: RunSteps
    display: console.TaskDisplay
    notes: list[str] = field(default_factory=list)
    sensitivity: Sensitivity | None = None

    @property
    def job(self) -> Job:
        """The job as the command line names it."""
        return self.member.require_job()

    def report(self) -> DiffReport:
        """Runs the program, then observes its nodes until the first wrong one is found."""
        require_comparable(self.job)
        own, ahead = self._run(*self.first_members)  # together, since they share an import
        if own.error:
            raise own.error
        outputs = _checked(own.member.require_job())
        wrong = any(check.within_tolerance is False for check in outputs)
        search = self.search(outputs_wrong=wrong, ahead=ahead)
        if search.first is None:
            raise ExportError(
                f"no program with observed nodes could be made: {search.failure}",
                place=str(self.job.loaded.path),
                remedy="Compare the same model on another backend: --set export.backend=portable",
            )
        return self._described(search, outputs, own.member.require_job())

    def search(self, *, outputs_wrong: bool, ahead: JobEnd) -> Search:
        """Searches the first wrong node, after the run of the second of the first members."""
        search = Search(
            lambda each: self._observe(each, ahead if each == self._widest else None),
            outputs_wrong,
            sensitivity=self._is_quantized,
        )
        search.run()
        return search

    def _described(
        self, search: Search, outputs: tuple[OutputCheck, ...], original: Job
    ) -> DiffReport:
        first = search.first
        if first is None:
            raise RuntimeError("nothing was observed")
        recipe = self.job.loaded.recipe
        nodes = {node.name: node for node in first.graph.nodes}
        sensitivity = self.sensitivity
        if self._is_quantized and sensitivity is None:
            self.notes.append(
                "What the quantization of each module costs was not measured: the checkpoint has "
                "quantized weights, or its floats do not fit in memory."
            )
        overrides = self._verified(sensitivity, original) if sensitivity else None
        return DiffReport(
            recipe=self.job.loaded.name,
            device=self.job.device_label,
            backend=recipe.export.backend,
            quantization=recipe.export.quantization,
            stage=stage_of(search),
            outputs=outputs,
            culprit=search.culprit,
            region=tuple(nodes[name] for name in search.region if name in nodes),
            errors=first.replay.errors,
            rewrite_error=first.graph.rewrite_error,
            random=first.replay.random,
            undefined=first.replay.undefined,
            undefined_inputs=first.replay.undefined_inputs,
            rounds=tuple(search.rounds),
            sensitivity=sensitivity,
            overrides=overrides,
            notes=tuple(self.notes),
        )

    @property
    def first_members(self) -> tuple[Member, Member]:
        """The program as it is, and the one that returns the values of all nodes that fit."""
        return (
            self._member(NodeObservation(nodes=()), _ORIGINAL),
            self._member(self._widest, _OBSERVED),
        )

    @property
    def _widest(self) -> NodeObservation:
        return NodeObservation(sensitivity=self._is_quantized)

    @property
    def _is_quantized(self) -> bool:
        return self.job.loaded.recipe.export.quantization not in FLOAT_SCHEMES

    def _member(self, observation: NodeObservation, variant: str) -> Member:
        job = replace(self.job, observation=observation, variant=self.job.variant + variant)
        pair = self.member.pair
        name = pair.recipe if observation.nodes == () else f"{pair.recipe}, nodes observed"
        return replace(self.member, pair=RecipeDevicePair(name, pair.device), job=job)

    def _run(self, *members: Member) -> list[JobEnd]:
        ends = self.run_steps(members, StepName.OBSERVE)
        for end in ends:
            if end.error and not isinstance(end.error, ExportError | RunError):
                raise end.error  # the device went away, say: fewer nodes would not help
        return ends

    def _observe(self, observation: NodeObservation, ahead: JobEnd | None) -> ObservedRun | str:
        end = ahead or self._run(self._member(observation, _OBSERVED))[0]
        if isinstance(end.error, EtdeployError):
            return end.error.message.splitlines()[0]
        job = end.member.require_job()
        exported, _ = load_program(job)
        folder = Path(exported.folder)
        graph, seen = ObservedGraph.load(folder / NODES_FILE), load_observed(job)
        provenance = _provenance(job, folder)
        if found := provenance.details.get(SENSITIVITY):
            self.sensitivity = Sensitivity.model_validate(found)
        request = ReplayRequest(
            spec=export_spec_of(job),
            folder=str(folder),
            inputs=provenance.inputs,
            outputs=tuple(_tensor(Path(seen.folder), each) for each in seen.outputs),
        )
        with console.lazy_task(self.display, _REPLAY, "compared with eager") as progress:
            errors = replay(request, progress, job.state / f"{_REPLAY}.log")
        checks = _checked(job)
        return ObservedRun(graph, errors, any(c.within_tolerance is False for c in checks))

    def _verified(self, found: Sensitivity, original: Job) -> SuggestedOverrides | None:
        """Exports the recipe with the overrides, and measures what they gain."""
        recipe = self.job.loaded.recipe
        backend = backend_named(recipe.export.backend)
        scheme = more_exact_scheme(backend, recipe.export.quantization)
        if scheme is None or not found.overrides:
            if found.layers and scheme is None:
                self.notes.append(
                    f"{backend.name} quantizes the whole model with "
                    f"{recipe.export.quantization}: there are no overrides to suggest."
                )
            return None
        before, after = found.error, found.reached
        if found.scheme is None:  # of a graph, another calibration finds other ranges
            noise = self._exported_noise(found, scheme)
            if noise is None:
                return None
            before, after = _noise(original), noise
        if after > _LEAST_GAIN * before:
            self.notes.append(
                f"With {', '.join(found.overrides)} in {scheme}, the model is hardly more "
                f"exact ({100 * before:.3g} % becomes {100 * after:.3g} %): there are no overrides "
                "to suggest."
            )
            return None
        chosen = [layer for layer in found.layers if layer.module in found.overrides]
        return SuggestedOverrides(
            modules=found.overrides,
            scheme=scheme,
            before=before,
            after=after,
            weights_percent=100 * sum(e.weights for e in chosen) / max(1, found.weights),
            exported=found.scheme is None,
        )

    def _exported_noise(self, found: Sensitivity, scheme: str) -> float | None:
        """What the quantization costs in an export with the overrides; None where it fails."""
        recipe = self.job.loaded.recipe
        overrides = {**dict.fromkeys(found.overrides, scheme), **recipe.export.overrides}
        export = recipe.export.model_copy(update={"overrides": overrides})
        loaded = replace(self.job.loaded, recipe=recipe.model_copy(update={"export": export}))
        # Of one method, as what it is compared with.
        job = replace(
            self.job,
            loaded=loaded,
            observation=NodeObservation(nodes=()),
            variant=self.job.variant + _SUGGESTED,
        )
        [end] = self.run_steps([replace(self.member, job=job)], StepName.EXPORT)
        if isinstance(end.error, ExportError):
            self.notes.append(f"The suggested overrides cannot be exported: {end.error.message}")
            return None
        if end.error:
            raise end.error
        return _noise(job)


def _noise(job: Job) -> float:
    """What the quantization costs of the output that it moves most."""
    exported, _ = load_program(job)
    losses = _provenance(job, Path(exported.folder)).quantization_loss
    return max((loss.noise or 0.0 for loss in losses), default=0.0)


def _provenance(job: Job, folder: Path) -> Provenance:
    wanted = job.loaded.recipe.benchmark.method
    return values_of_method(load_provenance(folder), wanted, str(job.loaded.path))


def _tensor(folder: Path, output: RunnerOutput) -> TensorFile | None:
    if output.path is None or output.dtype is None:
        return None
    return TensorFile(path=str(folder / output.path), dtype=output.dtype, shape=output.shape or ())


def _checked(job: Job) -> tuple[OutputCheck, ...]:
    """The model's own outputs against eager, as a run compares them."""
    seen = load_observed(job)
    exported, _ = load_program(job)
    folder = Path(exported.folder)
    provenance = _provenance(job, folder)
    expected = next(iter(provenance.measured.values())).expected
    steps = tuple(known.scale if known else None for known in provenance.output_quantization)
    noise = provenance.details.get(LOGIT_NOISE)
    expectation = Expectation(
        expected,
        folder,
        tolerance_scheme(provenance),
        job.loaded.recipe.benchmark.tolerance,
        steps,
        LogitNoise.model_validate(noise) if noise else None,
    )
    return compare_outputs(seen.outputs[: len(expected)], Path(seen.folder), expectation)
