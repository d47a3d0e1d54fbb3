"""What a backend says about itself.

A backend is one value of `Backend`: facts as attributes, and hooks as methods that a class derived
from it replaces. Every hook has a default, so most backends are facts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from etdeploy.backends.payload import CompiledFor, Payload
from etdeploy.core.flatbuffer import Table
from etdeploy.targets.platforms import Target


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend of ExecuTorch.

    Attributes:
        name: As a recipe names it.
        delegate_id: The id that a program's delegates carry; None when nothing is delegated.
        quantizations: The schemes that it can run; see `schemes.py`.
        lowering: The module, for the child process that exports, with its `LOWERING`; None for a
            backend that etdeploy does not export for, whose finished programs it runs.
        needs: What must be installed to export for it or to run it, besides the ExecuTorch wheel.
            For docs/recipes.md.
        get: How to get that, for messages.
        component: The component of ExecuTorch's runtime that registers the delegate; a wheel has it
            as `executorch::<component>`.
        switch: The cmake option that builds the component.
        wheels: The targets whose wheel carries the component.
        systems: Systems that the delegate runs on; empty for all.
        arches: The instruction sets that it runs on; empty for all.
        loads: Whether it loads the device maker's libraries when it starts.
        threaded: Whether it runs on the thread pool of ExecuTorch.
        tried: Whether it was built and run with etdeploy; the others follow ExecuTorch's
            documentation.
        per_soc: Whether a program is compiled for one SoC, which `export.soc` names.
        profile_compiled: Whether a program reports the times of its operators only if it was
            compiled to.
    """

    name: str
    delegate_id: str | None = None
    quantizations: tuple[str, ...] = ("none",)
    lowering: str | None = None
    needs: str | None = None
    get: str | None = None
    component: str | None = None
    switch: str | None = None
    wheels: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    loads: bool = False
    threaded: bool = False
    tried: bool = False
    per_soc: bool = False
    profile_compiled: bool = False

    def runs_on(self, target: Target) -> bool:
        """Whether the delegate runs on targets of that system and instruction set."""
        return (not self.systems or target.system in self.systems) and (
            not self.arches or target.arch in self.arches
        )

    def read_payload(self, delegate: Table, payload: memoryview) -> Payload:
        """What the payload of one of its delegates says.

        Args:
            delegate: Its entry in the program (`BackendDelegate` of schema/program.fbs).
            payload: What the backend compiled.

        Raises:
            CorruptError: The payload is damaged.
        """
        return Payload()

    def describe_target(self, compiled: CompiledFor) -> str:
        """What a partition was compiled for, for people: `for SM8650`."""
        return f"for {compiled.soc or f'the SoC number {compiled.soc_id}'}"

    @property
    def where(self) -> str:
        """The systems that the delegate runs on, for a message: `android on aarch64`."""
        return " or ".join(self.systems) + (f" on {self.arches[0]}" if self.arches else "")
