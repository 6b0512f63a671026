"""Who may ask, and how much: hosts, the token, the size and form of a body, headers of a reply."""

import asyncio
import base64
import binascii
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from sextant.base.errors import InputError
from sextant.serve.answering import error_reply

MOST_BODY = 32 * 2**20
"""Bytes of a request's body: a log of 500,000 requests."""
_BODY_S = 30.0
"""Longest time until a body has arrived."""
_MOST_DEPTH = 40
"""Objects and lists in one another, in a body."""
_LOCAL_NAMES = ("localhost",)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class Refusal(Exception):
    """A request that is not answered: the status, and the error."""

    def __init__(self, status: int, error: InputError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error

    def response(self) -> Response:
        """Return it as JSON."""
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="sextant: any name, the token as password"'
        content = error_reply(self.status, self.error).content
        return Response(content, self.status, headers, "application/json")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() in _LOCAL_NAMES


@dataclass(frozen=True)
class Guard:
    """What is looked at before a request is answered, and headers of every reply."""

    app: _App
    token: str | None = None

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.lower().encode(), it.encode()) for name, it in _HEADERS.items()]
                message["headers"] = [*message["headers"], *ours]
            await send(message)

        try:
            self._check(Request(scope))
        except Refusal as refusal:
            return await refusal.response()(scope, receive, send_with_headers)
        await self.app(scope, receive, send_with_headers)

    def _check(self, request: Request) -> None:
        """Raise Refusal for a request of somebody who may not ask."""
        host = request.headers.get("host", "")
        # Without a token anybody on this machine may ask, but no page of a stranger's that has its
        # own name lead here (DNS rebinding): its requests carry that name. With one, the browser
        # sends the token to no such name.
        if self.token is None and not is_loopback(_without_port(host)):
            fix = "ask 127.0.0.1 or localhost"
            raise Refusal(403, InputError(f"host {host[:80]!r} is not this one", fix=fix))
        if self.token is not None and not _has_token(request.headers, self.token):
            fix = "send `Authorization: Bearer TOKEN`, or in a browser the token as password"
            raise Refusal(401, InputError("a token is needed", fix=fix))
        origin = request.headers.get("origin")
        if request.method != "GET" and origin and origin.partition("://")[2] != host:
            fix = "ask from the page of this server, or from a program"
            raise Refusal(403, InputError("another site's page asks", fix=fix))


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host


def _has_token(headers: Any, token: str) -> bool:
    """Return whether a request has the token; every wrong one takes the same time."""
    scheme, _, said = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            said = base64.b64decode(said, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            said = ""
    return hmac.compare_digest(said.strip().encode(), token.encode())


async def read_question(request: Request) -> dict[str, Any]:
    """Return a body of JSON, an object. Raises Refusal for another, a large or a slow one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        fix = "send JSON, with Content-Type: application/json"
        raise Refusal(415, InputError("the body is not JSON by its type", fix=fix))
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, InputError("the body is compressed", fix="send it as it is"))
    if not request.headers.get("content-length", "0").isdecimal():
        raise Refusal(400, InputError("Content-Length is no number", fix="correct it"))
    _check_size(int(request.headers.get("content-length", "0")))

    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                body += chunk
                _check_size(len(body))
    except TimeoutError:
        problem = f"the body takes longer than {_BODY_S:g} s"
        raise Refusal(408, InputError(problem, fix="send it at once")) from None
    return parse_question(bytes(body))


def _check_size(n_bytes: int) -> None:
    if n_bytes > MOST_BODY:
        fix = f"send up to {MOST_BODY >> 20} MiB, e.g. some days of a trace"
        raise Refusal(413, InputError("the body is too large", fix=fix))


def parse_question(body: bytes) -> dict[str, Any]:
    """Return the object that JSON says. Raises Refusal: it is none, or objects lie too deep."""
    try:
        question = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:  # NaN and infinity are no JSON
        problem = f"the body is not JSON ({str(error)[:200]})"
        raise Refusal(400, InputError(problem, fix="send one object")) from None
    if not isinstance(question, dict):
        raise Refusal(400, InputError("the body is no object", fix="send one object"))
    if _depth(question) > _MOST_DEPTH:
        problem = f"the body has more than {_MOST_DEPTH} objects and lists in one another"
        raise Refusal(400, InputError(problem, fix="send the options alone"))
    return question


def _depth(value: Any) -> int:
    """Return how many objects and lists lie in one another."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        inner = [it.values() if isinstance(it, dict) else it for it in level]
        level = [part for it in inner for part in it if isinstance(part, dict | list)]
    return depth
