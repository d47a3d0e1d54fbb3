"""A Hugging Face hub on this machine, as far as huggingface_hub asks it for one model's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What the server gives, and what it was asked.

    Attributes:
        model: The id that it has.
        files: Contents by name.
        refusal: Status and headers of every answer, in place of what was asked for.
        asked: Methods and paths, in order, but for the list of agents that huggingface_hub gets
            before the first request of a process.
        address: Of the server.
    """

    def __init__(self, model: str, folder: Path) -> None:
        self.model = model
        self.files = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        self.refusal: tuple[int, Mapping[str, str]] | None = None
        self.asked: list[str] = []
        self.address = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content for a request."""
        if self.refusal:
            return self.refusal[0], dict(self.refusal[1]), b"{}"
        api, files = f"/api/models/{self.model}", f"/{self.model}/resolve/"
        if path.startswith(f"{api}/revision/"):
            return self._revision(path.rpartition("/")[2])
        if path == f"{api}/tree/{COMMIT}":
            return _json([self._entry(name) for name in self.files])
        revision, _, name = path.removeprefix(files).partition("/")
        if path.startswith(files) and revision == COMMIT and name in self.files:
            content = self.files[name]
            etag = hashlib.sha256(content).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, content
        # Who is not logged in is not told which models there are.
        return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _revision(self, name: str) -> tuple[int, dict[str, str], bytes]:
        if name not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        return _json({"id": self.model, "sha": COMMIT, "siblings": [], "tags": []})

    def _entry(self, name: str) -> dict[str, object]:
        content = self.files[name]
        oid = hashlib.sha1(content).hexdigest()  # noqa: S324 - git's own
        return {"type": "file", "path": name, "size": len(content), "oid": oid}


def _json(content: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Answers at `hub.address` while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path != "/api/agent-harnesses":
                hub.asked.append(f"{self.command} {path}")
            status, headers, content = hub.answer(path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_arguments: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
