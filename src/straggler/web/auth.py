"""Host, origin and token checks, and the content security policy."""

import hmac
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER, TOKEN_COOKIE = "x-straggler-token", "straggler-token"
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
LOGIN_PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Straggler</title>
<body style="font:16px system-ui;max-width:30em;margin:3em auto"><h1>Straggler</h1>
<form><label>Access token (the value of <code>straggler serve --token</code>)<br>
<input name="token" type="password" autofocus></label> <button>Open</button></form></body></html>"""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RequestGuard:
    """Middleware that checks every request before the application sees it.

    Requests that change something must come from our page. The host must be an address of this machine:
    otherwise another site could make its name point here and read the answers (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, host: str, token: str, needs_login: bool) -> None:
        self.app, self.host, self.token = app, host, token
        self.needs_login = needs_login  # reading requires the token too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._check_request(scope, headers) or self._check_login(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                for key, value in SECURITY_HEADERS.items():
                    MutableHeaders(scope=message).setdefault(key, value)
            await send(message)

        await (refusal or self.app)(scope, receive, send_with_headers)

    def _check_request(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request that does not come from our page, or None."""
        method, site = scope["method"], headers.get("sec-fetch-site", "same-origin")
        if not self._is_known_host(headers.get("host", "")):
            return PlainTextResponse("Unknown host. Open the address that `straggler serve` printed.", 421)
        is_api = scope["path"].startswith("/api")  # other sites may link to pages, but not use the API
        if site not in ("same-origin", "none") and (is_api or method == "POST"):
            return PlainTextResponse("Refused: the request comes from another site.", 403)
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return PlainTextResponse("Only GET and POST are allowed.", 405)
        if headers.get("origin", "") not in (f"http://{headers['host']}", f"https://{headers['host']}"):
            return PlainTextResponse("Refused: the request comes from another page.", 403)
        if not is_same_secret(headers.get(TOKEN_HEADER, ""), self.token):
            return PlainTextResponse("Refused: the token is missing or wrong. Reload the page.", 403)
        if headers.get("content-type", "").split(";")[0] != "application/json":
            return PlainTextResponse("Refused: send application/json.", 415)
        return None

    def _is_known_host(self, header: str) -> bool:
        """Return whether the Host header names this machine; plain IP addresses cannot be rebound."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
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

    def _check_login(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the login page if the token is required and missing; a token in the URL sets the cookie."""
        if not self.needs_login or is_same_secret(headers.get(TOKEN_HEADER, ""), self.token):
            return None
        if is_same_secret(read_token_cookie(headers), self.token):
            return None
        if not is_same_secret(QueryParams(scope["query_string"]).get("token", ""), self.token):
            return HTMLResponse(LOGIN_PAGE, 401)
        redirect = RedirectResponse("/", 303)
        redirect.set_cookie(TOKEN_COOKIE, self.token, httponly=True, samesite="strict")
        return redirect


def is_same_secret(received: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(received.encode(), expected.encode())


def read_token_cookie(headers: Headers) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(TOKEN_COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
