"""The live page in a thread, and requests to it that a browser would not make."""

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from straggler.web.server import build_app


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """A server that answers, its token and its folders."""

    port: int
    token: str
    runs: Path
    app: Starlette = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Reply:
        """One request, exactly as given; `_` in a header's name is a dash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), named)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        """As the page itself asks, but for what is given."""
        ours = {
            "Origin": self.url,
            "X_Straggler_Token": self.token,
            "Content_Type": "application/json",
        }
        given = {key: value for key, value in (ours | headers).items() if value}
        return self.ask(path, "POST", {} if body is None else body, **given)


@contextmanager
def site(runs: Path, results: Path, token: str | None = None, host: str = "127.0.0.1") -> Iterator[Site]:
    app, secret = build_app(runs, results, host, token)
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Site(port, secret, runs, app)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.fail("no Chromium here: `make browser` installs it, or says how to get one")
