"""The page that shows runs while they happen: what it is asked, and what it answers."""

import gzip
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from straggler.config.registry import InputError
from straggler.record import RecordError
from straggler.timing import DurationError
from straggler.web.auth import Guard, is_loopback
from straggler.web.launcher import RunLauncher
from straggler.web.live import ChangeFeed
from straggler.web.playground_settings import build_experiment, choices, parse_settings
from straggler.web.preview import preview
from straggler.web.report import STATIC, dump_json, render, render_html_report
from straggler.web.run_index import RunIndex

MOST_BYTES = 20_000  # of what a page may send
SHORTEST_TOKEN = 8  # that can be put into an address and a cookie, and is not guessed at once
FOR_EVER = "public, max-age=31536000, immutable"


class RequestHandlers:
    """Everything that can be asked."""

    def __init__(self, runs: Path, results: Path, token: str) -> None:
        self.shelf, self.starter, self.token = RunIndex(runs, results), RunLauncher(runs), token
        self.watcher = ChangeFeed(self.shelf, self.starter)
        self.ready: Callable[[], None] = lambda: None

    def page(self, request: Request) -> Response:
        text = render("page.html", token=self.token, choices=dump_json(choices()))
        return HTMLResponse(text, headers={"cache-control": "no-store"})

    def plotly_script(self, request: Request) -> Response:
        headers = {"cache-control": FOR_EVER, "content-type": "text/javascript; charset=utf-8"}
        if "gzip" in request.headers.get("accept-encoding", "") and not is_loopback(
            request.url.hostname or ""
        ):
            return Response(zipped_plotly(), headers=headers | {"content-encoding": "gzip"})
        return Response(get_plotlyjs(), headers=headers)

    def runs(self, request: Request) -> Response:
        return JSONResponse(self.shelf.rows())

    def figures(self, request: Request) -> Response:
        names = request.query_params.getlist("id")
        whole = request.query_params.get("whole") == "1"
        return json_text(self.shelf.page(names, whole))

    def preview(self, request: Request) -> Response:
        given: dict[str, Any] = dict(request.query_params)
        if "delay" in given:
            given["delay"] = request.query_params.getlist("delay")
        settings = parse_settings(given)
        return json_text(dump_json(preview(build_experiment(settings), settings)))

    def report(self, request: Request) -> Response:
        names = self.shelf.chosen(request.path_params["names"].split(","))
        download = request.query_params.get("download") == "1"
        text = render_html_report([self.shelf.facts(name)[1] for name in names], embedded=download)
        return page_or_file(text, f"straggler-{names[0]}.html", download)

    def study_report(self, request: Request) -> Response:
        study = self.shelf.study(request.path_params["name"])
        download = request.query_params.get("download") == "1"
        return page_or_file(
            render_html_report([], [study], embedded=download), f"straggler-{study.name}.html", download
        )

    async def events(self, request: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self.watcher.events(), media_type="text/event-stream", headers=headers)

    async def start(self, request: Request) -> Response:
        body = await request.body()
        if len(body) > MOST_BYTES:
            raise InputError(f"{len(body)} bytes: at most {MOST_BYTES} are read")
        try:
            given = await request.json()
        except RecursionError:
            given = None
        if not isinstance(given, dict):
            raise InputError("send the settings as a JSON object")
        settings = parse_settings(given)
        return JSONResponse(await run_in_threadpool(self._start, settings))

    def _start(self, settings: dict[str, Any]) -> dict[str, Any]:
        experiment = build_experiment(settings)
        return {"id": experiment.id, "started": self.starter.start(experiment, settings)}

    def stop(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self.starter.stop(name):
            raise InputError(
                f"{name[:40]!r} was not started from this page, or is over; press Ctrl-C where it runs"
            )
        return JSONResponse({"id": name, "stopping": True})

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.ready()
        yield
        await run_in_threadpool(self.starter.close)

    def routes(self) -> list[Route | Mount]:
        return [
            Route("/", self.page),
            Route("/static/plotly.js", self.plotly_script),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/runs", self.runs, methods=["GET"]),
            Route("/api/runs", self.start, methods=["POST"]),
            Route("/api/runs/{name}/stop", self.stop, methods=["POST"]),
            Route("/api/figures", self.figures),
            Route("/api/preview", self.preview),
            Route("/api/events", self.events),
            Route("/reports/runs/{names}", self.report),
            Route("/reports/studies/{name}", self.study_report),
        ]


@lru_cache(maxsize=1)
def zipped_plotly() -> bytes:
    return gzip.compress(get_plotlyjs().encode(), 6)


def json_text(text: str) -> Response:
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


def page_or_file(text: str, name: str, download: bool) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'} if download else {}
    return HTMLResponse(text, headers=headers | {"cache-control": "no-store"})


def complaint(status: int) -> Callable[[Request, Exception], Response]:
    """An error as a line of text."""
    return lambda request, error: PlainTextResponse(str(error), status)


def missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(error.detail, error.status_code)


def build_app(
    runs: Path, results: Path, host: str = "127.0.0.1", token: str | None = None
) -> tuple[Starlette, str]:
    """The application, and the token that starting and stopping needs."""
    secret = token or secrets.token_urlsafe(24)
    answers = RequestHandlers(runs, results, secret)
    guard = Middleware(Guard, host=host, token=secret, closed=token is not None)
    errors: dict[Any, Any] = {HTTPException: missing}
    errors |= {error: complaint(400) for error in (InputError, DurationError, ValueError)}
    errors[RecordError] = complaint(404)
    app = Starlette(
        routes=answers.routes(), middleware=[guard], lifespan=answers.lifespan, exception_handlers=errors
    )
    app.state.answers = answers
    return app, secret


class WebServer(uvicorn.Server):
    """Lets go of the pages that listen as soon as Ctrl-C is pressed."""

    def __init__(self, config: uvicorn.Config, watcher: ChangeFeed) -> None:
        super().__init__(config)
        self._watcher = watcher

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._watcher.closing = True
        super().handle_exit(sig, frame)


def run_server(
    runs: Path, results: Path, host: str, port: int, token: str | None, ready: Callable[[str], None]
) -> None:
    """Answer until Ctrl-C; runs that were started from the page are saved and stopped."""
    if not is_loopback(host) and token is None:
        raise InputError(
            f"--host {host} can be reached by others: protect it with --token SECRET, or leave --host out"
        )
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= SHORTEST_TOKEN):
        raise InputError(
            f"--token {token!r}: it needs at least {SHORTEST_TOKEN} characters, letters, digits and signs of "
            "ASCII; take a longer one"
        )
    listening = bound(host, port)
    app, _ = build_app(runs, results, host, token)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={quote(token)}" if token else "")
    app.state.answers.ready = lambda: ready(url)
    WebServer(config, app.state.answers.watcher).run(sockets=[listening])


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, or why there is none."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"--host {host} --port {port}: {reason}; take another, or --port 0 for any"
        ) from None
