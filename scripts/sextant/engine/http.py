"""A server and how to reach it; GET requests to it."""

import http.client
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from sextant.base.network import host_and_port, tls_context


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates (PEM) to trust for https in place of the system's."""
    path: str = "/v1/completions"
    """Where requests go, below the base URL."""

    def address(self) -> tuple[str, int, ssl.SSLContext | None]:
        """Return host, port and the TLS context (None for plain HTTP).

        Raises InputError: a URL of another kind, or no certificates in `ca_file`.
        """
        host, port = host_and_port(self.base_url)
        return host, port, self._tls if urlsplit(self.base_url).scheme == "https" else None

    @cached_property
    def head(self) -> bytes:
        """What every request to this server begins with; it holds the API key."""
        parts = urlsplit(self.base_url)
        lines = [
            f"POST {parts.path.rstrip('/')}{self.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join(lines).encode() + b"\r\n"

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return tls_context(self.ca_file)


def get(
    base_url: str,
    path: str,
    api_key: str | None = None,
    *,
    ca_file: Path | None = None,
    timeout_s: float = 5.0,
) -> tuple[int | None, bytes]:
    """Return status and body of `path` below a base URL; None without a whole answer.

    No proxy and no redirect is followed: an API key goes nowhere else.
    """
    parts = urlsplit(base_url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    if parts.scheme == "https":
        context = tls_context(ca_file)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):  # refused, timed out, or half an answer
        return None, b""
    finally:
        connection.close()
