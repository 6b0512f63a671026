"""The measurements nearest to what is asked about, and whether it lies outside of them."""

import math
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.basis import served_precisions
from sextant.answer.subject import Subject
from sextant.decide.recommend import u_max
from sextant.facts.gpu import GIB
from sextant.facts.llm import LLM
from sextant.facts.llm.load import kv_precision_of, precision_of, served
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import IDENTIFIERS, LENGTHS, SERVING, at_percentile

_N_NEAREST = 2
_NUMBERS = {
    "weights_gib": ("GiB of weights", lambda llm: llm.weight_bytes / GIB),
    "n_layers": ("layers", lambda llm: llm.n_layers + llm.n_encoder_layers),
    "kv_kib_per_token": ("KiB of KV cache per token", lambda llm: llm.kv_bytes_per_token / 1024),
}
_KINDS = {
    "llm_type": ("family", lambda llm: llm.llm_type),
    "attention": ("attention", lambda llm: llm.attention),
    "experts": ("layers", lambda llm: "mixture of experts" if llm.n_experts else "dense"),
}
_PRECISIONS = {
    "precision": ("precision of the weights", precision_of),
    "kv_precision": ("precision of the KV cache", kv_precision_of),
}


def nearest(subject: Subject, profile_id: str, slo: SLO) -> list[dict[str, Any]]:
    """Return the measured LLMs most similar to the one that is asked about, on a GPU profile.

    Those executed alike come first, then those on the asked engine, then those of nearest weight
    bytes as they were served; of each the requests whose lengths are nearest to the asked ones,
    and of several ways to serve these the one that served the most users. Each has
    `users_per_replica`, the most users that it was measured to serve within these limits, those
    lengths, and the `engine`, `engine_version` and `precision` of those points. Points without
    lengths are left out.
    """
    points = at_percentile(subject.source.known.points, slo.percentiles, slo.first_token)
    own = points[points["gpu_profile_id"] == profile_id].dropna(subset=["users", *LENGTHS])
    rows = [
        _served_as(subject, _of_nearest_lengths(part, subject), slo)
        for _, part in own.groupby(["llm_id", *SERVING], dropna=False)
    ]
    rows.sort(key=lambda row: _distance(row, subject))
    of_llm: dict[str, dict[str, Any]] = {}
    for row in rows:
        of_llm.setdefault(row["llm_id"], row)
    return [*of_llm.values()][:_N_NEAREST]


def _served_as(subject: Subject, rows: pd.DataFrame, slo: SLO) -> dict[str, Any]:
    """Return what is said of points of one LLM that was served in one way."""
    first, execution = rows.iloc[0], subject.execution
    way = {name: None if pd.isna(first[name]) else first[name] for name in SERVING}
    llm = served(subject.measured[first["llm_id"]], way["precision"], way["kv_precision"])
    return {
        **{name: first[name] for name in IDENTIFIERS},
        "weights_gib": llm.weight_bytes / GIB,
        "precision": precision_of(llm),
        "engine": way["engine"],
        "engine_version": way["engine_version"],
        "execution": execution[first["llm_id"]],
        "is_executed_alike": execution[first["llm_id"]] == execution[subject.llm_id],
        "users_per_replica": u_max(rows, slo),
        "most_users_tried": int(rows["users"].max()),
        **{name: float(rows[name].median()) for name in LENGTHS},
    }


def _distance(row: dict[str, Any], subject: Subject) -> tuple[bool, bool, float, float, int]:
    """Return what sorts evidence: the most similar comes first."""
    weights = abs(math.log(row["weights_gib"] * GIB / subject.llm.weight_bytes))
    lengths = np.abs(np.log([row[name] for name in LENGTHS] / subject.lengths)).sum()
    is_other_engine = row["engine"] not in (None, subject.serving.engine)
    return (
        not row["is_executed_alike"],
        is_other_engine,
        weights,
        float(lengths),
        -row["users_per_replica"],
    )


def _of_nearest_lengths(rows: pd.DataFrame, subject: Subject) -> pd.DataFrame:
    """Return the rows of those requests, if a source has several, that are most like the asked."""
    fixed = [each.source for each in subject.source.known.descriptions if each.lengths == "fixed"]
    if not fixed or not rows["source"].isin(fixed).all():
        return rows
    distance = np.abs(np.log(rows[LENGTHS].to_numpy(float) / subject.lengths)).sum(axis=1)
    return rows[distance <= distance.min() + 1e-9]


def outside(subject: Subject, profile_id: str | None) -> list[dict[str, Any]]:
    """Return in what the LLM, or the GPU profile, differs from everything that was measured.

    Each entry has `fact`, `value`, `measured` (a range or a list), `direction` (`above`,
    `below`, `new`) and a `text`.
    """
    others = [*subject.measured.values()]
    found = [_number(name, subject.llm, others) for name in _NUMBERS]
    found += [_kind(name, subject.llm, others) for name in _KINDS]
    found += [_precision(name, subject) for name in _PRECISIONS]
    execution = subject.execution
    found.append(
        _new(
            "execution",
            "execution",
            execution[subject.llm_id],
            {execution[name] for name in subject.measured},
        )
    )
    if profile_id is not None:
        known = subject.source.known
        measured = [known.profiles[name] for name in known.points["gpu_profile_id"].unique()]
        gpu, n_gpus = subject.profiles[profile_id].gpu, subject.profiles[profile_id].n_gpus
        found.append(_new("gpu_id", "GPU", gpu.gpu_id, {each.gpu.gpu_id for each in measured}))
        found.append(_execution_on(subject, gpu.gpu_id))
        counts = {str(each.n_gpus) for each in measured}
        found.append(_new("n_gpus", "GPUs per replica", str(n_gpus), counts))
    return [entry for entry in found if entry]


def _execution_on(subject: Subject, gpu_id: str) -> dict[str, Any] | None:
    """Return that nothing executed like the LLM was measured on a GPU on which others were."""
    known, execution = subject.source.known, subject.execution
    pairs = known.points[["llm_id", "gpu_profile_id"]].drop_duplicates()
    on_it = [known.profiles[name].gpu.gpu_id == gpu_id for name in pairs["gpu_profile_id"]]
    kinds = {execution[name] for name in pairs.loc[on_it, "llm_id"]}
    own = execution[subject.llm_id]
    if not kinds or own in kinds:
        return None
    text = f"no LLM executed like this one ({own}) was measured on {gpu_id}, only other kinds"
    return _entry("execution_on_gpu", own, sorted(kinds), "new", text)


def _number(name: str, llm: LLM, others: list[LLM]) -> dict[str, Any] | None:
    unit, measure = _NUMBERS[name]
    value, values = measure(llm), [measure(other) for other in others]
    low, high = min(values), max(values)
    if low <= value <= high:
        return None
    direction = "above" if value > high else "below"
    bound, more = (high, "more") if value > high else (low, "fewer" if unit == "layers" else "less")
    text = f"{value:.4g} {unit}: {more} than any measured LLM has ({bound:.4g})"
    return _entry(name, value, [low, high], direction, text)


def _kind(name: str, llm: LLM, others: list[LLM]) -> dict[str, Any] | None:
    unit, measure = _KINDS[name]
    return _new(name, unit, measure(llm), {measure(other) for other in others})


def _precision(name: str, subject: Subject) -> dict[str, Any] | None:
    """Return that nothing was served in the asked precision; points may differ from configs."""
    what, own = _PRECISIONS[name]
    return _new(name, what, own(subject.llm), served_precisions(subject.source, name, own))


def _new(name: str, what: str, value: str, measured: set[str]) -> dict[str, Any] | None:
    if value in measured:
        return None
    text = f"{what} {value}: never measured (measured: {', '.join(sorted(measured))})"
    return _entry(name, value, sorted(measured), "new", text)


def _entry(fact: str, value: Any, measured: list, direction: str, text: str) -> dict[str, Any]:
    return {
        "fact": fact,
        "value": value,
        "measured": measured,
        "direction": direction,
        "text": text,
    }
