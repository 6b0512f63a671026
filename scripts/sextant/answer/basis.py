"""How the LLM is asked to be served, and for which requests."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.question import (
    Length,
    Question,
    Requests,
    answers_from_points,
    id_of,
    is_measured,
)
from sextant.answer.source import Source
from sextant.base.errors import InputError
from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import LLM, kv_precision_of, precision_in_name, precision_of
from sextant.facts.slo import METRICS, SLO
from sextant.pages.wording import listed, percent, plural
from sextant.points.characterization import Characterization
from sextant.points.frame import (
    FORMULAS,
    LENGTHS,
    SERVING,
    at_percentile,
    estimated,
    is_refused,
)

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

    Only a precision that the question leaves open is filled in. Where the points differ, or the
    configuration is given, it is that of the configuration, or of most points if none was served
    so. Without options the person cannot choose another one, and the notes name no option.
    """
    llm_id = id_of(question)
    if question.sizes is not None:
        return question, [question.sizes.description()]
    if not is_measured(llm_id, known) or answers_from_points(question, llm_id, known):
        return question, []
    points, llm = known.points[known.points["llm_id"] == llm_id], known.llms[llm_id]
    notes, chosen = [], {}
    if question.hf_config is not None:
        sources = " and ".join(points["source"].unique())
        notes.append(f"{llm_id} was measured by {sources}: those measurements are used.")
    if (points["engine"] == question.engine).any():
        points = points[points["engine"] == question.engine]
    for name, column, what, of_config in _PRECISIONS:
        if getattr(question, name) is not None or points[column].isna().all():
            continue
        found = points[column].fillna(of_config(llm)).value_counts()
        own, option = of_config(llm), f" (--{name.replace('_', '-')} chooses)" * has_options
        is_own = own in found or question.hf_config is not None
        taken = chosen[name] = own if is_own else str(found.index[0])
        if len(found) > 1 or taken not in found:
            measured = " and ".join(sorted(found.index))
            text = f"{llm_id} was measured with {what} in {measured}: {taken} is assumed"
            notes.append(f"{text}{option}.")
        elif taken != own:
            text = f"{llm_id} is taken to be served with {what} in {taken}, as it was measured"
            notes.append(f"{text}, not in the {own} of its configuration{option}.")
    dtype, kv_dtype = (chosen.get(name, getattr(question, name)) for name in ("dtype", "kv_dtype"))
    return replace(question, dtype=dtype, kv_dtype=kv_dtype), notes


def named_otherwise(question: Question, llm_id: str, llm: LLM) -> list[str]:
    """Say where an LLM's name has a precision that neither its config nor the question has."""
    precision = precision_in_name(llm_id, llm)
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
    usual = [Length(mean, 0.0) for mean in usual_lengths(question, source)]
    return Serving(
        question.requests or Requests(*usual),
        engine,
        max(versions, key=_version, default=None),
        question.precision,
        question.kv_precision,
        question.prefix_hit_rate,
    )


def usual_lengths(question: Question, source: Source) -> Sequence[float]:
    """Return the mean lengths of requests where none are asked for.

    They are those that the LLM itself was measured with, if its points are of one workload; else
    the source's.
    """
    own = _own_lengths(question, source).median()
    known = [source.input_tokens, source.output_tokens]
    return known if own.isna().any() else [float(each) for each in own]


def _own_lengths(question: Question, source: Source) -> pd.DataFrame:
    """Return the lengths of the LLM's own points in sources of one workload."""
    points = source.known.points
    fixed = [each.source for each in source.known.descriptions if each.lengths == "fixed"]
    is_own = (points["llm_id"] == id_of(question)) & ~points["source"].isin(fixed)
    return points.loc[is_own, LENGTHS].dropna()


def _version(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", text)]


def longest_of(question: Question, source: Source) -> int:
    """Return the tokens of the longest request that a server has to hold."""
    if question.max_model_len is not None:
        return question.max_model_len
    if question.requests is not None:
        return round(sum(each.high for each in question.requests))
    own = _own_lengths(question, source)
    if source.known.has_fixed_lengths and len(own):  # others have longer requests than the LLM's
        return int(own.sum(axis=1).max().round())
    return source.longest_request_tokens


_FAR = 10
"""Lengths beyond this many times the measured ones are outside of the basis."""
_WIDER = 0.1
"""Standard deviation that a factor of e beyond the measured lengths adds to a log-latency."""
_SIXTEEN_BIT = {"fp16": "bf16", "bf16": "fp16"}
"""These are of one speed and size."""
_OF_TARGET = {"nttft_ms": {"ttft", "nttft", "e2e"}, "itl_ms": {"itl", "tpot", "e2e"}}
"""The limits that each of the two predicted latencies decides."""
_KINDS: tuple[tuple[str, Callable[[LLM], str]], ...] = (
    ("an LLM with", lambda llm: "an encoder" if llm.n_encoder_layers else "a decoder alone"),
    ("attention", lambda llm: llm.attention),
    ("layers that are", lambda llm: "a mixture of experts" if llm.n_experts else "dense"),
)
_SIZES: tuple[tuple[str, Callable[[LLM], float]], ...] = (
    ("GiB of weights", lambda llm: llm.weight_bytes / GIB),
    ("layers", lambda llm: llm.n_layers + llm.n_encoder_layers),
    ("KiB of KV cache per token", lambda llm: llm.kv_bytes_per_token / 1024),
)
_SIDES = {"input_tokens": "input", "output_tokens": "output"}


def beyond(source: Source, lengths: dict[str, float]) -> dict[str, float]:
    """Return by what factor each length lies beyond the measured ones, at least 1."""
    found = {}
    for name in LENGTHS:
        values = source.known.points[name].dropna()
        found[name] = max(lengths[name] / values.max(), values.min() / lengths[name], 1.0)
    return found


def widening_sd(source: Source, lengths: dict[str, float]) -> float:
    """Return the standard deviation that lengths beyond the measured ones add to log-latencies."""
    return _WIDER * float(np.log(max(beyond(source, lengths).values())))


def outside_basis(
    question: Question,
    source: Source,
    llm: LLM,
    lengths: dict[str, float],
    profiles: dict[str, GPUProfile],
    users: int | None = None,
) -> list[str]:
    """Return in what the question lies outside of the basis, a clause each.

    `users` of a replica are asked for where a latency is explained; an answer offers no more than
    were measured.

    Raises:
        InputError: anything does, and the question is strict.
    """
    points, found = source.known.points, []
    for name, factor in beyond(source, lengths).items():
        if factor > _FAR:
            low, high = points[name].min(), points[name].max()
            found.append(
                (
                    f"--{name.replace('_', '-')}",
                    f"{lengths[name]:.0f} {_SIDES[name]} tokens, where "
                    f"{low:.0f} to {high:.0f} were measured",
                )
            )
    engines = sorted(points["engine"].dropna().unique())
    if question.engine is not None and question.engine not in engines:
        known = ", ".join(engines) or "an engine that is not named"
        found.append(("--engine", f"the engine {question.engine}, where {known} was measured"))
    found += _outside_llms(source, llm)
    gpu_ids = {each.gpu.gpu_id for each in profiles.values()}
    if unmeasured := sorted(gpu_ids - source.gpu_ids):
        text = f"{listed(unmeasured)}, where {listed(sorted(source.gpu_ids))} were measured"
        found.append(("--gpu-profiles", text))
    if users is not None and users > (most := points["users"].max()):
        text = f"{users:,} users a replica, where up to {most:,} were measured"
        found.append(("--users-per-replica", text))
    if found and question.is_strict:
        field, text = found[0]
        fix = "ask about what was measured, name another --source, or leave --strict out"
        raise InputError(f"{text} ({source.known.source})", field=field, fix=fix)
    return [text for _, text in found]


def _outside_llms(source: Source, llm: LLM) -> list[tuple[str, str]]:
    """Return in what an LLM as it is served differs from all measured ones, with the option."""
    found = []
    measured = [source.known.llms[name] for name in source.known.points["llm_id"].unique()]

    def add_new(option: str, what: str, value: str, known: set[str]) -> None:
        if not {value, _SIXTEEN_BIT.get(value)} & known:
            found.append((option, f"{what} {value}, where {listed(sorted(known))} were measured"))

    for name, column, what, of_config in _PRECISIONS:
        known = served_precisions(source, column, of_config)
        add_new(f"--{name.replace('_', '-')}", f"{what} in", of_config(llm), known)
    for what, kind in _KINDS:
        add_new("--hf-config", what, kind(llm), {kind(each) for each in measured})
    for unit, size in _SIZES:
        value, values = size(llm), [size(each) for each in measured]
        if not min(values) <= value <= max(values):
            ends = f"{min(values):.4g} to {max(values):.4g}"
            found.append(("--hf-config", f"{value:.4g} {unit}, where {ends} were measured"))
    return found


def served_precisions(source: Source, column: str, own: Callable[[LLM], str]) -> set[str]:
    """Return the precisions that points were served in; those without one as the config says."""
    points = source.known.points
    configured = points["llm_id"].map({name: own(llm) for name, llm in source.known.llms.items()})
    return set(points[column].fillna(configured))


def estimates(points: pd.DataFrame, slo: SLO) -> list[str]:
    """Return which percentiles are estimated, and from what, a sentence each.

    Only of latencies that have a limit, or that a request rate needs.
    """
    names = {"nttft_ms": "TTFT", "itl_ms": "time per token"}
    shown = dict(zip(names, slo.percentiles, strict=True))
    used = [name for name in names if slo.users is None or _OF_TARGET[name] & slo.limits.keys()]
    latencies = at_percentile(points, slo.percentiles, slo.first_token)
    missing = [name for name in used if not (latencies[name] > 0).any()]
    found = [
        f"No {names[name]} was measured: its values are the law's assumption alone."
        for name in missing
    ]
    percentiles = dict(zip(names, slo.percentiles, strict=True))
    for target, columns in estimated(points, percentiles).items():
        if target in missing or target not in used:
            continue
        found += _estimate(f"the {names[target]}", shown[target], columns)
    return found


def _estimate(what: str, percentile: int, columns: Sequence[str]) -> list[str]:
    known = [name.split("_")[0] for name in columns]
    if percentile == 50 and set(known) <= {"mean", "median"}:
        return []
    how = f"estimated from the {' or '.join(known)} with a factor of other sources"
    if known == ["p90", "p99"]:
        how = "interpolated between p90 and p99"
    return [f"The p{percentile} of {what} is not among the points: it is {how}."]


_MOST_FAILURES = 5


def judgements(points: pd.DataFrame, latencies: pd.DataFrame, slo: SLO) -> list[str]:
    """Return what to know of a measured answer, a sentence each: which limits are judged by a
    latency that is derived or estimated, and where too many requests failed.

    Args:
        points: those that it rests on.
        latencies: the same at the SLO's percentiles (`points.frame.judged`).
        slo: the limits.
    """
    found, n_points = [], len(latencies)
    for metric, (_, percentile) in slo.limits.items():
        if n_derived := int(latencies[f"{metric}_is_derived"].sum()):
            where = "" if n_derived == n_points else f" at {n_derived} of {n_points} points"
            text = f"{METRICS[metric]} was not measured{where}: it is derived from "
            found.append(f"{text}{FORMULAS[metric]}.")
        columns = estimated(points, {f"{metric}_ms": percentile}).get(f"{metric}_ms", [])
        found += _estimate(METRICS[metric], percentile, columns) if columns else []
    failing = latencies[is_refused(latencies, slo)].sort_values(["users", "gpu_profile_id"])
    for row in failing.head(_MOST_FAILURES).to_dict("records"):
        place = f"{row['gpu_profile_id']} with {plural(int(row['users']), 'user')}"
        failed = f"{row['n_failed']:,} of {row['n_ok'] + row['n_failed']:,} requests failed"
        allowed = f"more than the {percent(slo.allowed_failures)} allowed"
        found.append(f"{place}: {failed}, {allowed}. That load does not meet the SLO.")
    if (n_more := len(failing) - _MOST_FAILURES) > 0:
        found.append(f"{plural(n_more, 'more point')} with too many failures.")
    return found


def failure_words(row: Mapping[str, Any], slo: SLO) -> str:
    """Return how many requests failed at the fewest users of a candidate."""
    return (
        f"{percent(row['failed_share'])} of the requests failed with "
        f"{plural(row['fewest_users'], 'user')}, {percent(slo.allowed_failures)} allowed"
    )


def warning(clauses: list[str], source: Source) -> list[str]:
    """Return the one line that stands at the top of an answer, none if there is nothing to say."""
    text = f"Outside of what {source.known.source} measured: {'; '.join(clauses)}. "
    return [text + "The answer is less certain than it says."] if clauses else []


def widened(samples_ms: np.ndarray, sd: float, seed: int) -> Any:
    """Return draws whose logarithms all moved by one random number of this deviation a draw."""
    if not sd:
        return samples_ms
    moved = np.random.default_rng(seed).normal(0, sd, (len(samples_ms), 1, 1))
    return samples_ms * np.exp(moved)
