"""etdeploy serve."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.cli.options import options
from etdeploy.cli.verbs.generate import require_language_recipe
from etdeploy.core import console
from etdeploy.core.commands import pip_command
from etdeploy.core.errors import UsageError
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    import socket

    from etdeploy.serve.app import Access
    from etdeploy.serve.service import TextService
    from etdeploy.session.aio import AsyncSession

_TOKEN_VARIABLE = "ETDEPLOY_SERVE_TOKEN"  # noqa: S105 - its name
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what a user may name


@click.command()
@options("language-recipe", "set", "model", "lora", "speculate", "context", "device", "target")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen; 0.0.0.0 for all networks. Beyond this machine, clients need a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    metavar="N",
    help="0 for a free one, which is shown.",
)
@click.option(
    "--token",
    envvar=_TOKEN_VARIABLE,
    metavar="TEXT",
    help=f"The API key of clients. Process listings show it, unless it is in {_TOKEN_VARIABLE}. "
    "By default none on loopback, else one that is generated.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Let scripts of pages of this origin use the server; may be repeated.",
)
@click.option(
    "--queue",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="The most requests that wait or are being answered; others get status 429.",
)
@options("quiet")
def serve(
    host: str,
    port: int,
    token: str | None,
    allow_origin: tuple[str, ...],
    queue: int,
    **values: Any,
) -> None:
    """Serve a model on the device by OpenAI's API, for chat programs, libraries and lm-eval.

    The model is exported, built and pushed unless that is done already. Requests are answered one
    after the other; what a prompt has in common with the text before is not computed again. Ctrl-C
    ends the server.
    """
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UsageError(
            "the server needs Starlette and uvicorn, which are not installed",
            remedy=pip_command("etdeploy[serve]"),
        )
    from etdeploy.serve.app import Access
    from etdeploy.serve.server import bound_socket, is_loopback

    named = replace(job_options(otherwise=LANGUAGE_RECIPE, **values), speech="text")
    require_language_recipe(named)
    is_local = is_loopback(host)
    with bound_socket(host, port) as listener:
        if not token and not is_local:
            token = secrets.token_urlsafe(24)
            console.message(f"API key for clients: {token}")
        access = Access(token or None, (*Access.hosts, host) if is_local else ("*",), allow_origin)
        asyncio.run(_serve(named, listener, access, queue))


async def _serve(
    named: JobOptions, listener: socket.socket, access: Access, most_waiting: int
) -> None:
    from etdeploy.serve.app import make_app
    from etdeploy.serve.server import run_server
    from etdeploy.session.aio import AsyncOpening
    from etdeploy.session.api import start_session

    opening = AsyncOpening(lambda owner, flag: start_session(named, owner, flag, apart=False))
    async with opening as session:
        service = _service(session, most_waiting)
        host, port = listener.getsockname()[:2]
        shown = "localhost" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
        console.message(
            f"\n{service.name} on {session.sync.device}: http://{shown}:{port}/v1\n"
            "Ctrl-C ends the server."
        )
        report = None if named.quiet else console.message
        await run_server(make_app(service, access, report), listener)


def _service(session: AsyncSession, most_waiting: int) -> TextService:
    """Return the service; raises UsageError for a model that continues no prompt."""
    from etdeploy.program.tokenizer import load_template
    from etdeploy.serve.service import TextService

    model = session.sync
    generation = model.generation
    if generation.encoder is not None or not model.converses:
        why = (
            "the model generates its text from an input, not from a prompt"
            if generation.encoder
            else f"{model.device} cannot stream stdin to a running process"
        )
        raise UsageError(f"it cannot be served: {why}", remedy="etdeploy generate")
    template = load_template(model.tokenizer.folder) if model.tokenizer else None
    return TextService(session, _name(generation.model), template, most_waiting)


def _name(model: str | None) -> str:
    """Return what clients call a model: its id on the hub, or the name of its file or folder."""
    if model is None:
        return "model"
    path = Path(model)
    return path.name if path.is_absolute() or path.exists() else model
