"""What is looked at before a question is read: hosts, the token, bodies."""

import asyncio
import base64

import pytest
from fastapi import Request

from sextant.serve import guard
from sextant.serve.guard import Guard, Refusal, parse_question, read_question


def body_of(receive) -> dict:
    headers = [(b"content-type", b"application/json; charset=utf-8")]
    scope = {"type": "http", "method": "POST", "headers": headers}
    return asyncio.run(read_question(Request(scope, receive)))


def test_a_body_in_parts_is_read() -> None:
    parts = [b'{"users"', b": 5}"]

    async def receive() -> dict:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    assert body_of(receive) == {"users": 5}


def test_a_body_without_an_end_is_cut_off() -> None:
    async def receive() -> dict:
        return {"type": "http.request", "body": b" " * 2**20, "more_body": True}

    with pytest.raises(Refusal) as refusal:
        body_of(receive)
    assert refusal.value.status == 413


def test_a_body_that_drips_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(guard, "_BODY_S", 0.05)

    async def receive() -> dict:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(Refusal) as refusal:
        body_of(receive)
    assert refusal.value.status == 408


def test_a_body_is_one_object_of_a_few_levels() -> None:
    assert parse_question(b'{"prices": [{"usd_per_hour": 2}]}') == {"prices": [{"usd_per_hour": 2}]}
    for body in (b"[]", b"5", b"{", b'{"a": ' * 41 + b"1" + b"}" * 41):
        with pytest.raises(Refusal) as refusal:
            parse_question(body)
        assert refusal.value.status == 400


def status_of(token: str | None, method: str = "GET", **headers: str) -> int:
    """Return the status of a request to an application that answers 200."""
    statuses = []

    async def application(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    said = [(name.lower().encode(), it.encode("latin-1")) for name, it in headers.items()]
    scope = {"type": "http", "method": method, "path": "/", "headers": said}
    asyncio.run(Guard(application, token)(scope, None, send))
    return statuses[0]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:1", "127.0.0.1:80", "127.1.2.3")),
        *((host, 200) for host in ("[::1]:8080", "[::1]")),
        *((host, 403) for host in ("", "evil.example", "localhost.evil.example", "[::1]x")),
        *((host, 403) for host in ("192.168.0.5:80", "0.0.0.0", "127.0.0.1.nip.io", "::2")),
        ("localhost@evil", 403),
    ],
)
def test_without_a_token_only_this_machine_s_names_are_hosts(host: str, status: int) -> None:
    assert status_of(None, Host=host) == status


def test_another_site_s_page_may_not_ask() -> None:
    ours = {"Host": "localhost:8080"}
    assert status_of(None, "POST", **ours, Origin="http://localhost:8080") == 200
    for origin in ("http://localhost:81", "https://evil.example", "null"):
        assert status_of(None, "POST", **ours, Origin=origin) == 403


def test_a_token_is_that_of_programs_or_the_password_of_a_browser() -> None:
    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    token = "0123456789abcdef"
    for said in (f"Bearer {token}", f"bearer {token}", basic(f"anybody:{token}")):
        assert status_of(token, Host="any.example", Authorization=said) == 200
    for said in ("", "Bearer", "Bearer x", f"Bearer {token} x", basic(token), basic(f"{token}:")):
        assert status_of(token, Host="localhost", Authorization=said) == 401
    assert status_of(token, Host="localhost") == 401
