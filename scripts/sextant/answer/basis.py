"""Whether a question lies outside of what was measured: lengths, engine, LLM, GPU generation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.question import Question
from sextant.answer.source import Source
from sextant.base.errors import InputError
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.llm.load import precision_of
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import LENGTHS, at_percentile, estimated

_FAR = 10
"""Lengths beyond this many times the measured ones are outside of the basis."""
_WIDER = 0.1
"""Standard deviation that a factor of e beyond the measured lengths adds to a log-latency."""
_SIXTEEN_BIT = {"fp16": "bf16", "bf16": "fp16"}
"""These are of one speed and size."""
_OF_TARGET = {"nttft_ms": {"ttft", "nttft", "e2e"}, "itl_ms": {"itl", "tpot", "e2e"}}
"""The limits that each of the two predicted latencies decides."""
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
    found += _outside_generations(source, profiles)
    if users is not None and users > (most := points["users"].max()):
        text = f"{users:,} users a replica, where up to {most:,} were measured"
        found.append(("--users-per-replica", text))
    if found and question.is_strict:
        field, text = found[0]
        fix = "ask about what was measured, name another --source, or leave --strict out"
        raise InputError(f"{text} ({source.known.source})", field=field, fix=fix)
    return [text for _, text in found]


def _outside_generations(
    source: Source, profiles: Mapping[str, GPUProfile]
) -> list[tuple[str, str]]:
    """Return the GPU generations on offer that were not measured, with the option."""
    names = source.known.points["gpu_profile_id"].unique()
    measured = {source.known.profiles[name].gpu.architecture for name in names}
    others: dict[str, list[str]] = {}
    for name, each in profiles.items():
        if each.gpu.architecture not in measured:
            others.setdefault(each.gpu.architecture, []).append(name)
    if not others:
        return []
    told = [f"{', '.join(names)} (generation {generation})" for generation, names in others.items()]
    known = ", ".join(sorted(measured))
    return [("--gpu-profiles", f"{' and '.join(told)}, where {known} were measured")]


def _outside_llms(source: Source, llm: LLM) -> list[tuple[str, str]]:
    """Return in what an LLM as it is served differs from all measured ones, with the option."""
    found, known = [], served_precisions(source, "precision", precision_of)
    if not {precision_of(llm), _SIXTEEN_BIT.get(precision_of(llm))} & known:
        text = f"weights in {precision_of(llm)}, where {', '.join(sorted(known))} were measured"
        found.append(("--dtype", text))
    measured = [source.known.llms[name] for name in source.known.points["llm_id"].unique()]
    if llm.n_encoder_layers and not any(each.n_encoder_layers for each in measured):
        text = "an LLM with encoder and decoder, where decoders alone were measured"
        found.append(("--hf-config", text))
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
        f"No {names[name]} was measured: what is said of it is the law's assumption alone."
        for name in missing
    ]
    for target, columns in estimated(points, slo.percentiles).items():
        if target in missing or target not in used:
            continue
        known = [name.split("_")[0] for name in columns]
        if shown[target] == 50 and set(known) <= {"mean", "median"}:
            continue
        how = f"estimated from the {' or '.join(known)} with a factor of other sources"
        if known == ["p90", "p99"]:
            how = "interpolated between p90 and p99"
        percentile = f"p{shown[target]} of the {names[target]}"
        found.append(f"The {percentile} is not among the points: it is {how}.")
    return found


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
