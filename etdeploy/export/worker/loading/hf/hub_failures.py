"""What failures of the Hugging Face hub mean, and what to do about them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from etdeploy.core.text.shell import quoted
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError, fail, first_line

_LOG_IN = "hf auth login   (or: export HF_TOKEN=..., a token of {}/settings/tokens)"
_FULL = (28, 122)  # ENOSPC and EDQUOT of Linux, which other kinds of OSError here never have


@contextmanager
def explained(spec: ExportSpec, model: HfModel, hub: str) -> Iterator[None]:
    """Explains what huggingface_hub raises in the block.

    Args:
        spec: For the places of keys.
        model: That is looked for.
        hub: Its address.

    Raises:
        WorkerError: Something failed; a full disk stays an OSError.
    """
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, RevisionResolutionError

    try:
        yield
    except WorkerError:
        raise
    except (HfHubHTTPError, RevisionResolutionError, HTTPError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        raise _failure(error, spec, model, hub) from error


def _failure(error: Exception, spec: ExportSpec, model: HfModel, hub: str) -> WorkerError:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError

    place, name = spec.place("model", "hf"), str(model.id)
    response = error.response if isinstance(error, HfHubHTTPError) else None
    status = response.status_code if response is not None else None
    log_in = _LOG_IN.format(hub)
    if isinstance(error, GatedRepoError):
        message = f"{name} is gated: its publisher gives it to those who accept its licence"
        remedy = f"Accept it at {hub}/{name}, and log in: {log_in}"
    elif isinstance(error, RevisionNotFoundError):
        place = spec.place("model", "revision")
        message = f"{name} has no revision {model.revision!r}"
        remedy = f"Its branches and tags are at {hub}/{name}/tree/main"
    elif status == 401 and "Invalid credentials" in str(error):
        message, remedy = "the Hugging Face hub refuses the token", f"Log in again: {log_in}"
    elif status in (401, 403, 404):
        message = f"the Hugging Face hub has no model {name}, or it is private"
        remedy = f"Look at {hub}/{name} in a browser. If it is there, log in: {log_in}"
    elif status is not None:
        message = f"the Hugging Face hub does not give {name}: {first_line(error)}"
        remedy = "Try again later, or name a folder: --model path/to/model"
    else:
        message, remedy = _unreachable(error, model, hub)
    return fail("hub", message, remedy=remedy, file=place)


def _unreachable(error: Exception, model: HfModel, hub: str) -> tuple[str, str]:
    cause = error.__cause__ or error
    name = str(model.id)
    folder = name.rpartition("/")[2]
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE")
    why = (
        "HF_HUB_OFFLINE is set"
        if type(cause).__name__ == "OfflineModeIsEnabled" and offline
        else f"{hub} cannot be reached ({first_line(cause) or type(cause).__name__})"
    )
    return (
        f"{name} is not on this machine, and {why}",
        f"On a machine with a network: hf download {quoted(name)} --local-dir {quoted(folder)}\n"
        f"Then copy that folder here: --model ./{quoted(folder)}",
    )
