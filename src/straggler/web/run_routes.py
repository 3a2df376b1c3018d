"""Routes of the list of runs and of sweeps: labels, deletion, time to target, sweeps."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from straggler.config.registry import InputError
from straggler.web.report import dump_json
from straggler.web.run_index import RunIndex, list_default_settings
from straggler.web.run_labels import change_labels, delete_runs, parse_label_changes
from straggler.web.sweep_page import describe_sweep
from straggler.web.targets import parse_target

NO_STORE = {"cache-control": "no-store"}
MAX_DELETED = 1000  # in one request


class RunRoutes:
    """A method per route. Requests that change something have passed the checks of `RequestGuard`."""

    def __init__(self, index: RunIndex, read_body: Callable[[Request], Awaitable[bytes]]) -> None:
        self.index, self._read_body = index, read_body

    def list_routes(self) -> list[Route]:
        return [
            Route("/api/runs/label", self.change_labels, methods=["POST"]),
            Route("/api/runs/delete", self.delete_runs, methods=["POST"]),
            Route("/api/settings", self.list_settings),
            Route("/api/targets", self.list_targets),
            Route("/api/sweeps/{name}", self.send_sweep),
        ]

    async def change_labels(self, request: Request) -> Response:
        changes = parse_label_changes(await self._read_json(request))
        folders = await run_in_threadpool(self.index.find_runs, changes.ids)
        await self._write(change_labels, folders, changes)
        return JSONResponse({"changed": len(folders)})

    async def delete_runs(self, request: Request) -> Response:
        """Delete runs; the request repeats their number, so that a page cannot delete others by mistake."""
        values = await self._read_json(request)
        names = values.get("ids") if isinstance(values, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError("Send the ids of the runs as a list of texts.")
        if not 0 < len(names) <= MAX_DELETED or values.get("count") != len(names):
            raise InputError(f"Send 1 to {MAX_DELETED:,} ids, and their number as `count`.")
        folders = await run_in_threadpool(self.index.find_runs, names)
        await self._write(delete_runs, folders)
        return JSONResponse({"deleted": len(folders)})

    def list_settings(self, request: Request) -> Response:
        return JSONResponse(list_default_settings())

    def list_targets(self, request: Request) -> Response:
        target = parse_target(request.query_params.get("accuracy"))
        times = self.index.find_times_to(target)
        return Response(
            dump_json({"target": target, "times": times}), media_type="application/json", headers=NO_STORE
        )

    def send_sweep(self, request: Request) -> Response:
        folder, ids = self.index.find_sweep(request.path_params["name"])
        target = parse_target(request.query_params.get("target"))
        rows = [row for row in self.index.list_runs() if row["id"] in ids]
        page = describe_sweep(folder, rows, self.index.find_times_to(target, ids), target)
        return Response(dump_json(page), media_type="application/json", headers=NO_STORE)

    async def _write(self, work: Callable[..., None], *arguments: Any) -> None:
        """Change files of runs; a folder that cannot be written is no error of the server."""
        try:
            await run_in_threadpool(work, *arguments)
        except OSError as error:
            raise InputError(
                f"Cannot write to {self.index.runs} ({error.strerror}). Check its permissions."
            ) from None

    async def _read_json(self, request: Request) -> Any:
        try:
            return json.loads(await self._read_body(request))
        except (ValueError, RecursionError):
            raise InputError("Send a JSON object.") from None
