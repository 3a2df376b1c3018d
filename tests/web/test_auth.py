"""Access to pages, and to starting and stopping runs."""

import http.client
import os
import subprocess
import sys
from pathlib import Path

import pytest
from web_testing import Site, serve_site

from straggler.cli.pages import read_token
from straggler.config.registry import InputError
from straggler.web import auth
from straggler.web.server import run_server


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "a@b:c"])
def test_rebound_host_names_are_refused(here: Site, host: str) -> None:
    for path in ("/", "/api/runs", "/static/app.js"):
        assert here.ask(path, Host=host).status in (400, 421)
    assert here.ask("/", Host="localhost:1").status == here.ask("/", Host="[::1]:9").status == 200


ATTACKS: dict[str, tuple[dict[str, str], int]] = {
    "another origin": ({"Origin": "http://evil.example"}, 403),
    "another port of this machine": ({"Origin": "http://127.0.0.1:1"}, 403),
    "a null origin": ({"Origin": "null"}, 403),
    "an invalid origin": ({"Origin": "http://["}, 403),
    "no origin": ({"Origin": ""}, 403),
    "another site": ({"Sec_Fetch_Site": "cross-site"}, 403),
    "no token": ({"X_Straggler_Token": ""}, 403),
    "a wrong token": ({"X_Straggler_Token": "x"}, 403),
    "a form": ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    "a rebound name": ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_starting_and_stopping_are_refused_to(here: Site, what: str) -> None:
    headers, status = ATTACKS[what]
    before = here.list_ids()
    assert here.post("/api/runs", {"dataset": "digits"}, **headers).status == status
    assert here.post(f"/api/runs/{before[0]}/stop", **headers).status == status
    assert here.list_ids() == before and here.app.state.handlers.launcher.list_states() == {}


def test_other_sites_may_link_but_not_use_the_api(here: Site) -> None:
    for origin in ("cross-site", "same-site"):
        assert here.ask("/", Sec_Fetch_Site=origin).status == 200
        assert here.ask("/api/preview?workers=4", Sec_Fetch_Site=origin).status == 403
    assert here.ask("/api/runs", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(here: Site, method: str) -> None:
    assert here.ask("/api/runs", method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/api/figures?id=../secret",
        "/api/figures?id=..%2fsecret",
        "/api/figures?id=/etc",
        "/api/figures?id=.",
        "/api/figures?id=",
        "/api/figures?id=link",
        "/api/figures?id=%00",
        "/api/figures",
        "/reports/runs/..%2fsecret",
        "/reports/runs/link",
        "/reports/studies/..%2fruns",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
    ],
)
def test_paths_cannot_leave_their_folder(here: Site, path: str) -> None:
    secret = here.runs.parent / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "experiment.toml").write_text("workers = 3")
    link = here.runs / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    try:
        answer = here.ask(path)
        assert answer.status in (400, 404)
        assert "link" not in {row["id"] for row in here.ask("/api/runs").json()}
        assert b"workers" not in answer.body and b"build_app" not in answer.body
    finally:
        link.unlink()


TOKEN = "open sesame"


def test_with_a_token_reading_requires_it(tmp_path: Path) -> None:
    with serve_site(tmp_path, tmp_path, token=TOKEN) as closed:
        assert closed.ask("/api/runs").status == closed.ask("/").status == 401
        assert closed.ask("/?token=wrong").status == 401
        entry = closed.ask("/?token=open%20sesame")
        assert entry.status == 303
        cookie = entry.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        page = closed.ask("/", Cookie=cookie.split(";")[0])
        assert page.status == 200 and TOKEN not in page.text + cookie
        assert closed.ask("/api/runs", X_Straggler_Token=TOKEN).status == 200
        started = closed.post("/api/runs", {"workers": 0}, X_Straggler_Token=TOKEN)
        assert started.status == 400, "the token was accepted"


def test_cookies_of_two_ports_do_not_replace_each_other(tmp_path: Path) -> None:
    """Browsers send a cookie to every port of a host."""
    with (
        serve_site(tmp_path, tmp_path, token=TOKEN) as one,
        serve_site(tmp_path, tmp_path, token=TOKEN) as two,
    ):
        entries = [site.ask("/?token=open%20sesame") for site in (one, two)]
        cookies = [entry.headers["set-cookie"].split(";")[0] for entry in entries]
        assert str(one.port) in cookies[0] and str(two.port) in cookies[1]
        for site in (one, two):
            assert site.ask("/api/runs", Cookie="; ".join(cookies)).status == 200
        assert one.ask("/api/runs", Cookie=cookies[1]).status == 401


def test_wrong_tokens_are_limited_but_sessions_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After five wrong tokens an address has to wait, however it sends them, and even with the right one."""
    with serve_site(tmp_path, tmp_path, token=TOKEN) as closed:
        cookie = closed.ask("/?token=open%20sesame").headers["set-cookie"].split(";")[0]
        guesses = [
            *(lambda: closed.ask("/?token=guess") for _ in range(2)),
            *(lambda: closed.ask("/api/runs", X_Straggler_Token="guess") for _ in range(2)),
            lambda: closed.post("/api/runs", X_Straggler_Token="guess"),
        ]
        assert [guess().status for guess in guesses] == [401, 401, 401, 401, 403]
        refused = closed.ask("/?token=open%20sesame")
        assert refused.status == 429 and 0 < int(refused.headers["retry-after"]) <= 60
        assert closed.ask("/", X_Forwarded_For="10.1.2.3", X_Straggler_Token=TOKEN).status == 429
        assert closed.post("/api/runs", X_Straggler_Token=TOKEN).status == 429
        for _ in range(10):
            assert closed.ask("/").status == 401, "no token was tried"
            assert closed.ask("/api/runs", Cookie=cookie).status == 200
        monkeypatch.setattr(auth, "WRONG_TOKEN_SECONDS", 0.0)
        assert closed.ask("/?token=open%20sesame").status == 303


def test_the_limiter_forgets_old_addresses() -> None:
    limiter = auth.TokenLimiter()
    for number in range(3 * auth.MAX_ADDRESSES):
        limiter.add_failure(str(number))
    assert len(limiter._failures) == auth.MAX_ADDRESSES
    assert auth.find_network("2001:db8:1:2:3::4") == auth.find_network("2001:db8:1:2:9::9")
    assert auth.find_network("10.0.0.1") == "10.0.0.1"


def test_the_token_comes_from_the_option_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("from the file\nsecond line\n")
    monkeypatch.setenv("STRAGGLER_TOKEN", "from the environment")
    assert read_token("from the option", None) == "from the option"
    assert "STRAGGLER_TOKEN" not in os.environ, "runs that a page starts do not inherit it"
    assert read_token(None, None) is None
    assert read_token(None, file) == "from the file"
    monkeypatch.setenv("STRAGGLER_TOKEN", "from the environment")
    assert read_token(None, None) == "from the environment"
    with pytest.raises(InputError, match="both"):
        read_token("one", file)
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="text file"):
        read_token(None, file)


@pytest.mark.slow
def test_a_hidden_token_is_neither_printed_nor_in_the_list_of_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "straggler", "serve", "--port", "0", "--runs", str(tmp_path)]
    environment = os.environ | {"STRAGGLER_TOKEN": TOKEN}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = process.stdout.readline()
        assert "open http" in printed and "token" not in printed
        assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
        port = int(printed.split(":")[-1].strip("/\n"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/api/runs")
        assert connection.getresponse().status == 401
        connection.close()
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("token", ["", "short", "ключ от двери", "a\nb\nc\nd\ne\nf"])
def test_invalid_tokens_are_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(InputError, match="at least 8"):
        run_server(tmp_path, tmp_path, "127.0.0.1", 0, token, lambda url: None)


def test_public_addresses_require_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--token"):
        run_server(tmp_path, tmp_path, "0.0.0.0", 0, None, lambda url: None)
