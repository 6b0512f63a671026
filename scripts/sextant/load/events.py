"""Reads the server-sent events of an answer: each token's event, its time and the server's counts.

An answer comes in pieces that end anywhere. Memory is bounded: a line or an event above 1 MiB is an
error, and is not kept.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec  # it builds only what is read: a seventh of json's time

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXCERPT_BYTES = 300
_MAX_LINE_BYTES = 1 << 20  # far above any event
_MOST_TOKENS = 2**31 - 1  # what a 32-bit column holds
_UNKNOWN = -1
_BROKEN_OFF = ("error", "abort")
_ODD_FORM = "an event that is not of OpenAI's form"
_SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
"""Fields of a chat's delta that hold what the LLM said; others say who speaks, or why it ends."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not JSON, not UTF-8, or nested too deeply."""


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

    def error_text(self) -> str:
        """Return what the server says of its error."""
        error = self.error or self.message
        message = error.get("message", error) if isinstance(error, dict) else error
        try:
            return str(message)[:_EXCERPT_BYTES]
        except (RecursionError, ValueError):  # too deep, or a number of too many digits
            return "in more words than can be kept"


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True, eq=False)
class TokenEvents:
    """The events of an answer's text: three columns, one row per event."""

    times_ns: "array[int]" = field(default_factory=lambda: array("q"))  # when it came
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    """Tokens so far by the server's `usage`; -1 where the event does not say."""
    have_text: bytearray = field(default_factory=bytearray)  # 1: its text is not empty

    def times_by_usage_ns(self, n_tokens: int) -> list[int]:
        """Return when each token was counted; nothing unless usage rises with each event."""
        if len(self.times_ns) == 1 < n_tokens:
            return []
        token_times_ns = list[int]()
        before = 0
        events = zip(self.times_ns, self.counts, self.have_text, strict=True)
        for at_ns, count, has_text in events:
            if count < before + has_text:
                return []
            # Two tokens in one event share its time; more than were asked for are a failure anyway.
            token_times_ns += [at_ns] * (min(count, n_tokens) - len(token_times_ns))
            before = count
        return token_times_ns

    def times_by_event_ns(self, n_tokens: int) -> list[int]:
        """Return when each event came, without empty ones if there are more events than tokens."""
        times_ns = self.times_ns.tolist()
        # A server without a tokenizer sends no text; another server's empty event may be no token.
        if len(times_ns) > n_tokens and any(self.have_text):
            pairs = zip(times_ns, self.have_text, strict=True)
            times_ns = [at_ns for at_ns, has_text in pairs if has_text]
        return times_ns


@dataclass(slots=True, eq=False)
class AnswerReader:
    """What has been read of an answer: feed it all pieces in their order, then finish it."""

    tokens: TokenEvents = field(default_factory=TokenEvents)
    input_tokens: int | None = None  # by the server's `usage`
    output_tokens: int | None = None
    error: str | None = None  # the first one
    is_error: bool = False  # the next data are of an event that is called `error`
    is_done: bool = False  # [DONE] came
    has_ended: bool = False  # the answer has said why it ended
    excerpt: bytes = b""  # the first bytes of the answer
    line_parts: list[bytes] = field(default_factory=list)  # of an unfinished line
    line_ns: int = 0  # when the last of them came
    line_bytes: int = 0
    event_lines: list[bytes] = field(default_factory=list)  # data lines of an unfinished event
    event_ns: int = 0  # when the last of them came
    event_bytes: int = 0

    @property
    def beginning(self) -> str:
        """The first bytes of the answer as text."""
        return _as_text(self.excerpt)

    def fail(self, error: str) -> None:
        """Keep the first error."""
        self.error = self.error or error

    def feed(self, piece: bytes, at_ns: int) -> None:
        """Read a piece that came at this time; a line's time is that of its last byte."""
        if len(self.excerpt) < _EXCERPT_BYTES:
            self.excerpt += piece[:_EXCERPT_BYTES]

        lines = piece.split(b"\n")
        rest = lines.pop()
        if lines and self.line_parts:
            line_ns = at_ns if lines[0] else self.line_ns
            self._read_line(b"".join([*self.line_parts, lines.pop(0)]), line_ns)
            self.line_parts, self.line_bytes = [], 0
        for line in lines:
            if line:
                self._read_line(line, at_ns)
            elif self.event_lines:
                self._end_event()

        if rest:
            self.line_parts.append(rest)
            self.line_ns = at_ns
            self.line_bytes += len(rest)
            if self.line_bytes > _MAX_LINE_BYTES:
                self.fail(f"a line of more than {_MAX_LINE_BYTES:,} bytes")
                self.line_parts, self.line_bytes = [], 0

    def finish(self) -> None:
        """Read what has no end of line, or no empty line after it."""
        if self.line_parts:
            self._read_line(b"".join(self.line_parts), self.line_ns)
            self.line_parts = []
        if self.event_lines:
            self._end_event()

    def _read_line(self, line: bytes, at_ns: int) -> None:
        """Read a line: data are an event, the first or a further line of one, or [DONE]."""
        if not line.startswith(b"data:"):
            line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line.startswith(b"data:"):
                self._read_other_field(line)
                return
        data = line[5:]
        if self.is_error:
            self.is_error = False
            self.fail(f"the server broke off: {_as_text(data)}")

        odd: str | None = None  # not the error: its traceback would keep all that is read alive
        if not self.event_lines:
            try:
                event = _decode(data)
            except msgspec.ValidationError as error:
                odd = str(error)
            except _UNREADABLE:  # its first line of several
                pass
            else:
                self._read_event(event, at_ns)
                return

        if data.strip() == b"[DONE]":
            self.is_done = self.has_ended = True
        elif odd:
            self.fail(f"{_ODD_FORM} ({odd}): {_as_text(data)[:200]}")
        else:
            self.event_ns = at_ns
            self.event_bytes += len(data)
            if self.event_bytes <= _MAX_LINE_BYTES:
                self.event_lines.append(data)

    def _read_other_field(self, line: bytes) -> None:
        """Read an empty line with CR, or the name of an event; others say nothing of tokens."""
        if line == b"\r" and self.event_lines:
            self._end_event()
        elif line.startswith(b"event:") and line[6:].strip() == b"error":
            self.is_error = True

    def _end_event(self) -> None:
        """Read an event of several data lines."""
        data = b"\n".join(self.event_lines)
        self.event_lines, self.event_bytes = [], 0
        try:
            event = _decode(data)
        except msgspec.ValidationError as error:
            self.fail(f"{_ODD_FORM} ({error}): {_as_text(data)[:200]}")
        except _UNREADABLE:
            self.fail(f"an event that is not JSON: {_as_text(data)}")
        else:
            self._read_event(event, self.event_ns)

    def _read_event(self, event: _Event, at_ns: int) -> None:
        """Read a token's event. This runs for each token: what is usual takes few calls."""
        if event.error or event.object == "error":
            self.fail(f"the server broke off: {event.error_text()}")

        count = _UNKNOWN
        if usage := event.usage:
            counted = usage.completion_tokens
            if type(counted) is int and counted >= 0:
                self.output_tokens = count = counted if counted < _MOST_TOKENS else _MOST_TOKENS
            counted = usage.prompt_tokens
            if counted != self.input_tokens and type(counted) is int and counted > 0:
                self.input_tokens = min(counted, _MOST_TOKENS)

        if not event.choices:
            return
        choice = event.choices[0]
        if (reason := choice.finish_reason) in _BROKEN_OFF:
            self.fail(f"the server broke off: finish_reason {reason}")
        has_text = bool(choice.text)
        if (delta := choice.delta) is not None:
            has_text = any(map(delta.get, _SAID))
            if not has_text:
                self.has_ended |= bool(reason)
                if reason or "role" in delta or (count <= 0 and 1 not in self.tokens.have_text):
                    return  # it opens or ends the answer
        if choice.index or len(event.choices) > 1 or (has_text and self.has_ended):
            self.fail("the server sent a second answer, which was not asked for")
        self.has_ended |= bool(reason)

        tokens = self.tokens
        tokens.times_ns.append(at_ns)
        tokens.counts.append(count)
        tokens.have_text.append(has_text)


def _as_text(data: bytes) -> str:
    return data.strip()[:_EXCERPT_BYTES].decode(errors="replace")
