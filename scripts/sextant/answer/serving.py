"""How the LLM is asked to be served, and for which requests."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from sextant.answer.question import Question, answers_from_points, id_of, is_measured
from sextant.answer.requests import Length, Requests
from sextant.answer.source import Source
from sextant.facts.llm import LLM
from sextant.facts.llm.load import kv_precision_of, precision_of, unsaid_precision
from sextant.points.characterizations.characterization import Characterization
from sextant.points.characterizations.points import LENGTHS, SERVING

_PRECISIONS: tuple[tuple[str, str, str, Callable[[LLM], str]], ...] = (
    ("dtype", "precision", "weights", precision_of),
    ("kv_dtype", "kv_precision", "the KV cache", kv_precision_of),
)
"""Field of a question, column of points, what people call it, and what a configuration says."""


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


def as_measured(
    question: Question, known: Characterization, *, has_options: bool = True
) -> tuple[Question, list[str]]:
    """Return the question with the precisions in which its LLM was measured, and what to say of it.

    Only a precision that the question leaves open is filled in. Where the points differ it is that
    of the configuration, or of most points if none was served so. Without options the person
    cannot choose another one, and what is said names none.
    """
    llm_id = id_of(question)
    if question.sizes is not None:
        return question, [question.sizes.said()]
    if not is_measured(llm_id, known) or answers_from_points(question, llm_id, known):
        return question, []
    points, llm = known.points[known.points["llm_id"] == llm_id], known.llms[llm_id]
    said, chosen = [], {}
    if question.hf_config is not None:
        sources = " and ".join(points["source"].unique())
        said.append(f"{llm_id} was measured by {sources}: those measurements are used.")
    if (points["engine"] == question.engine).any():
        points = points[points["engine"] == question.engine]
    for name, column, what, of_config in _PRECISIONS:
        if getattr(question, name) is not None or points[column].isna().all():
            continue
        found = points[column].fillna(of_config(llm)).value_counts()
        own, option = of_config(llm), f" (--{name.replace('_', '-')} chooses)" * has_options
        taken = chosen[name] = own if own in found else str(found.index[0])
        if len(found) > 1:
            measured = " and ".join(sorted(found.index))
            text = f"{llm_id} was measured with {what} in {measured}: {taken} is assumed"
            said.append(f"{text}{option}.")
        elif taken != own:
            text = f"{llm_id} is taken to be served with {what} in {taken}, as it was measured"
            said.append(f"{text}, not in the {own} of its configuration{option}.")
    dtype, kv_dtype = (chosen.get(name, getattr(question, name)) for name in ("dtype", "kv_dtype"))
    return replace(question, dtype=dtype, kv_dtype=kv_dtype), said


def named_otherwise(question: Question, llm_id: str, llm: LLM) -> list[str]:
    """Say where an LLM's name has a precision that neither its config nor the question has."""
    precision = unsaid_precision(llm_id, llm)
    if question.hf_config is None or question.dtype is not None or precision is None:
        return []
    return [
        f"{llm_id} says {precision} in its name, but its config quantizes nothing: {llm.dtype} is "
        f"assumed. Put its hf_quant_config.json beside it, or give --dtype {precision}."
    ]


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
