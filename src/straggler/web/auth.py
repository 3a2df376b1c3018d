"""Host, origin and token checks, a limit on wrong tokens, and the content security policy."""

import hmac
import ipaddress
import secrets
import socket
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-straggler-token"
MAX_WRONG_TOKENS, WRONG_TOKEN_SECONDS = 5, 60.0  # of one address
MAX_ADDRESSES = 1000  # whose wrong tokens are remembered
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
<form><label>Access token of <code>straggler serve</code><br>
<input name="token" type="password" autofocus></label> <button>Open</button></form></body></html>"""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenLimiter:
    """Counts the wrong tokens of each address, and says how long an address with too many has to wait."""

    def __init__(self) -> None:
        self._failures: dict[str, list[float]] = {}  # times by address

    def find_wait(self, address: str) -> float:
        """Return the seconds until this address may try another token."""
        recent = self._list_recent(address)
        if len(recent) < MAX_WRONG_TOKENS:
            return 0.0
        return recent[-MAX_WRONG_TOKENS] + WRONG_TOKEN_SECONDS - time.monotonic()

    def add_failure(self, address: str) -> None:
        recent = self._list_recent(address)
        self._failures.pop(address, None)  # the address becomes the newest
        self._failures[address] = [*recent, time.monotonic()]
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def _list_recent(self, address: str) -> list[float]:
        since = time.monotonic() - WRONG_TOKEN_SECONDS
        return [failure for failure in self._failures.get(address, []) if failure > since]


class RequestGuard:
    """Middleware that checks every request before the application sees it.

    Requests that change something must come from our page. The host must be an address of this machine:
    otherwise another site could make its name point here and read the answers (DNS rebinding).

    The token opens a session, whose secret is in the cookie and in the page. Guesses of the token are
    limited; the secret is too long to guess. Without a token, reading needs no session.
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None, session: str) -> None:
        self.app, self.host, self.token, self.session = app, host, token, session
        self._limiter = TokenLimiter()

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
        wrong = PlainTextResponse("Refused: the token is missing or wrong. Reload the page.", 403)
        if refusal := self._check_token(scope, headers.get(TOKEN_HEADER, ""), wrong):
            return refusal
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
        name = f"straggler-token-{scope['server'][1]}"  # browsers send cookies to every port of a host
        if self.token is None or is_same_secret(read_cookie(headers, name), self.session):
            return None
        login, header = HTMLResponse(LOGIN_PAGE, 401), headers.get(TOKEN_HEADER, "")
        query = QueryParams(scope["query_string"]).get("token", "")
        refusal = self._check_token(scope, header or query, login)
        if refusal or header:
            return refusal
        redirect = RedirectResponse("/", 303)
        redirect.set_cookie(name, self.session, httponly=True, samesite="strict")
        return redirect

    def _check_token(self, scope: Scope, text: str, refusal: Response) -> Response | None:
        """Return None if a text is the token or the session's secret; otherwise count it and refuse."""
        if is_same_secret(text, self.session):
            return None
        if self.token is None or not text:
            return refusal
        address = find_network(scope["client"][0] if scope["client"] else "")
        if (wait := self._limiter.find_wait(address)) > 0:
            text = f"Too many wrong tokens. Try again in {wait:.0f} s."
            return PlainTextResponse(text, 429, {"retry-after": f"{wait:.0f}"})
        if is_same_secret(text, self.token):
            return None
        self._limiter.add_failure(address)
        return refusal


def create_session() -> str:
    """Return a new secret of a session."""
    return secrets.token_urlsafe(24)


def find_network(address: str) -> str:
    """Return an address; of IPv6, the network, of which one client has all addresses."""
    return ":".join(address.split(":")[:4]) if ":" in address else address


def is_same_secret(received: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(received.encode(), expected.encode())


def read_cookie(headers: Headers, name: str) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
