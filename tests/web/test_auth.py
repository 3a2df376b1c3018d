"""Access to pages, and to starting and stopping runs."""

from pathlib import Path

import pytest
from web_testing import Site, serve_site

from straggler.config.registry import InputError
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


def test_with_a_token_reading_requires_it(tmp_path: Path) -> None:
    with serve_site(tmp_path, tmp_path, token="open sesame") as closed:
        assert closed.ask("/api/runs").status == closed.ask("/").status == 401
        assert closed.ask("/?token=wrong").status == 401
        entry = closed.ask("/?token=open%20sesame")
        assert entry.status == 303
        cookie = entry.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert closed.ask("/", Cookie=cookie.split(";")[0]).status == 200
        assert closed.ask("/api/runs", X_Straggler_Token="open sesame").status == 200


@pytest.mark.parametrize("token", ["", "short", "ключ от двери", "a\nb\nc\nd\ne\nf"])
def test_invalid_tokens_are_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(InputError, match="at least 8"):
        run_server(tmp_path, tmp_path, "127.0.0.1", 0, token, lambda url: None)


def test_public_addresses_require_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--token"):
        run_server(tmp_path, tmp_path, "0.0.0.0", 0, None, lambda url: None)
