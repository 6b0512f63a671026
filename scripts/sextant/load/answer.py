"""What an answer came to: its tokens' times, and whether it is whole and what was asked for.

Token counts are the server's own (`usage`). A token's time is that of the event which counts it, if
usage rises with each event; otherwise events are timed, and `oddities` say if there are more or
fewer of them than tokens.
"""

import re
from collections.abc import Collection

from sextant.base.network import without_keys
from sextant.load.client import Exchange
from sextant.load.events import AnswerReader

# Control characters, which a terminal that shows an error would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
OTHER_INPUT = "the server counts another input than was sent"
OTHER_TEXT = "the server counts another input than was asked for, and its count stands"
STOPPED = "they stop before the output asked for, and have the lengths that came"
MORE_EVENTS = "more events than tokens: times between the first and the last are spread over them"
FEWER_EVENTS = "fewer events than tokens: ITL is that of events"
AT_ONCE = "the whole answer came at once: its ITL is not the server's"


def judge(exchange: Exchange, keys: Collection[str | None] = ()) -> None:
    """Find what an exchange came to whose answer was read; `keys` are taken out of its error."""
    reader = exchange.reader
    exchange.input_tokens = reader.input_tokens
    exchange.output_tokens = reader.output_tokens
    _time_tokens(exchange, reader)
    _find_status(exchange, reader)
    if exchange.error is not None:
        text = _CONTROL.sub("\ufffd", exchange.error.encode(errors="replace").decode())
        exchange.error = without_keys(text, keys)


def _time_tokens(exchange: Exchange, reader: AnswerReader) -> None:
    """Give each token its time, as far as the events tell it."""
    n_tokens = min(exchange.output_tokens or 0, exchange.request.output_tokens)
    times_ns = reader.tokens.times_by_usage_ns(n_tokens)
    if not times_ns:
        times_ns = reader.tokens.times_by_event_ns(n_tokens)
        if (n_events := len(times_ns)) > n_tokens:
            exchange.oddities.append(MORE_EVENTS)
            step = (n_events - 1) / max(1, n_tokens - 1)
            times_ns = [times_ns[round(step * number)] for number in range(n_tokens)]
    if not times_ns:
        return

    if len(times_ns) < n_tokens:
        exchange.oddities.append(FEWER_EVENTS)
    elif n_tokens > 1 and times_ns[0] == times_ns[-1]:
        exchange.oddities.append(AT_ONCE)
    times = exchange.times
    times.first_token_ns, times.last_token_ns = times_ns[0], times_ns[-1]
    exchange.token_offsets_ms.extend([(at_ns - times.sent_ns) / 1e6 for at_ns in times_ns])


def _said(exchange: Exchange, reader: AnswerReader) -> str:
    """Return what an answer with another status says: of a redirect, where to."""
    if location := exchange.head.headers.get("location"):
        return f"it redirects to {location}; give that as --base-url"
    return reader.beginning


def _without_usage(exchange: Exchange) -> str:
    """Return why an answer has no counts of tokens, by its headers."""
    encoding = exchange.head.headers.get("content-encoding", "identity")
    if encoding != "identity":
        return f"the answer is compressed ({encoding}), which was not asked for"
    kind = exchange.head.headers.get("content-type", "").partition(";")[0].strip()
    if kind == "application/json":
        return "the answer is one JSON object and no stream: the server ignores `stream`"
    if kind not in ("", "text/event-stream"):
        return f"the answer is {kind} and no stream of events: is --base-url that of an LLM server?"
    return "the server reported no usage"


def _find_status(exchange: Exchange, reader: AnswerReader) -> None:
    """Say whether the answer is whole and what was asked for."""
    request = exchange.request
    if exchange.input_tokens != request.input_tokens:
        exchange.oddities.append(OTHER_TEXT if request.is_text else OTHER_INPUT)
        if not request.is_text:
            exchange.input_tokens = request.input_tokens  # its ids were sent
    if exchange.error is not None:
        return

    exchange.status = "ok"
    n_wanted = request.output_tokens
    n_counted = exchange.output_tokens
    if exchange.head.http_status != 200:
        exchange.fail("http_error", f"HTTP {exchange.head.http_status}: {_said(exchange, reader)}")
    elif reader.error or reader.is_error:
        exchange.fail("incomplete", reader.error or "the server broke off: an event 'error'")
    elif n_counted is None or exchange.input_tokens is None:
        exchange.fail("incomplete", f"{_without_usage(exchange)}: {reader.beginning}")
    elif not reader.is_done:
        exchange.fail("incomplete", "the stream ended without [DONE]")
    elif n_counted and not exchange.token_offsets_ms:
        exchange.fail("incomplete", f"{n_counted} output tokens were counted and none came")
    elif request.may_stop and 0 < n_counted < n_wanted:
        exchange.oddities.append(STOPPED)
    elif n_counted != n_wanted:
        exchange.fail("incomplete", f"{n_counted} of {n_wanted} output tokens")
