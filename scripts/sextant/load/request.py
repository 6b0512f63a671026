"""What is sent: requests encoded ahead of time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


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
