"""What is sent: requests encoded ahead of time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Form:
    """How requests are put."""

    is_chat: bool = False
    """To `/v1/chat/completions`, whose prompts are text."""
    may_stop: bool = False
    """An answer may end before the output asked for; only standard fields are sent."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as text, and its tokens as far as the client knows."""

    text: str
    n_tokens: int

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.n_tokens


@dataclass(slots=True)
class PreparedRequest:
    """A request's body, which fits any replica, and what it asks for."""

    request_id: str
    """Sent as `X-Request-ID`."""
    body: bytes = field(repr=False)
    """JSON; dropped once it has been sent."""
    input_tokens: int
    output_tokens: int
    is_text: bool = False
    """The prompt is text, of which the server counts the tokens."""
    may_stop: bool = False

    def wire(self, head: bytes) -> bytes:
        """Return all bytes of the request to the server that `head` is of."""
        own = f"X-Request-ID: {self.request_id}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        return head + own.encode() + self.body


def prepare(
    model_name: str,
    request_id: str,
    prompt: Sequence[int] | np.ndarray | Text,
    output_tokens: int,
    sampling: Mapping[str, float] | None = None,
    form: Form = Form(),
) -> PreparedRequest:
    """Encode a request of exact input and output length.

    `ignore_eos` with equal `min_tokens` and `max_tokens` forces the output's length, unless the
    answer may stop. `sampling` holds `temperature`, `top_k` and `top_p` where they are not greedy.
    """
    is_text = isinstance(prompt, Text)
    content = prompt.text if isinstance(prompt, Text) else np.asarray(prompt).tolist()
    asked: dict[str, Any] = {"prompt": content}
    if form.is_chat:
        asked = {"messages": [{"role": "user", "content": content}]}
    forced = {"min_tokens": output_tokens, "ignore_eos": True}
    counted = {"include_usage": True, "continuous_usage_stats": True}
    if form.may_stop:
        forced, counted = {}, {"include_usage": True}
    body = json.dumps(
        {
            "model": model_name,
            **asked,
            "max_tokens": output_tokens,
            **forced,
            "temperature": 0,
            **(sampling or {}),
            "stream": True,
            "stream_options": counted,
        },
        separators=(",", ":"),
    ).encode()
    return PreparedRequest(request_id, body, len(prompt), output_tokens, is_text, form.may_stop)
