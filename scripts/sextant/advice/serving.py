"""How the LLM is asked to be served, and for which requests."""

import re
from typing import Any, NamedTuple

from sextant.advice.question import Question
from sextant.advice.requests import Length, Requests
from sextant.advice.source import Source
from sextant.characterizations.points import LENGTHS, SERVING


class Serving(NamedTuple):
    """How the LLM is asked to be served, and of which requests."""

    requests: Requests
    engine: str | None
    engine_version: str | None
    precision: str | None
    kv_precision: str | None
    prefix_hit_rate: float

    def facts(self) -> dict[str, Any]:
        """Return what an answer says of it."""
        inputs, outputs = (each.mean for each in self.requests)
        return {"input_tokens": inputs, "output_tokens": outputs, **self._servers()}

    def _servers(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if name != "requests"}

    def columns(self) -> dict[str, Any]:
        """Return what the keys of a design matrix say of it."""
        lengths = (each.mean for each in self.requests)
        return {
            **dict.fromkeys(SERVING),
            **dict(zip(LENGTHS, lengths, strict=True)),
            **self._servers(),
        }


def serving_of(question: Question, source: Source) -> Serving:
    """Return what the question says, filled in with what is usual in the source.

    The engine is that of most points, its version the newest one that was measured.
    """
    points = source.known.points
    engines = points["engine"].dropna()
    engine = question.engine or (engines.mode().iloc[0] if len(engines) else None)
    versions = points.loc[points["engine"] == engine, "engine_version"].dropna().unique()
    usual = (Length(source.input_tokens, 0.0), Length(source.output_tokens, 0.0))
    return Serving(
        question.requests or Requests(*usual),
        engine,
        max(versions, key=_version, default=None),
        question.precision,
        question.kv_precision,
        question.prefix_hit_rate,
    )


def _version(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", text)]


def longest_of(question: Question, source: Source) -> int:
    """Return the tokens of the longest request that a server has to hold."""
    if question.max_model_len is not None:
        return question.max_model_len
    if question.requests is not None:
        return round(sum(each.high for each in question.requests))
    return source.longest_request_tokens
