"""The end of a night: it is judged, written and told."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from etdeploy import __version__
from etdeploy.core import cancel
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.processes import process
from etdeploy.farm.report.files import RequestedReports, write
from etdeploy.farm.report.model import FailureGroup, NightInfo, NightReport
from etdeploy.farm.report.pages import write_dashboard
from etdeploy.farm.report.source import Settings, board_of, judged, seen
from etdeploy.farm.spec.model import LoadedFarm, Notify
from etdeploy.farm.verdicts.model import PairVerdict, VerdictKind
from etdeploy.farm.verdicts.night import note
from etdeploy.history.place import HistoryLocation

Tell = Callable[[str], None]


def settings_of(loaded: LoadedFarm) -> Settings:
    """What a farm.yaml says about verdicts."""
    return Settings(loaded.farm, {label: each.path for label, each in loaded.recipes.items()})


def conclude(
    loaded: LoadedFarm,
    place: HistoryLocation,
    night: NightInfo,
    tell: Tell,
    wrote: Callable[[Path], None] = lambda _: None,
    *,
    is_over: bool = True,
) -> NightReport:
    """Judges a night, notes the verdicts, writes the farm.yaml's reports, tells who wants to know.

    Args:
        loaded: The farm.yaml.
        place: The history, with the night's visits and records.
        night: Which.
        tell: Is told what could not be written, noted or told, in a sentence each: none of that
            changes how the night ended.
        wrote: Is told each report that was written, the dashboard by its first page.
        is_over: Whether the night is over; one that was stopped is only written.

    Raises:
        StoreError: The history cannot be read: nothing is judged, written or told.
        Interrupted: It was stopped.
    """
    from etdeploy.history.store.store import open_store

    settings = settings_of(loaded)
    report = judged(place, seen(place, night), settings)

    def noted() -> None:
        with open_store(place) as store:
            note(store, report.verdicts)

    if is_over:
        _try(noted, "the verdicts are not noted in the history", tell)
    wanted = loaded.farm.reports
    for one in (
        RequestedReports(html=wanted.html),
        RequestedReports(markdown=wanted.markdown),
        RequestedReports(junit=wanted.junit),
    ):
        _try(partial(_written, report, one, wrote), "a report is missing", tell)
    if folder := wanted.dashboard:
        _try(
            lambda: wrote(write_dashboard(board_of(place, settings, night.farm), folder)),
            "the dashboard is not up to date",
            tell,
        )
    for trouble in notify(report, loaded.farm.notify) if is_over else ():
        tell(trouble)
    return report


def _written(report: NightReport, one: RequestedReports, wrote: Callable[[Path], None]) -> None:
    for path in write(report, one):
        wrote(path)


def _try(action: Callable[[], object], otherwise: str, tell: Tell) -> None:
    try:
        action()
    except Interrupted:
        raise
    except (EtdeployError, OSError) as error:
        tell(f"{otherwise}: {error}")


ALWAYS = "always"
_COMMAND_S, _WEBHOOK_S = 60.0, 10.0
# Before the second and the third attempt, in seconds.
_WAITS_S = (1.0, 4.0)
_TOO_MANY = 429
_SERVER = 500
_REDIRECTS = range(300, 400)
_POLL_S = 0.1
_TAIL = 400


def notify(
    report: NightReport,
    wanted: Sequence[Notify],
    sleep: Callable[[float], None] = time.sleep,
    context: ssl.SSLContext | None = None,
) -> list[str]:
    """Tells everyone who wants to know."""
    body = json.dumps(summary_of(report)).encode()
    return [trouble for each in wanted for trouble in _told(each, report, body, sleep, context)]


def _told(
    wanted: Notify,
    report: NightReport,
    body: bytes,
    sleep: Callable[[float], None],
    context: ssl.SSLContext | None,
) -> Iterator[str]:
    if wanted.when != ALWAYS and report.exit_code == 0:
        return
    if wanted.command and (why := _run(wanted.command, body)):
        yield f"the command {wanted.command[0]} could not be notified of the night: {why}"
    if wanted.webhook and (why := _post_patiently(wanted.webhook, body, sleep, context)):
        host = urlsplit(wanted.webhook).hostname or "the webhook"
        yield f"{host} could not be notified of the night: {why}"


def _run(argv: Sequence[str], body: bytes) -> str:
    """Why the command failed; empty if it did not."""
    try:
        with tempfile.TemporaryFile() as stream:
            stream.write(body)
            stream.seek(0)
            done = process.run(process.Request(tuple(argv), stdin=stream, timeout_s=_COMMAND_S))
    except Interrupted:
        raise
    except OSError as error:
        return f"it cannot be started: {error.strerror or error}"
    if done.timed_out:
        return f"it did not end within {_COMMAND_S:.0f} s"
    said = (done.stderr or done.stdout).strip()[-_TAIL:]
    return "" if done.ok else f"exit code {done.exit_code}" + (f": {said}" if said else "")


def _post_patiently(
    url: str, body: bytes, sleep: Callable[[float], None], context: ssl.SSLContext | None
) -> str:
    """Posts up to three times; returns why it failed, or nothing."""
    why = ""
    for wait_s in (0.0, *_WAITS_S):
        if wait_s:
            sleep(wait_s)
        why, again = _post_in_time(url, body, context)
        if not again:
            break
    return why


def _post_in_time(url: str, body: bytes, context: ssl.SSLContext | None) -> tuple[str, bool]:
    """The same as `_post`, which has a time limit for each step only.

    Neither the look-up of a name nor a server that answers letter by letter ends it.
    """
    told: list[tuple[str, bool]] = []
    thread = threading.Thread(target=lambda: told.append(_post(url, body, context)), daemon=True)
    thread.start()
    until = time.monotonic() + _WEBHOOK_S
    while thread.is_alive() and time.monotonic() < until:
        thread.join(_POLL_S)
        cancel.checkpoint()
    return told[0] if told else (f"it did not answer within {_WEBHOOK_S:.0f} s", True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, and may go to a place that nobody named."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(url: str, body: bytes, context: ssl.SSLContext | None) -> tuple[str, bool]:
    """Why a post failed, and whether another attempt may help."""
    if urlsplit(url).scheme != "https":
        return "a webhook needs an https URL", False
    secure = urllib.request.HTTPSHandler(context=context or ssl.create_default_context())
    opener = urllib.request.build_opener(secure, _NoRedirect)
    headers = {"Content-Type": "application/json", "User-Agent": f"etdeploy/{__version__}"}
    try:
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - https
        with contextlib.closing(opener.open(request, timeout=_WEBHOOK_S)):
            return "", False
    except urllib.error.HTTPError as error:
        with error:
            again = error.code == _TOO_MANY or error.code >= _SERVER
            more = ", and redirects are not followed" if error.code in _REDIRECTS else ""
            return f"it answered {error.code}{more}", again
    except (http.client.InvalidURL, ValueError):  # their texts have the URL
        return "this is not a URL", False
    except (OSError, http.client.HTTPException) as error:
        return _unanswered(getattr(error, "reason", error))


def _unanswered(reason: object) -> tuple[str, bool]:
    """Why there was no answer, and whether another attempt may help."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted: {reason.verify_message}"
        return f"{why} (SSL_CERT_FILE names a file with other authorities)", False
    if isinstance(reason, TimeoutError):
        return f"it did not answer within {_WEBHOOK_S:.0f} s", True
    if isinstance(reason, http.client.HTTPException):
        # Its text may be what the server said.
        return f"it did not answer in HTTP ({type(reason).__name__})", True
    return f"{reason}" or type(reason).__name__, True


_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def summary_of(report: NightReport) -> dict[str, Any]:
    """The summary: totals, what became worse, causes of failures, and the exit code."""
    return {
        "farm": report.night.farm,
        "night": report.night.id,
        "started_at": report.night.started_at,
        "finished_at": report.night.finished_at,
        "headline": report.headline,
        "exit_code": report.exit_code,
        "totals": report.totals.model_dump(mode="json"),
        "worse": [_verdict(each) for each in report.verdicts if each.kind in _BAD],
        "failures": [_cause(each) for each in report.failures],
        "missed": [_cause(each) for each in report.missed],
        "quarantined": [
            {"identity": each.identity, "device": each.label, "reason": each.quarantined}
            for each in report.devices
            if each.quarantined
        ],
    }


def _verdict(verdict: PairVerdict) -> dict[str, Any]:
    since = verdict.since
    return {
        "recipe": verdict.recipe,
        "device": verdict.device,
        "identity": verdict.identity,
        "verdict": str(verdict.kind),
        "reason": verdict.reason,
        "since": since.started_at if since else None,
        "commits": since.commits if since else "",
        "remedy": verdict.remedy,
        "run_ids": list(verdict.run_ids),
    }


def _cause(cause: FailureGroup) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "message": cause.message,
        "remedy": cause.remedy,
        "visits": len(cause.places),
        "recipes": sorted({place.recipe for place in cause.places}),
        "devices": sorted({place.device for place in cause.places}),
    }
