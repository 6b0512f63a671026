"""Base URLs of servers, certificates, API keys, and free ports."""

import html
import json
import socket
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from sextant.base.errors import InputError

_PORTS = {"http": 80, "https": 443}
_INSTEAD = "[API key]"  # replaces a key in texts
_SHORTEST_CUT_KEY = 4  # letters of a key that was cut off, from which it is still replaced


def host_and_port(base_url: str) -> tuple[str, int]:
    """Return the host and the port of a base URL; InputError for another kind of URL."""
    try:
        parts = urlsplit(base_url)
        host = parts.hostname
        port = parts.port
    except ValueError:  # the port is not a number, a bracket of an address is not closed
        parts = urlsplit("")
        host = None
        port = None
    # White space and control characters cannot be in a request line; `?` and `#` end its path.
    is_path = not any(mark <= " " or mark in "?#\x7f" for mark in base_url)
    if parts.scheme not in _PORTS or not host or not is_path:
        fix = "write it as http://HOST:PORT or https://HOST"
        raise InputError(f"{base_url!r} is not a base URL", field="base_url", fix=fix)
    if "@" in parts.netloc:  # the name would not be sent, and results would reveal it
        fix = "leave it out; an API key comes from an environment variable"
        raise InputError("a base URL with a user's name", field="base_url", fix=fix)
    return host, port or _PORTS[parts.scheme]


def without_v1(base_url: str) -> str:
    """Return a base URL without the /v1 at its end, which requests add."""
    return base_url.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return the certificates that https trusts: the system's, or a file's; InputError if none."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        fix = "give a file of certificates in PEM"
        problem = f"no certificates ({error})"
        raise InputError(problem, file=ca_file, field="ca_file", fix=fix) from None


def without_keys(text: str, keys: Collection[str | None]) -> str:
    """Return a server's text without API keys: plain, escaped, or cut off at the text's end."""
    for key in filter(None, keys):
        escaped = json.dumps(key)[1:-1]
        for form in (key, escaped, escaped.replace("/", "\\/"), html.escape(key), quote(key, "")):
            text = text.replace(form, _INSTEAD)
        for n_characters in range(len(key) - 1, _SHORTEST_CUT_KEY - 1, -1):
            if text.endswith(key[:n_characters]):
                text = text[:-n_characters] + _INSTEAD
                break
    return text


def remove_key(file: BinaryIO, key: str) -> None:
    """Remove a key from a file that is open for reading and writing and has no other writer."""
    file.seek(0)
    content = file.read()
    if key.encode() in content:
        file.seek(0)
        file.write(content.replace(key.encode(), _INSTEAD.encode()))
        file.truncate()


def reserve_port() -> socket.socket:
    """Return a socket bound to a free port of 127.0.0.1.

    The kernel gives this port to no process that asks for any port. A server that sets SO_REUSEADDR
    or SO_REUSEPORT, as vLLM does, can listen on it.
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held
