"""Reads tokens and their times from an answer's bytes, in parts of bounded size.

Token counts are the server's own (`usage`), never chunks counted as tokens.
"""

import re
from collections.abc import Collection

from sextant.base.text import without_keys
from sextant.load.client import Exchange, Part, Piece

# The closing quote of a key cannot appear unescaped inside generated text.
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')
# Generated text may hold the same words, but never at the start of a line.
_EVENT = re.compile(rb"^data:\s*\{", re.MULTILINE)
# An event that holds nothing but usage.
_NO_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_DONE = re.compile(rb"data:\s*\[DONE\]")
_ERROR = re.compile(rb'^data:\s*(\{\s*"error".*)', re.MULTILINE)
_ERROR_EXCERPT_BYTES = 300
# What a terminal that shows an error would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MAX_LINE_BYTES = 1 << 20
"""Far above any event; what a server sends without an end of line is not kept."""


class _Reading:
    __slots__ = (
        "error",
        "event_times_ns",
        "excerpt",
        "first_count",
        "has_end",
        "n_usages",
        "rest",
    )

    def __init__(self) -> None:
        self.rest: list[Piece] = []
        """An unfinished line."""
        self.event_times_ns: list[int] = []
        """Of events until the first usage; they are tokens where usage comes only at the end."""
        self.n_usages, self.first_count, self.has_end = 0, 0, False
        self.excerpt = self.error = b""


class AnswerReader:
    """Turns parts of answers, which may come in turns, into tokens of their exchanges.

    `keys` are API keys that servers were sent, which they may repeat in what they say of an error.
    """

    def __init__(self, keys: Collection[str | None] = ()) -> None:
        self._keys = [key for key in keys if key]
        self._readings: dict[Exchange, _Reading] = {}

    def read(self, part: Part) -> bool:
        """Read a part; return whether its exchange is thereby finished."""
        exchange, pieces, is_last = part
        reading = self._readings.pop(exchange, None) or _Reading()
        _read_pieces(exchange, reading, pieces, is_last)
        if is_last:
            _conclude(exchange, reading)
            if exchange.error is not None:
                said = _CONTROL.sub("\ufffd", exchange.error)
                exchange.error = without_keys(said, self._keys)
        else:
            self._readings[exchange] = reading
        return is_last


def _read_pieces(exchange: Exchange, reading: _Reading, pieces: list[Piece], is_last: bool) -> None:
    pieces = reading.rest + pieces
    text = b"".join([piece for _, piece in pieces])
    if len(reading.excerpt) < _ERROR_EXCERPT_BYTES:
        reading.excerpt = (reading.excerpt + text)[:_ERROR_EXCERPT_BYTES]
    reading.rest = []
    if not is_last:
        end = text.rfind(b"\n") + 1
        reading.rest = _after(pieces, end) if len(text) - end <= _MAX_LINE_BYTES else []
        text = text[:end]
    # A search for plain bytes is fast; one by lines takes as long as all the rest.
    done = text.rfind(b"[DONE]")
    if done >= 0 and _DONE.match(text, text.rfind(b"\n", 0, done) + 1):
        reading.has_end = True
    if b'"error"' in text and (found := _ERROR.search(text)):
        reading.error = found[1][:_ERROR_EXCERPT_BYTES]
    if exchange.input_tokens is None and (prompts := _PROMPT_TOKENS.search(text)):
        exchange.input_tokens = int(prompts[1])
    _read_tokens(exchange, reading, pieces, text)


def _after(pieces: list[Piece], position: int) -> list[Piece]:
    for place, (at_ns, piece) in enumerate(pieces):
        if position < len(piece):
            return [(at_ns, piece[position:]), *pieces[place + 1 :]]
        position -= len(piece)
    return []


def _read_tokens(exchange: Exchange, reading: _Reading, pieces: list[Piece], text: bytes) -> None:
    """Add tokens where usage says so; remember the times of events while there was none."""
    usages = list(_COMPLETION_TOKENS.finditer(text))
    if not reading.n_usages:
        _read_events(reading, pieces, text, usages[0] if usages else None)
    reading.n_usages += len(usages)
    times_ns = _times_ns(pieces, [usage.end() for usage in usages])
    offsets_ms, sent_ns = exchange.token_offsets_ms, exchange.sent_ns
    for usage, at_ns in zip(usages, times_ns, strict=True):
        exchange.output_tokens = count = int(usage[1])
        # Two tokens in one chunk share its time; more than were asked for are a failure anyway.
        while len(offsets_ms) < min(count, exchange.request.output_tokens):
            offsets_ms.append((at_ns - sent_ns) / 1e6)
            exchange.first_token_ns = exchange.first_token_ns or at_ns
            exchange.last_token_ns = at_ns


def _read_events(
    reading: _Reading, pieces: list[Piece], text: bytes, usage: re.Match | None
) -> None:
    """Add the times of events until the first usage, with its own unless it holds nothing else."""
    events = list(_EVENT.finditer(text, 0, usage.end() if usage else len(text)))
    if usage:
        reading.first_count = int(usage[1])
        line = text[events[-1].start() :].split(b"\n", 1)[0] if events else b""
        if _NO_CHOICE.search(line):
            events.pop()
    reading.event_times_ns += _times_ns(pieces, [event.end() for event in events])


def _times_ns(pieces: list[Piece], positions: list[int]) -> list[int]:
    """Return when the bytes that end at each of the ascending positions arrived."""
    times_ns, place, end = [], -1, 0
    for position in positions:
        while end < position:
            place += 1
            end += len(pieces[place][1])
        times_ns.append(pieces[place][0])
    return times_ns


def _conclude(exchange: Exchange, reading: _Reading) -> None:
    # Some servers tell the usage at the end in more than one event.
    is_told_late = 1 < reading.first_count == exchange.output_tokens
    if reading.n_usages == 1 or (is_told_late and len(reading.event_times_ns) > 1):
        _time_events(exchange, reading.event_times_ns)
    if exchange.error is not None:
        return
    exchange.status = "ok"
    excerpt = reading.excerpt.decode(errors="replace")
    wanted = exchange.request.output_tokens
    if exchange.http_status != 200:
        exchange.fail("http_error", f"HTTP {exchange.http_status}: {excerpt}")
    elif reading.error:
        said = reading.error.decode(errors="replace")
        exchange.fail("incomplete", f"the server broke off: {said}")
    elif exchange.output_tokens is None or exchange.input_tokens is None:
        exchange.fail("incomplete", f"the server reported no usage: {excerpt}")
    elif not reading.has_end:
        exchange.fail("incomplete", "the stream ended without [DONE]")
    elif exchange.output_tokens != wanted:
        exchange.fail("incomplete", f"{exchange.output_tokens} of {wanted} output tokens")


def _time_events(exchange: Exchange, times_ns: list[int]) -> None:
    """Time tokens by events, that is chunks, where usage came only at the end."""
    times_ns = times_ns[: exchange.output_tokens]
    del exchange.token_offsets_ms[:]
    exchange.token_offsets_ms.extend((at_ns - exchange.sent_ns) / 1e6 for at_ns in times_ns)
    exchange.first_token_ns, exchange.last_token_ns = (
        (times_ns[0], times_ns[-1]) if times_ns else (0, 0)
    )
