"""What is sent: the server, and requests encoded ahead of time."""

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from sextant.base.urls import host_and_port, tls_context


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates (PEM) to trust for https in place of the system's."""

    def address(self) -> tuple[str, int, ssl.SSLContext | None]:
        """Return host, port and the TLS context (None for plain HTTP).

        Raises:
            InputError: a URL of another kind, or no certificates in `ca_file`.
        """
        host, port = host_and_port(self.base_url)
        return host, port, self._tls if urlsplit(self.base_url).scheme == "https" else None

    @cached_property
    def head(self) -> bytes:
        """What every request to this server begins with; it holds the API key."""
        parts = urlsplit(self.base_url)
        lines = [
            f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join(lines).encode() + b"\r\n"

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return tls_context(self.ca_file)


@dataclass(slots=True)
class PreparedRequest:
    """A request's body, which fits any replica, and what it asks for."""

    request_id: str
    """Sent as `X-Request-ID`."""
    body: bytes = field(repr=False)
    """JSON; dropped once it has been sent."""
    input_tokens: int
    output_tokens: int

    def wire(self, head: bytes) -> bytes:
        """Return all bytes of the request to the server that `head` is of."""
        own = f"X-Request-ID: {self.request_id}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        return head + own.encode() + self.body


def prepare(
    model_name: str,
    request_id: str,
    prompt: Sequence[int] | np.ndarray,
    output_tokens: int,
    sampling: Mapping[str, float] | None = None,
) -> PreparedRequest:
    """Encode a `/v1/completions` request of exact input and output length.

    `ignore_eos` with equal `min_tokens` and `max_tokens` forces the output's length.
    `sampling` holds `temperature`, `top_k` and `top_p` where they are not greedy.
    """
    body = json.dumps(
        {
            "model": model_name,
            "prompt": np.asarray(prompt).tolist(),
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            **(sampling or {}),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        separators=(",", ":"),
    ).encode()
    return PreparedRequest(request_id, body, len(prompt), output_tokens)
