"""The commands that answer questions: recommend, explain, evaluate."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import (
    AskedOptions,
    CandidateOptions,
    LimitOptions,
    LoadOptions,
    StoreOptions,
    slo_of,
)
from sextant.cli.options import PageFile, Printed, check_page, grouped, print_document, say

_SIMULATED = (
    "With --trace the answer is that of `sextant capacity`: replicas for this traffic, simulated."
)


@grouped
def recommend(
    *,
    load: LoadOptions,
    limits: LimitOptions,
    asked: AskedOptions,
    predictor: Annotated[str, typer.Option(help="Predictor for an unmeasured LLM.")] = "roofline",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="In place of a load, the traffic of this normalised trace: the answer is that of "
            "`sextant capacity`."
        ),
    ] = None,
    decision: Annotated[
        Literal["utility", "paper"],
        typer.Option(help="utility: price against probability; paper: LLM-Pilot's eq. 1-3."),
    ] = "utility",
    risk: Annotated[
        float | None,
        typer.Option(
            help="Take the cheapest option that breaks a limit at most this likely; predicted ones "
            "need a predictor that draws samples: roofline."
        ),
    ] = None,
    candidates: CandidateOptions,
    printed: Printed = "text",
    out: PageFile = None,
) -> None:
    """Say which GPU profile, and how many replicas, serve an LLM at the lowest cost."""
    if trace is not None:
        from sextant.cli.capacity import (
            KeepOptions,
            TrafficOptions,
            capacity_question,
            print_capacity,
        )

        _check_no_load(load)
        keep = KeepOptions() if risk is None else KeepOptions(risk=risk)
        arriving = TrafficOptions(trace=trace)
        simulated = capacity_question(arriving, limits, keep, asked, candidates)
        print_capacity(simulated, printed, out, lead=_SIMULATED)
        return
    from sextant.answer.recommend import recommend_llm
    from sextant.answer.text import recommendation_document

    check_page(printed, out)
    how = {"predictor": predictor, "decision": decision, "risk": risk}
    answer = recommend_llm(asked.question(slo_of(asked, load, limits), **candidates.of(), **how))
    print_document(recommendation_document(answer, has_widget=out is not None), printed, out)
    if not answer.has_option:
        raise typer.Exit(3)


@grouped
def explain(
    *,
    gpu_profile: Annotated[str, typer.Option(help="GPU profile, e.g. 1xA100-40GB.")],
    users_per_replica: Annotated[int, typer.Option(min=1, help="Concurrent users of a replica.")],
    asked: AskedOptions,
    printed: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How to print the result.")
    ] = "text",
) -> None:
    """Say what a predicted latency is made of: the terms of the mechanistic model."""
    from sextant.answer.step_laws import explain_llm

    # The limits play no part: latencies are explained, not judged.
    limits = LimitOptions(nttft_ms="1", itl_ms="1")
    slo = slo_of(asked, LoadOptions(users=users_per_replica), limits)
    print_document(explain_llm(asked.question(slo), gpu_profile, users_per_replica), printed)


@grouped
def evaluate(
    *,
    slos: Annotated[
        Path | None,
        typer.Option(
            help="Sheet of SLOs (columns as config/slos.tsv) to judge S, O and S/O on; without it "
            "the accuracy of latencies alone is judged."
        ),
    ] = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(help="Predictor to judge; may be given again. Those of the store by default."),
    ] = None,
    store: StoreOptions,
    hold_out: Annotated[
        Literal["llm", "gpu", "engine_version"],
        typer.Option(help="What a fold has not seen where the accuracy of latencies is judged."),
    ] = "llm",
    printed: Annotated[
        Literal["table", "json"], typer.Option("--format", help="How to print the result.")
    ] = "table",
) -> None:
    """Judge predictors by leave-one-LLM-out: accuracy, success rate S, overspend O and S/O."""
    import pandas as pd

    from sextant.answer.source import load_sources
    from sextant.decide.scores import evaluate_predictors

    known, _ = load_sources(
        store.source or (), store.database, store.workload_id, store.scenario_id
    )
    for line in known.left_out:
        say(line, err=True)
    result = evaluate_predictors(
        known,
        slos,
        predictor,
        store.seed,
        hold_out=hold_out,
        # Standard output is for the result alone.
        progress=partial(say, err=True),
    )
    if printed == "json":
        say(json.dumps(result, indent=2, allow_nan=False))
        return
    for part in ("predictors", "scenarios"):
        if result[part]:
            say(pd.DataFrame(result[part]).to_string(index=False) + "\n")


def _check_no_load(load: LoadOptions) -> None:
    if any(value is not None for value in asdict(load).values()):
        options = "--trace, --users, --request-rate, --tokens-per-day"
        raise InputError("two loads are given", field=options, fix="give exactly one of them")
