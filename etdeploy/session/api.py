"""`etdeploy.open` and `etdeploy.open_async`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.core import cancel
from etdeploy.core.errors import UsageError
from etdeploy.graph.options import JobOptions, job_options
from etdeploy.recipe.load import Override
from etdeploy.session.aio import AsyncOpening
from etdeploy.session.connection import SessionConnection
from etdeploy.session.opening import Owner
from etdeploy.session.session import Session
from etdeploy.session.text import is_count

PathName = str | os.PathLike[str]


def open_session(
    recipe: PathName | None = None,
    *,
    model: PathName | None = None,
    device: str = "host",
    settings: Mapping[str, Any] | None = None,
    context: int | None = None,
    lora: str | None = None,
    speculate: str | None = None,
    text: str | None = None,
    image: PathName | None = None,
    audio: PathName | None = None,
    target: str | None = None,
    quiet: bool = False,
) -> Session:
    """Export, build and push a recipe's program if needed, and load it on a device.

    The session has the device until it is closed: use it in a `with` block.

    Args:
        recipe: A bundled recipe by name, or a YAML file; by default the one for language models, or
            the one that fits `model`.
        model: As --model: an id on the hub, a folder, a GGUF file or a finished program.
        device: As --device: host, qemu, android:SERIAL, ssh:[user@]host.
        settings: Values of the recipe by dotted key, as --set: {"export.quantization": "none"}.
        context: The context length of a language model in tokens.
        lora: The adapter of a language model, by its name in model.lora.
        speculate: As --speculate: none, lookup or model:DRAFT.
        text: Input text of a model with an encoder.
        image: The same, a file with an image.
        audio: The same, a .wav file.
        target: As --target; by default the device's own.
        quiet: Whether no progress is shown on stderr.

    Raises:
        RecipeError: The recipe, a key or a value is not known; reports every problem.
        DeviceError: The device cannot be reached.
        EtdeployError: A step failed; its class says which.
    """
    named = _options(
        recipe, settings, model=model, device=device, context=context, lora=lora,
        speculate=speculate, text=text, image=image, audio=audio, target=target, quiet=quiet,
    )  # fmt: skip
    return start_session(named, Owner.current_thread(), cancel.Flag(), apart=True)


def start_session(named: JobOptions, owner: Owner, flag: cancel.Flag, *, apart: bool) -> Session:
    """Open a session and load the program.

    Args:
        named: One recipe on one device.
        owner: Who waits for the device.
        flag: Stops whatever takes long.
        apart: Whether that happens in another thread, because the caller handles no signals.
    """
    connection = SessionConnection(named, owner, flag, apart=apart)
    try:
        connection.open()
        session = Session(connection)
        connection.apart(connection.load)
    except BaseException:
        connection.close()
        raise
    return session


def open_session_async(
    recipe: PathName | None = None,
    *,
    model: PathName | None = None,
    device: str = "host",
    settings: Mapping[str, Any] | None = None,
    context: int | None = None,
    lora: str | None = None,
    speculate: str | None = None,
    text: str | None = None,
    image: PathName | None = None,
    audio: PathName | None = None,
    target: str | None = None,
    quiet: bool = False,
) -> AsyncOpening:
    """Do what `open` does without blocking the event loop: `async with open_async(...) as session`.

    Several tasks may use the session: their calls wait for each other. A task that is cancelled
    stops the device.
    """
    named = _options(
        recipe, settings, model=model, device=device, context=context, lora=lora,
        speculate=speculate, text=text, image=image, audio=audio, target=target, quiet=quiet,
    )  # fmt: skip
    return AsyncOpening(lambda owner, flag: start_session(named, owner, flag, apart=False))


def _options(
    recipe: PathName | None, settings: Mapping[str, Any] | None, **values: Any
) -> JobOptions:
    if values["context"] is not None and not is_count(values["context"]):
        raise UsageError(f"context is {values['context']!r}; it must be a whole number from 1 on")
    paths = ("model", "image", "audio")
    named = {
        name: os.fspath(value) if name in paths and value is not None else value
        for name, value in values.items()
    }
    overrides: Any = tuple(
        Override(f"{key}={json.dumps(value, default=os.fspath)}", "settings")
        for key, value in (settings or {}).items()
    )
    return job_options(
        overrides=overrides,
        recipe=None if recipe is None else os.fspath(recipe),
        otherwise=LANGUAGE_RECIPE,
        **named,
    )
