"""Limits of connections, so that slow or silent clients cannot lock others out of the pages."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 200
MAX_HEADER_BYTES = 32_768
HEADER_SECONDS = 10.0  # for the headers of a request, also if bytes arrive one by one
WRITE_SECONDS = 60.0  # for a client to read what is buffered for it


class BoundedProtocol(H11Protocol):
    """A connection that ends if its client is too slow, or if too many are open and it has no request.

    uvicorn itself has no time limit for headers, and answers 503 to everybody when too many are open.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is complete and its answer is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._start_header_timer()
        if len(self.connections) > MAX_CONNECTIONS:
            found = [each for each in self.connections if isinstance(each, BoundedProtocol)]
            idle = [each for each in found if not each.is_busy and not each.transport.is_closing()]
            min(idle, key=lambda each: each._opened, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timers()

    def handle_events(self) -> None:
        super().handle_events()
        if self.is_busy and self._header_timer is not None:
            self._header_timer.cancel()

    def on_response_complete(self) -> None:
        self._start_header_timer()  # of the next request; `super` may find it in the buffer
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _start_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()


def configure_server(app: Any, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server whose connections are bounded."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=2 * MAX_CONNECTIONS,  # connections that are being closed count
        server_header=False,
        proxy_headers=False,  # a client must not choose the address under which its wrong tokens count
        **options,
    )
