"""Who may ask: the right host, the right origin, the right token; and what a page may load."""

import hmac
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER, COOKIE = "x-straggler-token", "straggler-token"
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
DOOR = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Straggler</title>
<body style="font:16px system-ui;max-width:30em;margin:3em auto"><h1>Straggler</h1>
<form><label>Token (the one that <code>straggler serve --token</code> was given)<br>
<input name="token" type="password" autofocus></label> <button>Open</button></form></body></html>"""


def is_loopback(host: str) -> bool:
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before everything else.

    A page from elsewhere cannot ask here: its origin is another (for what changes something), and a name
    that it makes point at this machine is not a host we answer to (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, host: str, token: str, closed: bool) -> None:
        self.app, self.host, self.token = app, host, token
        self.closed = closed  # even looking needs the token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers) or self._door(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                for key, value in HEADERS.items():
                    MutableHeaders(scope=message).setdefault(key, value)
            await send(message)

        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        method, site = scope["method"], headers.get("sec-fetch-site", "same-origin")
        if not self._known_host(headers.get("host", "")):
            return PlainTextResponse("unknown host: open the address that `straggler serve` printed", 421)
        asks = scope["path"].startswith(
            "/api"
        )  # what only our page does; a link from elsewhere may lead to others
        if site not in ("same-origin", "none") and (asks or method == "POST"):
            return PlainTextResponse("refused: the request comes from another site", 403)
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return PlainTextResponse("only GET and POST", 405)
        if headers.get("origin", "") not in (f"{scheme}://{headers['host']}" for scheme in ("http", "https")):
            return PlainTextResponse("refused: the request comes from another page", 403)
        if not same(headers.get(TOKEN_HEADER, ""), self.token):
            return PlainTextResponse("refused: the token is missing or wrong; load the page again", 403)
        if headers.get("content-type", "").split(";")[0] != "application/json":
            return PlainTextResponse("refused: send application/json", 415)
        return None

    def _known_host(self, given: str) -> bool:
        """This machine by a name that is ours; any plain address, for those cannot be rebound."""
        try:
            name = urlsplit(f"//{given}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name) or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return True

    def _door(self, scope: Scope, headers: Headers) -> Response | None:
        """Where looking needs the token too: it comes once in the address, then in a cookie."""
        if not self.closed or same(headers.get(TOKEN_HEADER, ""), self.token):
            return None
        if same(cookie(headers), self.token):
            return None
        if not same(QueryParams(scope["query_string"]).get("token", ""), self.token):
            return HTMLResponse(DOOR, 401)
        entry = RedirectResponse("/", 303)
        entry.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
        return entry


def same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
