"""A model whose layers are alike: a few are traced and lowered, the others are copies of them.

Tracing, decompositions and ExecuTorch's dialect take time for each layer, and give graphs that
differ in names and weights alone. So the first layer and two of each kind are traced, and the
graphs of these are compared. Of the first layer's kind, one is enough if a call with fake tensors
shows that the next calls the same operators. The graph of all layers is put together from them,
for ExecuTorch's partitioners, passes and memory planning, which see no difference. The program is
the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram

from etdeploy.export.worker.backends.base import Traced, patched
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.layer_expansion import Expansion
from etdeploy.export.worker.language.layers import LayerTemplate, UnlikeLayersError, layer_template

Made = TypeVar("Made")
# Traces all methods, each in the context that it is given for its name.
Trace = Callable[[Callable[[str], AbstractContextManager[None]]], dict[str, Traced]]
_NOTE = "All layers were traced one by one, which takes longer: {why}."


@dataclass
class LayerCopies:
    """The methods of a language model whose layers are copied, by their names.

    Attributes:
        templates: What is traced of each.
        misfit: Why all layers had to be traced; None where that was not so, or nothing was gained.
    """

    templates: dict[str, LayerTemplate] = field(default_factory=dict)
    misfit: str | None = None
    _modules: dict[str, Any] = field(default_factory=dict)
    _whole: dict[str, ExportedProgram] = field(default_factory=dict)

    @classmethod
    def of(
        cls, modules: Mapping[str, torch.nn.Module], inputs: Mapping[str, Sequence[torch.Tensor]]
    ) -> LayerCopies:
        """Those of methods, by their modules and inputs."""
        templates = {}
        try:
            for name, module in modules.items():
                if template := layer_template(module):
                    templates[name] = template.without_twins(module, inputs[name])
        except UnlikeLayersError as error:
            return cls(misfit=str(error))
        return cls(templates, _modules=dict(modules))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for the user, where layers were not copied."""
        return (_NOTE.format(why=self.misfit),) if self.misfit else ()

    def traced(self, trace: Trace) -> dict[str, Traced]:
        """What `trace` gives, of the chosen layers; of all where that fails."""
        if not self.templates:
            return trace(_whole)
        try:
            return trace(self._reduced)
        except WorkerError as error:
            self.give_up(f"a few of them cannot be traced ({error.failure.message})")
        except UnlikeLayersError as error:
            self.give_up(str(error))
        return trace(_whole)

    def _reduced(self, name: str) -> AbstractContextManager[None]:
        template = self.templates.get(name)
        return template.reduced(self._modules[name]) if template else nullcontext()

    def lowered(
        self, traced: dict[str, Traced], trace: Trace, lower: Callable[[Mapping[str, Traced]], Made]
    ) -> tuple[Made, dict[str, Traced]]:
        """What `lower` makes of the methods, and the methods with all of their layers."""
        if not self.templates:
            return lower(traced), traced
        try:
            with self._expanding():
                made = lower(traced)
        except WorkerError:
            if self.templates:  # the failure is not about the copies
                raise
        else:
            return made, self._with_all_layers(traced)
        traced = trace(_whole)
        return lower(traced), traced

    def give_up(self, why: str) -> None:
        """From now on, all layers are traced."""
        self.templates, self.misfit = {}, why

    @contextmanager
    def _expanding(self) -> Iterator[None]:
        """While the block runs, programs in ExecuTorch's dialect get all layers.

        Raises:
            UnlikeLayersError: The layers turn out to differ.
        """
        import executorch.exir.program._program as program

        make = program._gen_edge_manager_for_partitioners

        def made(
            partitioner: Any, aten: Any, config: Any, constants: Any, etrecord: Any = False
        ) -> Any:
            manager = make(partitioner, aten, config, constants, generate_etrecord=False)
            try:
                for name in self.templates:
                    edge = manager._edge_programs[name]
                    manager._edge_programs[name] = self._expanded(name, edge)
                    self._whole[name] = self._expanded(name, aten[name])
            except UnlikeLayersError as error:
                self.give_up(str(error))
                raise
            if etrecord:
                record = program._create_empty_etrecord()
                record.add_exported_program({**aten, **self._whole})
                record.add_edge_dialect_program(program.copy.deepcopy(manager))
                manager._etrecord = record
            return manager

        with patched(program, _gen_edge_manager_for_partitioners=made):
            yield

    def _expanded(self, name: str, program: ExportedProgram) -> ExportedProgram:
        from etdeploy.export.worker.lowering.upstream_patches import unchecked

        with unchecked(ExportedProgram):  # what it copies is checked, and all of it is before use
            return Expansion(program, self.templates[name], self._modules[name]).program()

    def _with_all_layers(self, traced: Mapping[str, Traced]) -> dict[str, Traced]:
        return {
            name: replace(each, program=self._whole[name], original=self._whole[name])
            if name in self._whole
            else each
            for name, each in traced.items()
        }


def _whole(_: str) -> AbstractContextManager[None]:
    return nullcontext()
