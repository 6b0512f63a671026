"""Reads tokens and their times from an answer's server-sent events, in parts of bounded size.

Token counts are the server's own (`usage`). A token's time is that of the event which counts it, if
usage rises with each event; otherwise events are timed, and `oddities` say if they are not as many.
"""

import re
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec  # it builds only what is read: a seventh of json's time

from sextant.base.network import without_keys
from sextant.load.client import Exchange, Part

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ERROR_EXCERPT_BYTES = 300
# What a terminal that shows an error would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MAX_LINE_BYTES = 1 << 20  # far above any event; more without an end of line is not kept
_MOST_TOKENS = 2**31 - 1
_UNKNOWN = -1
_BROKEN_OFF = ("error", "abort")
_ODD_FORM = "an event that is not of OpenAI's form"
_SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
"""Fields of a chat's delta that hold what the LLM said; others say who speaks, or why it ends."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not JSON, not UTF-8, or nested too deeply."""
OTHER_INPUT = "the server counts another input than was sent"
OTHER_TEXT = "the server counts another input than was asked for, and its count stands"
STOPPED = "they stop before the output asked for, and have the lengths that came"
MORE_EVENTS = "more events than tokens: times between the first and the last are spread over them"
FEWER_EVENTS = "fewer events than tokens: ITL is that of events"
AT_ONCE = "the whole answer came at once: its ITL is not the server's"


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: Any = None
    prompt_tokens: Any = None


class _Choice(msgspec.Struct, gc=False):
    text: Any = None
    finish_reason: Any = None
    index: Any = 0
    delta: dict[str, Any] | None = None  # of a chat


class _Event(msgspec.Struct, gc=False):
    """What is read of an event; its other fields are passed over."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True, eq=False)
class _Reading:
    rest: list[bytes] = field(default_factory=list)
    """An unfinished line; when its last bytes came, and how many there are."""
    rest_ns: int = 0
    n_rest: int = 0
    is_error: bool = False  # the next data are of an event that is called `error`
    has_ended: bool = False  # the answer has said why it ended
    held: list[bytes] = field(default_factory=list)  # data lines of an event that goes on
    held_bytes: int = 0
    held_ns: int = 0
    times_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """Of each event of an answer's text: when it came, the tokens so far (-1: not reported), and
    whether the text is more than empty."""
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    have_text: bytearray = field(default_factory=bytearray)
    has_end: bool = False
    excerpt: bytes = b""
    error: str | None = None

    def fail(self, error: str) -> None:
        """Keep the first error."""
        self.error = self.error or error


def read_part(part: Part, keys: Collection[str | None] = ()) -> bool:
    """Read a part of an answer, which may come in turns with those of others, and take `keys` out
    of its error; return whether its exchange is thereby finished."""
    exchange, pieces, is_last = part
    reading = exchange.reading = exchange.reading or _Reading()
    for at_ns, piece in pieces:
        if len(reading.excerpt) < _ERROR_EXCERPT_BYTES:
            reading.excerpt += piece[:_ERROR_EXCERPT_BYTES]
        _read_lines(exchange, reading, piece, at_ns)
    if not is_last:
        return False
    exchange.reading = None
    if reading.rest:
        _read_line(exchange, reading, b"".join(reading.rest), reading.rest_ns)
    if reading.held:
        _end_event(exchange, reading)
    _time_tokens(exchange, reading)
    _judge(exchange, reading)
    if exchange.error is not None:
        said = _CONTROL.sub("\ufffd", exchange.error.encode(errors="replace").decode())
        exchange.error = without_keys(said, keys)
    return True


def _read_lines(exchange: Exchange, reading: _Reading, piece: bytes, at_ns: int) -> None:
    """Read the lines that end in a piece; a line's time is that of its last byte before the end."""
    *lines, rest = piece.split(b"\n")
    if lines and reading.rest:
        line_ns = at_ns if lines[0] else reading.rest_ns
        _read_line(exchange, reading, b"".join([*reading.rest, lines.pop(0)]), line_ns)
        reading.rest, reading.n_rest = [], 0
    for line in lines:
        if line:
            _read_line(exchange, reading, line, at_ns)
        elif reading.held:
            _end_event(exchange, reading)
    if rest:
        reading.rest.append(rest)
        reading.rest_ns, reading.n_rest = at_ns, reading.n_rest + len(rest)
    if reading.n_rest > _MAX_LINE_BYTES:
        reading.fail(f"a line of more than {_MAX_LINE_BYTES:,} bytes")
        reading.rest, reading.n_rest = [], 0


def _read_line(exchange: Exchange, reading: _Reading, line: bytes, at_ns: int) -> None:
    """Read a line of an event stream; comments and all fields but data say nothing of tokens."""
    if not line.startswith(b"data:"):
        if line == b"\r" and reading.held:
            _end_event(exchange, reading)
        line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line.startswith(b"data:"):
            if line.startswith(b"event:") and line[6:].strip() == b"error":
                reading.is_error = True
            return
    data = line[5:]
    if reading.is_error:
        reading.is_error = False
        reading.fail(f"the server broke off: {_excerpt(data)}")
    odd: str | None = None  # not the error: its traceback would keep all that is read alive
    if not reading.held:
        try:
            event = _decode(data)
        except msgspec.ValidationError as error:
            odd = str(error)
        except _UNREADABLE:  # its first line of several
            pass
        else:
            _read_event(exchange, reading, event, at_ns)
            return
    if data.strip() == b"[DONE]":
        reading.has_end = reading.has_ended = True
    elif odd:
        reading.fail(f"{_ODD_FORM} ({odd}): {_excerpt(data)[:200]}")
    else:
        reading.held_bytes, reading.held_ns = reading.held_bytes + len(data), at_ns
        if reading.held_bytes <= _MAX_LINE_BYTES:
            reading.held.append(data)


def _end_event(exchange: Exchange, reading: _Reading) -> None:
    """Read an event of several data lines."""
    data, reading.held, reading.held_bytes = b"\n".join(reading.held), [], 0
    try:
        event = _decode(data)
    except msgspec.ValidationError as error:
        reading.fail(f"{_ODD_FORM} ({error}): {_excerpt(data)[:200]}")
    except _UNREADABLE:
        reading.fail(f"an event that is not JSON: {_excerpt(data)}")
    else:
        _read_event(exchange, reading, event, reading.held_ns)


def _excerpt(data: bytes) -> str:
    return data.strip()[:_ERROR_EXCERPT_BYTES].decode(errors="replace")


def _words(error: Any) -> str:
    said = error.get("message", error) if isinstance(error, dict) else error
    try:
        return str(said)[:_ERROR_EXCERPT_BYTES]
    except (RecursionError, ValueError):  # too deep, or a number of too many digits
        return "in more words than can be kept"


def _read_event(exchange: Exchange, reading: _Reading, event: _Event, at_ns: int) -> None:
    """Read a token's event. This runs for each token: what is usual takes few calls."""
    if event.error or event.object == "error":
        reading.fail(f"the server broke off: {_words(event.error or event.message)}")
    count = _UNKNOWN
    if usage := event.usage:
        counted = usage.completion_tokens
        if type(counted) is int and counted >= 0:
            # No more than a 32-bit column holds.
            exchange.output_tokens = count = counted if counted < _MOST_TOKENS else _MOST_TOKENS
        counted = usage.prompt_tokens
        if counted != exchange.input_tokens and type(counted) is int and counted > 0:
            exchange.input_tokens = min(counted, _MOST_TOKENS)
    if not event.choices:
        return
    choice = event.choices[0]
    if (reason := choice.finish_reason) in _BROKEN_OFF:
        reading.fail(f"the server broke off: finish_reason {reason}")
    has_text = bool(choice.text)
    if (delta := choice.delta) is not None:
        has_text = any(map(delta.get, _SAID))
        if not has_text:
            reading.has_ended |= bool(reason)
            if reason or "role" in delta or (count <= 0 and 1 not in reading.have_text):
                return  # it opens or ends the answer
    if choice.index or len(event.choices) > 1 or (has_text and reading.has_ended):
        reading.fail("the server sent a second answer, which was not asked for")
    reading.has_ended |= bool(reason)
    reading.times_ns.append(at_ns)
    reading.counts.append(count)
    reading.have_text.append(has_text)


def _time_tokens(exchange: Exchange, reading: _Reading) -> None:
    n_tokens = min(exchange.output_tokens or 0, exchange.request.output_tokens)
    times_ns = _usage_times_ns(reading, n_tokens) or _event_times_ns(exchange, reading, n_tokens)
    if times_ns:
        if len(times_ns) < n_tokens:
            exchange.oddities.append(FEWER_EVENTS)
        elif n_tokens > 1 and times_ns[0] == times_ns[-1]:
            exchange.oddities.append(AT_ONCE)
        exchange.token_offsets_ms.extend([(at - exchange.sent_ns) / 1e6 for at in times_ns])
        exchange.first_token_ns, exchange.last_token_ns = times_ns[0], times_ns[-1]


def _usage_times_ns(reading: _Reading, n_tokens: int) -> list[int]:
    """Return when each token was counted, nothing unless usage rises with each event."""
    if len(reading.times_ns) == 1 < n_tokens:
        return []
    times_ns = list[int]()
    before = 0
    events = zip(reading.times_ns, reading.counts, reading.have_text, strict=True)
    for at_ns, count, has_text in events:
        if count < before + has_text:
            return []
        # Two tokens in one event share its time; more than were asked for are a failure anyway.
        times_ns += [at_ns] * (min(count, n_tokens) - len(times_ns))
        before = count
    return times_ns


def _event_times_ns(exchange: Exchange, reading: _Reading, n_tokens: int) -> list[int]:
    """Return the times of events, no more than tokens."""
    times_ns = reading.times_ns.tolist()
    # A server without a tokenizer sends no text; of others an event without may be no token.
    if len(times_ns) > n_tokens and any(reading.have_text):
        pairs = zip(times_ns, reading.have_text, strict=True)
        times_ns = [at_ns for at_ns, has_text in pairs if has_text]
    n_events = len(times_ns)
    if n_events <= n_tokens:
        return times_ns
    exchange.oddities.append(MORE_EVENTS)
    step = (n_events - 1) / max(1, n_tokens - 1)
    return [times_ns[round(step * number)] for number in range(n_tokens)]


def _judge(exchange: Exchange, reading: _Reading) -> None:
    """Say whether the answer is whole and what was asked for."""
    request = exchange.request
    if exchange.input_tokens != request.input_tokens:
        exchange.oddities.append(OTHER_TEXT if request.is_text else OTHER_INPUT)
        if not request.is_text:
            exchange.input_tokens = request.input_tokens  # its ids were sent
    if exchange.error is not None:
        return
    exchange.status = "ok"
    wanted = request.output_tokens
    counted = exchange.output_tokens
    if exchange.http_status != 200:
        said = _excerpt(reading.excerpt)
        exchange.fail("http_error", f"HTTP {exchange.http_status}: {said}")
    elif reading.error or reading.is_error:
        exchange.fail("incomplete", reading.error or "the server broke off: an event 'error'")
    elif counted is None or exchange.input_tokens is None:
        said = _excerpt(reading.excerpt)
        exchange.fail("incomplete", f"the server reported no usage: {said}")
    elif not reading.has_end:
        exchange.fail("incomplete", "the stream ended without [DONE]")
    elif counted and not exchange.token_offsets_ms:
        exchange.fail("incomplete", f"{counted} output tokens were counted and none came")
    elif request.may_stop and 0 < counted < wanted:
        exchange.oddities.append(STOPPED)
    elif counted != wanted:
        exchange.fail("incomplete", f"{counted} of {wanted} output tokens")
