"""Slow, silent and greedy clients, with real sockets: none of them locks others out."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_testing import Site, serve_site, wait_until

from straggler.web import connections, server

SHORT = 0.4  # seconds


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site with short limits."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", SHORT)
    monkeypatch.setattr(connections, "WRITE_SECONDS", SHORT)
    monkeypatch.setattr(server, "BODY_SECONDS", SHORT)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with serve_site(tmp_path / "runs", tmp_path / "none") as found:
        yield found


def is_closed(client: socket.socket) -> bool:
    """Wait until the server has closed the connection, and return True; raise TimeoutError otherwise."""
    client.settimeout(120)
    with contextlib.suppress(ConnectionError):
        while client.recv(65536):
            pass
    return True


def write_post(site: Site, length: int) -> bytes:
    headers = f"Host: 127.0.0.1:{site.port}\r\nOrigin: {site.url}\r\nX-Straggler-Token: {site.token}\r\n"
    return (
        f"POST /api/runs HTTP/1.1\r\n{headers}Content-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127"])
def test_a_client_without_headers_is_closed(site: Site, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(sent)
        assert is_closed(client)


def test_headers_that_arrive_one_by_one_do_not_extend_the_time(site: Site) -> None:
    """This holds for the second request of a connection too."""
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(f"GET /api/nothing HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        assert b"404" in client.recv(65536)
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < started + 100:
                client.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() < started + 90


def test_half_open_connections_lock_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with serve_site(tmp_path / "runs", tmp_path / "none") as site, contextlib.ExitStack() as stack:
        for _ in range(60):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", site.port)))
            client.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(3):
            assert site.ask("/api/runs").status == 200


def test_a_busy_connection_is_not_closed_for_a_new_one(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(("127.0.0.1", site.port)))
        client.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        assert b"200" in client.recv(100)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", site.port)))
        time.sleep(3 * SHORT)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                assert client.recv(65536), "the connection is closed"


def test_the_body_is_limited_while_it_is_read(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(write_post(site, 10**9) + b"x" * 30_000)  # of a gigabyte
        assert b"413" in client.recv(65536).split(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(write_post(site, 100) + b"{")
        client.settimeout(120)
        assert b"408" in client.recv(65536).split(b"\r\n")[0]


def test_a_client_that_does_not_read_is_closed(site: Site) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", site.port))
        client.sendall(f"GET /static/plotly.js HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        time.sleep(8 * SHORT)
        received = 0
        client.settimeout(120)
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 20):
                received += len(part)
        assert received < 4_000_000


def test_open_pages_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_STREAMS", 1)
    feed = site.app.state.handlers.feed
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        wait_until(lambda: feed.streams == 1, "the page is open")
        assert site.ask("/api/events").status == 503
    wait_until(lambda: feed.streams == 0, "the page is closed")


def test_long_headers_are_refused(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + b"x" * (connections.MAX_HEADER_BYTES + 1))
        assert b"400" in client.recv(65536).split(b"\r\n")[0]
