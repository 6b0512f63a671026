"""Answers for the command line, from a store: a recommendation, and scores of predictors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import cpu_count

from sextant.characterization import Characterization, load_characterization
from sextant.errors import InputError
from sextant.experiment import SCHEMAS
from sextant.llm import load_llm
from sextant.predict.evaluate import MEASURED, evaluate
from sextant.predict.job import allowed_pairs, failed_pairs
from sextant.predict.registry import PREDICTORS
from sextant.recommend import Pair
from sextant.sheets import load_sheet, validate


def _feasible(known: Characterization) -> set[Pair]:
    return allowed_pairs(
        known.llms,
        known.profiles,
        known.longest_request_tokens,
        known.feasibility["memory_utilization"].max(),
        known.feasibility,
    )


def check_slo(slo: Mapping[str, Any]) -> None:
    """Raise InputError unless limits and users are what a row of `slos.tsv` may have."""
    for name in ("nttft_ms", "itl_ms"):
        if not math.isfinite(slo[name]):
            raise InputError(f"{slo[name]} is no limit", field=name, fix="give milliseconds")
    validate(slo, SCHEMAS / "slos.schema.yaml", "command line")


def recommend_llm(
    database: Path,
    slo: Mapping[str, Any],
    llm_id: str | None,
    llm_config: Path | None,
    predictor: str,
    source: str | None,
    seed: int,
    workload_id: str | None = None,
    scenario_id: str | None = None,
) -> dict[str, Any]:
    """Recommend for one LLM: from its points if it has any, else from a predictor.

    Raises:
        InputError: not exactly one LLM is named, or the store does not know it.
    """
    if (llm_id is None) == (llm_config is None):
        fix = "give the one or the other"
        raise InputError("one LLM is needed", field="--llm, --llm-config", fix=fix)
    check_slo(slo)
    if predictor not in PREDICTORS:
        fix = f"use one of {', '.join(PREDICTORS)}"
        raise InputError(f"unknown predictor {predictor!r}", field="--predictor", fix=fix)
    known = load_characterization(database, source, workload_id, scenario_id)
    if llm_config is not None:
        llm_id = llm_config.stem
        if llm_id in known.llms:
            fix = f"ask with --llm {llm_id}, or rename the file"
            raise InputError(f"the store has an LLM {llm_id!r}", file=llm_config, fix=fix)
        # It would be served in the type that the measured ones were.
        served = next(iter(known.llms.values())).dtype
        known.llms[llm_id] = replace(load_llm(llm_config), dtype=served)
    elif llm_id not in known.llms:
        fix = f"use one of {', '.join(known.llms)}, or --llm-config"
        raise InputError(f"unknown LLM {llm_id!r}", field="--llm", fix=fix)
    if known.features is not None and llm_id not in known.features.llms.index:
        problem = f"{known.source} has features of its own LLMs only, not of {llm_id!r}"
        raise InputError(problem, field="--source", fix="ask a source that you measured")
    is_measured = llm_id in set(known.points["llm_id"])
    basis = MEASURED if is_measured else predictor
    feasible = _feasible(known) - (failed_pairs(known.feasibility) if is_measured else set())
    result = evaluate(
        known.points,
        known.llms,
        known.profiles,
        [slo],
        basis,
        known.source,
        seed,
        features=known.features,
        feasible=feasible,
        n_jobs=cpu_count(),
    )
    chosen = result.recommendations.query("llm_id == @llm_id")
    options = result.candidates.query("llm_id == @llm_id")
    if chosen.empty:
        note = result.scores["note"].iloc[0]
        raise InputError(f"no prediction is possible ({note})", fix="measure more LLMs")
    row = _plain(chosen)[0]
    alternatives = _plain(options.drop(columns=["source", "slo_id", "predictor"]))
    answer = {**row, "basis": basis, "alternatives": alternatives}
    return {**answer, "text": _as_text(answer, slo)}


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows with None for what is missing: JSON has no NaN."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _as_text(answer: Mapping[str, Any], slo: Mapping[str, Any]) -> str:
    how = "measured" if answer["basis"] == MEASURED else f"predicted by {answer['basis']}"
    lines = []
    if answer["gpu_profile_id"] is None:
        lines.append(f"{answer['llm_id']}: no GPU profile meets both limits ({how})")
    else:
        lines.append(
            f"{answer['llm_id']}: {answer['replicas']} × {answer['gpu_profile_id']} "
            f"= {answer['usd_per_hour']:.2f} USD/h ({how})"
        )
    lines.append(
        f"for {slo['users']} users, nTTFT ≤ {slo['nttft_ms']:g} ms, "
        f"ITL ≤ {slo['itl_ms']:g} ms at p{slo['percentile']}"
    )
    lines += [f"  {_option_text(option)}" for option in answer["alternatives"]]
    return "\n".join(lines)


def _option_text(option: Mapping[str, Any]) -> str:
    name = option["gpu_profile_id"]
    if option["status"] == "meets":
        return (
            f"{name}: {option['replicas']} replicas of {option['users_per_replica']} users, "
            f"{option['usd_per_hour']:.2f} USD/h"
        )
    if option["status"] == "too_slow" and option["limit_ratio"] is not None:
        limit = "ITL" if option["itl_ratio"] >= option["nttft_ratio"] else "nTTFT"
        return f"{name}: {limit} is {option['limit_ratio']:.2f} times its limit"
    return f"{name}: {option['status'].replace('_', ' ')}"


def evaluate_predictors(
    database: Path,
    slos: Path,
    predictors: Sequence[str] | None,
    source: str | None,
    seed: int,
    workload_id: str | None = None,
    scenario_id: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Judge predictors on every SLO of a sheet by leave-one-LLM-out.

    Returns:
        `predictors`: means over the SLOs, one row a predictor; `scenarios`: one row a
        predictor and SLO. A mean leaves out SLOs that have no value, e.g. no success.
    """
    rows = load_sheet(slos, SCHEMAS / "slos.schema.yaml", "slo_id")
    known = load_characterization(database, source, workload_id, scenario_id)
    # Not all that there are: some take many minutes.
    names = list(dict.fromkeys(predictors or ())) or [
        name for name in PREDICTORS if name in known.predictors
    ]
    feasible = _feasible(known)
    scores = pd.concat(
        [
            evaluate(
                known.points,
                known.llms,
                known.profiles,
                rows,
                name,
                known.source,
                seed,
                features=known.features,
                feasible=feasible,
                n_jobs=cpu_count(),
                progress=progress,
            ).scores
            for name in names
        ]
    )
    means = scores.groupby("predictor", sort=False).agg(
        so_score=("so_score", "mean"),
        success_rate=("success_rate", "mean"),
        overspend=("overspend", "mean"),
        mape_nttft=("mape_nttft", "mean"),
        mape_itl=("mape_itl", "mean"),
        n_scenarios=("slo_id", "size"),
        # SLOs that share a fit state the same number: it was spent once.
        fit_seconds=("fit_seconds", lambda seconds: seconds.drop_duplicates().sum()),
    )
    return {"predictors": _plain(means.reset_index()), "scenarios": _plain(scores)}
