"""GET requests to a server: no proxy, no redirect, so that an API key goes nowhere else."""

import http.client
from pathlib import Path
from urllib.parse import urlsplit

from sextant.base.urls import tls_context


def get(
    base_url: str,
    path: str,
    api_key: str | None = None,
    *,
    ca_file: Path | None = None,
    timeout_s: float = 5.0,
) -> tuple[int | None, bytes]:
    """Return status and body of `path` below a base URL; None without a whole answer."""
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
