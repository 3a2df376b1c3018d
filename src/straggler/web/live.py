"""What changes, told to every open page within a fraction of a second."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool

from straggler.web.launcher import RunLauncher
from straggler.web.run_index import RunIndex

LOOK_SECONDS = 0.25
STUDY_LOOKS = 20  # looks at the runs for one at the studies, which change rarely
BEAT_LOOKS = 40  # looks without news until a sign of life, by which a page that left is noticed


class ChangeFeed:
    """Looks at the shelf for all pages together; each is told what is new to it."""

    def __init__(self, shelf: RunIndex, starter: RunLauncher) -> None:
        self.shelf, self.starter = shelf, starter
        self._look: asyncio.Task[dict[str, Any]] | None = None
        self._looks, self._studies = 0, list[dict[str, Any]]()
        self.closing = False  # then pages are let go

    def state(self) -> dict[str, Any]:
        """Everything, now."""
        if self._looks % STUDY_LOOKS == 0:
            self._studies = self.shelf.studies()
        self._looks += 1
        rows = {row["id"]: row for row in self.shelf.rows()}
        more = {"progress": self.shelf.progress(), "started": self.starter.states()}
        return {"runs": rows, "studies": self._studies, **more}

    async def look(self) -> dict[str, Any]:
        """The state, at most LOOK_SECONDS old, however many pages ask."""
        if self._look is None:
            self._look = asyncio.create_task(self._look_and_rest())
        return await asyncio.shield(self._look)

    async def _look_and_rest(self) -> dict[str, Any]:
        found = await run_in_threadpool(self.state)
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._forget)
        return found

    def _forget(self) -> None:
        self._look = None

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: first everything, then what changed."""
        before: dict[str, Any] = {"runs": {}}
        quiet = 0
        while not self.closing:
            now = await self.look()
            news = changes(before, now)
            if news:
                yield f"data: {json.dumps(news, separators=(',', ':'))}\n\n"
            quiet = 0 if news else quiet + 1
            if quiet and quiet % BEAT_LOOKS == 0:
                yield ": still here\n\n"
            before = now
            await asyncio.sleep(LOOK_SECONDS)


def changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What a page that knew one state must be told of another."""
    old, new = before["runs"], now["runs"]
    news: dict[str, Any] = {}
    if rows := [row for name, row in new.items() if old.get(name) != row]:
        news["runs"] = rows
    if gone := [name for name in old if name not in new]:
        news["gone"] = gone
    return news | {key: value for key, value in now.items() if key != "runs" and before.get(key) != value}
