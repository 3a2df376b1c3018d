"""The live pages: a server for the run list, figures, reports, the playground and a feed of changes."""

import asyncio
import json
import logging
import shlex
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from straggler.config.registry import InputError
from straggler.record import RecordError
from straggler.timing import DurationError
from straggler.web.auth import RequestGuard, create_session, is_loopback
from straggler.web.connections import configure_server
from straggler.web.launcher import RunLauncher
from straggler.web.playground import build_experiment, list_choices, parse_settings, read_curve
from straggler.web.playground_build import PLAYGROUND_SCRIPTS
from straggler.web.report import STATIC, dump_json, render_html_report, render_template
from straggler.web.run_facts import build_command
from straggler.web.run_index import RunIndex
from straggler.web.run_routes import RunRoutes
from straggler.web.targets import parse_target

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 20_000
BODY_SECONDS = 10.0
MAX_STREAMS = 64  # open pages
MIN_TOKEN_LENGTH = 8
CACHE_FOREVER = "public, max-age=31536000, immutable"
NO_STORE = {"cache-control": "no-store"}
POLL_SECONDS = 0.25
FIRST_RUNS = 50  # that a page shows while the others are read
POLLS_PER_STUDY_POLL = 20  # studies change rarely
POLLS_PER_HEARTBEAT = 40  # a heartbeat notices pages that were closed


class ChangeFeed:
    """Polls the run index once for all open pages, and sends the changes to each page."""

    def __init__(self, index: RunIndex, launcher: RunLauncher) -> None:
        self.index, self.launcher = index, launcher
        self._state: asyncio.Future[dict[str, Any]] | None = None
        self._polled, self._polls, self._studies = 0.0, 0, list[dict[str, Any]]()
        self.is_closing: Callable[[], bool] = lambda: False  # ends the streams
        self.streams = 0  # open pages

    def read_state(self) -> dict[str, Any]:
        if self._polls % POLLS_PER_STUDY_POLL == 0:
            self._studies = self.index.list_studies()
        self._polls += 1
        return {
            "runs": {row["id"]: row for row in self.index.list_runs()},
            "studies": self._studies,
            "progress": self.index.list_progress(),
            "started": self.launcher.list_states(),
        }

    def read_newest(self) -> dict[str, Any]:
        """Return the newest runs only: a first answer, while all runs are read."""
        rows = {row["id"]: row for row in self.index.list_runs(FIRST_RUNS)}
        total = self.index.count_runs()
        return {"runs": rows, "total": total} if total > len(rows) else {"runs": rows}

    async def poll(self) -> dict[str, Any]:
        """Return the state, at most POLL_SECONDS old, whatever the number of pages."""
        if self._state is None or (self._state.done() and time.monotonic() > self._polled + POLL_SECONDS):
            self._state = asyncio.ensure_future(run_in_threadpool(self.read_state))
            self._polled = time.monotonic()
        return await asyncio.shield(self._state)

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events: first the whole state, then what changed."""
        before: dict[str, Any] = {"runs": {}}
        quiet = 0
        self.streams += 1
        try:
            if self._state is None or not self._state.done():  # the folders have not been read yet
                before = await run_in_threadpool(self.read_newest)
                yield f"data: {json.dumps(find_changes({'runs': {}}, before), separators=(',', ':'))}\n\n"
            while not self.is_closing():
                try:
                    now = await self.poll()
                except Exception:  # the next poll may succeed; pages keep what they show
                    log.exception("The folders of the runs and studies cannot be read.")
                    now = before
                changes = find_changes(before, now)
                if changes:
                    yield f"data: {json.dumps(changes, separators=(',', ':'))}\n\n"
                quiet = 0 if changes else quiet + 1
                if quiet and quiet % POLLS_PER_HEARTBEAT == 0:
                    yield ": heartbeat\n\n"
                before = now
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self.streams -= 1


def find_changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the changes from one state to another."""
    old, new = before["runs"], now["runs"]
    changes: dict[str, Any] = {}
    if rows := [row for name, row in new.items() if old.get(name) != row]:
        changes["runs"] = rows
    if gone := [name for name in old if name not in new]:
        changes["gone"] = gone
    return changes | {key: value for key, value in now.items() if key != "runs" and before.get(key) != value}


class RequestHandlers:
    """A method per route."""

    def __init__(self, runs: Path, results: Path, token: str) -> None:
        self.index, self.launcher, self.token = RunIndex(runs, results), RunLauncher(runs), token
        self.feed = ChangeFeed(self.index, self.launcher)
        self.run_routes = RunRoutes(self.index, read_body)
        self.on_ready: Callable[[], None] = lambda: None

    def show_page(self, request: Request) -> Response:
        values = {"choices": dump_json(list_choices()), "playground_scripts": PLAYGROUND_SCRIPTS}
        text = render_template("page.html", token=self.token, **values)
        return HTMLResponse(text, headers=NO_STORE)

    def send_plotly(self, request: Request) -> Response:
        return Response(
            get_plotlyjs(), media_type="text/javascript", headers={"cache-control": CACHE_FOREVER}
        )

    def list_runs(self, request: Request) -> Response:
        return JSONResponse(self.index.list_runs())

    def send_figures(self, request: Request) -> Response:
        complete = request.query_params.get("complete") == "1"
        target = parse_target(request.query_params.get("target"))
        text = self.index.render_runs(request.query_params.getlist("id"), complete, target)
        return Response(text, media_type="application/json", headers=NO_STORE)

    def send_preview(self, request: Request) -> Response:
        """Check the settings of the playground; answer with the run's id and command."""
        lists = ("delay", "link", "churn")
        values: dict[str, Any] = {
            key: request.query_params.getlist(key) if key in lists else value
            for key, value in request.query_params.items()
        }
        settings = parse_settings(values)
        experiment = build_experiment(settings)
        self.launcher.prepare()  # the visitor may press Train soon
        answer = {"id": experiment.id, "command": shlex.join(build_command(settings))}
        return JSONResponse(answer, headers=NO_STORE)

    def send_curves(self, request: Request) -> Response:
        """Send the accuracy curves of runs by id; a run that does not exist yet has no curve."""
        names = request.query_params.getlist("id")[:2]
        return JSONResponse({name: self._read_curve(name) for name in names}, headers=NO_STORE)

    def _read_curve(self, name: str) -> list[list[float]]:
        try:
            return read_curve(self.index.open_run(name)[1].curve)
        except RecordError:
            return []

    def show_run_report(self, request: Request) -> Response:
        names = request.path_params["names"].split(",")
        runs, notes = self.index.open_runs(names)
        return send_report(
            request, names[0], lambda embedded: render_html_report(runs, (), embedded, None, notes)
        )

    def show_study_report(self, request: Request) -> Response:
        study = self.index.open_study(request.path_params["name"])
        return send_report(request, study.name, lambda embedded: render_html_report([], [study], embedded))

    async def stream_changes(self, request: Request) -> Response:
        if self.feed.streams >= MAX_STREAMS:
            return PlainTextResponse(f"{MAX_STREAMS} pages are open already. Close one.", 503)
        headers = NO_STORE | {"x-accel-buffering": "no"}
        return StreamingResponse(self.feed.stream(), media_type="text/event-stream", headers=headers)

    async def start_run(self, request: Request) -> Response:
        body = await read_body(request)
        try:
            values = json.loads(body)
        except RecursionError:
            values = None
        if not isinstance(values, dict):
            raise InputError("Send the settings as a JSON object.")
        return JSONResponse(await run_in_threadpool(self._start, parse_settings(values)))

    def _start(self, settings: dict[str, Any]) -> dict[str, Any]:
        experiment = build_experiment(settings)
        return {"id": experiment.id, "started": self.launcher.start(experiment, settings)}

    def stop_run(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self.launcher.stop(name):
            raise InputError(f"{name[:40]!r} was not started from this page, or has ended.")
        return JSONResponse({"id": name, "stopping": True})

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.on_ready()
        reading = asyncio.ensure_future(self.feed.poll())  # before the first page asks
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        yield
        reading.cancel()
        await run_in_threadpool(self.launcher.close)

    def list_routes(self) -> list[Route | Mount]:
        return [
            Route("/", self.show_page),
            Route("/static/plotly.js", self.send_plotly),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/runs", self.list_runs, methods=["GET"]),
            Route("/api/runs", self.start_run, methods=["POST"]),
            *self.run_routes.list_routes(),
            Route("/api/runs/{name}/stop", self.stop_run, methods=["POST"]),
            Route("/api/figures", self.send_figures),
            Route("/api/preview", self.send_preview),
            Route("/api/curves", self.send_curves),
            Route("/api/events", self.stream_changes),
            Route("/reports/runs/{names}", self.show_run_report),
            Route("/reports/studies/{name}", self.show_study_report),
        ]


async def read_body(request: Request) -> bytes:
    """Return the body of a request; stop reading if it is too long or too slow."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"A request may have at most {MAX_BODY_BYTES:,} bytes.")
    except TimeoutError:
        raise HTTPException(408, f"The request took longer than {BODY_SECONDS:.0f} s.") from None
    return body


def send_report(request: Request, name: str, render: Callable[[bool], str]) -> Response:
    """Return a report as a page, or as a file that needs nothing else with ?download=1."""
    is_download = request.query_params.get("download") == "1"
    disposition = {"content-disposition": f'attachment; filename="straggler-{name}.html"'}
    return HTMLResponse(render(is_download), headers=NO_STORE | (disposition if is_download else {}))


def answer_error(status: int) -> Callable[[Request, Exception], Response]:
    """Return a handler that answers with the error's message."""
    return lambda request, error: PlainTextResponse(str(error), status)


def build_web_app(
    runs: Path, results: Path, host: str = "127.0.0.1", token: str | None = None
) -> tuple[Starlette, str]:
    """Return the application, and the secret of a session, which starting and stopping runs requires."""
    session = create_session()
    handlers = RequestHandlers(runs, results, session)
    guard = Middleware(RequestGuard, host=host, token=token, session=session)
    gzip = Middleware(GZipMiddleware, minimum_size=100_000, compresslevel=4)
    errors: dict[Any, Any] = {RecordError: answer_error(404)}
    errors |= {error: answer_error(400) for error in (InputError, DurationError, ValueError)}
    app = Starlette(
        routes=handlers.list_routes(),
        middleware=[guard, gzip],
        lifespan=handlers.lifespan,
        exception_handlers=errors,
    )
    app.state.handlers = handlers
    return app, session


def run_server(
    runs: Path,
    results: Path,
    host: str,
    port: int,
    token: str | None,
    on_ready: Callable[[str], None],
    shows_token: bool = True,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve until Ctrl-C; runs that were started from the page write a checkpoint and stop."""
    if not is_loopback(host) and token is None:
        raise InputError(
            f"--host {host} is reachable from other machines, so it requires --token. "
            f"Set STRAGGLER_TOKEN, or pass --token-file FILE."
        )
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= MIN_TOKEN_LENGTH):
        raise InputError(f"The token must have at least {MIN_TOKEN_LENGTH} printable ASCII characters.")
    listener = open_socket(host, port)
    app, _ = build_web_app(runs, results, host, token)
    address = f"[{host}]" if ":" in host else host
    entry = f"?token={quote(token)}" if token and shows_token else ""
    url = f"http://{address}:{listener.getsockname()[1]}/{entry}"
    app.state.handlers.launcher.report = report
    app.state.handlers.on_ready = lambda: on_ready(url)
    # A busy machine needs seconds to end the streams of open pages. uvicorn reports those that it cancels.
    server = uvicorn.Server(configure_server(app, log_level="warning", timeout_graceful_shutdown=10))
    app.state.handlers.feed.is_closing = lambda: server.should_exit  # uvicorn waits for open streams
    server.run(sockets=[listener])


def open_socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = f"{error.strerror or error}. Use --port 0 for a free port."
        raise InputError(f"Cannot listen on {host}, --port {port}: {reason}") from None
