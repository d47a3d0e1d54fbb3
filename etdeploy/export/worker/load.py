"""The model of an export, its methods, and the inputs of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.background import when_needed
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.loading.source import (
    MethodSource,
    load_sources,
    prepare,
    with_calibration,
)
from etdeploy.export.worker.rewrites.images import order_notes
from etdeploy.export.worker.steps import Steps, for_each, starter
from etdeploy.export.worker.tracing.tensors import Values, flat_inputs, laid_out, lay_out_weights
from etdeploy.program.folder import FORWARD

if TYPE_CHECKING:  # imports transformers
    from etdeploy.export.worker.language.model import LanguageModel
    from etdeploy.export.worker.tasks.load import TaskModel


def loaded_methods(
    spec: ExportSpec, steps: Steps, recorder: FileRecorder
) -> tuple[LanguageModel | None, TaskModel | None, dict[str, MethodSource], dict[str, Values]]:
    """The model, its methods, and the inputs of these."""
    with steps.step("load", f"loading {spec.source}", 0.1), recorder.recording():
        language = _language_model(spec, steps, recorder)
        task = _task_model(spec, steps, recorder)
        if language:
            sources = language.observed(spec) if spec.observation else language.sources
        else:
            own = with_calibration(spec, {FORWARD: task.source}) if task else load_sources(spec)
            sources = _in_order(spec, own)
        for weight in (w for source in sources.values() for w in source.module.parameters()):
            # Passes compute a delegate's results anew where something can be trained.
            weight.requires_grad_(False)
        inputs = for_each(
            sources, lambda name: flat_inputs(sources[name].module, sources[name].inputs)
        )
        if language and (encoder := language.generation.encoder):  # gives those of the others
            inputs = {name: [] for name in inputs} | {encoder.method: language.encoder_inputs()}
    return language, task, sources, inputs


def _task_model(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> TaskModel | None:
    if spec.hf is None or spec.generation is not None:
        return None
    prepare(spec)
    if spec.hf.timm:
        from etdeploy.export.worker.tasks.timm import load_timm

        with recorder.ignoring("timm"):
            return load_timm(spec, steps.tell)
    from etdeploy.export.worker.tasks.load import load_task

    with recorder.ignoring("transformers"):
        return load_task(spec, steps.tell)


def _language_model(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> LanguageModel | None:
    if spec.hf is None or spec.generation is None:
        return None
    from etdeploy.export.worker.language.eager import original_texts
    from etdeploy.export.worker.language.load import load_model
    from etdeploy.export.worker.language.lora import require_adapters, with_adapters
    from etdeploy.export.worker.language.model import language_model

    prepare(spec)
    # What is read of the model is known: its files, or the commit. The recorder would also see
    # the user's token for the hub.
    with recorder.ignoring("transformers"):
        require_adapters(spec, steps.tell)
        loaded = load_model(spec, steps.tell, steps.files)
        loaded = with_adapters(spec, loaded, steps.tell)
        with steps.step("texts", "generating texts with the model", 0.15):
            # Those of a program whose nodes are observed are never asked for.
            start = when_needed if spec.observation else starter(steps, loaded.model)
            eager = original_texts(spec, loaded, start)
        return language_model(spec, loaded, eager)


def _in_order(spec: ExportSpec, sources: Mapping[str, MethodSource]) -> dict[str, MethodSource]:
    """With weights and inputs whose strides ExecuTorch knows."""
    by_pixel = lowering_of(spec).by_pixel
    offered = backend_named(str(spec.backend)).rewrites

    def ordered(source: MethodSource) -> MethodSource:
        shapes, given = source.dynamic_shapes, source.inputs
        if isinstance(shapes, torch.export.ShapesCollection):  # which knows the tensors by identity
            shapes = shapes.dynamic_shapes(source.module, given.args, dict(given.keywords))
        inputs = laid_out(given, given if by_pixel else None)
        changed = lay_out_weights(source.module) or inputs is not given
        return replace(
            source,
            inputs=inputs,
            dynamic_shapes=shapes,
            exported=None if changed else source.exported,  # whose graph has the strides, too
            notes=tuple(order_notes(source.module, given, inputs, offered)),
        )

    return for_each(sources, lambda name: ordered(sources[name]))
