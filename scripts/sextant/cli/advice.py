"""The commands that answer questions: recommend, explain, evaluate."""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.characterizations import Database
from sextant.cli.options import Seed, grouped
from sextant.cli.terminal import say

if TYPE_CHECKING:
    from sextant.advice.question import Question

# LLM-Pilot's own seed, with which its published predictions come out.
_SEED = 42


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Which measurements to answer from."""

    database: Database = None
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="Characterization to use: a folder, one that ships, or one of the store; may be "
            "given again."
        ),
    ] = None
    workload_id: Annotated[
        str | None, typer.Option(help="Workload; the store's own by default.")
    ] = None
    scenario_id: Annotated[
        str | None, typer.Option(help="Scenario; the store's own by default.")
    ] = None
    seed: Seed = _SEED


@dataclass(frozen=True, kw_only=True)
class AskedOptions(StoreOptions):
    """The LLM that is asked about."""

    llm: Annotated[str | None, typer.Option(help="An LLM of the characterization.")] = None
    hf_config: Annotated[
        Path | None,
        typer.Option(
            "--hf-config",
            "--llm-config",
            help="config.json, or its folder, of an LLM never measured.",
        ),
    ] = None
    percentile: Annotated[int, typer.Option(help="Percentile of both limits: 50, 90, 99.")] = 50
    probe: Annotated[
        Path | None,
        typer.Option(
            help="CSV or TSV gpu_profile_id, users, nttft_ms, itl_ms measured of this LLM."
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="Data type of the weights; that of the measured LLMs by default."),
    ] = None
    kv_dtype: Annotated[
        str | None,
        typer.Option(help="Data type of the KV cache, e.g. fp8; that of the weights else."),
    ] = None

    def question(self, users: int, nttft_ms: float, itl_ms: float, **more: Any) -> "Question":
        """Return what is asked; `more` are other fields of `Question`."""
        from sextant.advice.question import Question
        from sextant.experiment.slo import SLO

        given = asdict(self)
        given["sources"] = tuple(given.pop("source") or ())
        slo = SLO("asked", nttft_ms, itl_ms, given.pop("percentile"), users)
        return Question(slo, given.pop("llm"), **given, **more)


@grouped
def recommend(
    *,
    users: Annotated[int, typer.Option(min=1, help="Concurrent users to serve.")],
    nttft_ms: Annotated[float, typer.Option(help="Limit of TTFT per input token in ms.")],
    itl_ms: Annotated[float, typer.Option(help="Limit of the inter-token latency in ms.")],
    asked: AskedOptions,
    predictor: Annotated[str, typer.Option(help="Predictor for an unmeasured LLM.")] = "roofline",
    decision: Annotated[
        Literal["utility", "paper"],
        typer.Option(help="utility: price against probability; paper: LLM-Pilot's eq. 1-3."),
    ] = "utility",
    risk: Annotated[
        float | None,
        typer.Option(
            help="Take the cheapest option that breaks a limit at most this likely; needs a "
            "predictor that draws samples: roofline."
        ),
    ] = None,
    gpu_profiles: Annotated[
        str | None, typer.Option(help="GPU profiles on offer, e.g. 1xA100-40GB,4xL4-24GB.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="CSV or TSV gpu_profile_id, usd_per_hour: prices that hold.")
    ] = None,
    printed: Annotated[
        Literal["text", "json", "html"], typer.Option("--format", help="How to give the answer.")
    ] = "text",
    out: Annotated[Path | None, typer.Option(help="File for the page of --format html.")] = None,
) -> None:
    """Say which GPU profile, and how many replicas, serve an LLM at the lowest cost."""
    from sextant.advice.answer import recommend_llm
    from sextant.advice.page import write_answer

    if (out is None) == (printed == "html"):
        raise InputError("a page needs a file", field="--out", fix="give --format html --out FILE")
    offer = {"gpu_profile_ids": _names(gpu_profiles), "prices": prices}
    how = {"predictor": predictor, "decision": decision, "risk": risk}
    answer = recommend_llm(asked.question(users, nttft_ms, itl_ms, **offer, **how))
    if out is not None:
        write_answer(answer, out)
        say(f"{out}: {answer['text'].splitlines()[0]}")
    else:
        _echo(answer, printed == "json")
    if answer["gpu_profile_id"] is None:
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
    from sextant.advice.explanation import explain_llm

    # The limits play no part: latencies are explained, not judged.
    question = asked.question(users_per_replica, 1.0, 1.0)
    _echo(explain_llm(question, gpu_profile, users_per_replica), printed == "json")


@grouped
def evaluate(
    *,
    slos: Annotated[Path, typer.Option(help="Sheet of SLOs (columns as config/slos.tsv).")],
    predictor: Annotated[
        list[str] | None,
        typer.Option(help="Predictor to judge; may be given again. Those of the store by default."),
    ] = None,
    store: StoreOptions,
    printed: Annotated[
        Literal["table", "json"], typer.Option("--format", help="How to print the result.")
    ] = "table",
) -> None:
    """Judge predictors by leave-one-LLM-out: success rate S, overspend O and S/O."""
    import pandas as pd

    from sextant.advice.scores import evaluate_predictors
    from sextant.advice.source import load_sources

    known, _ = load_sources(
        store.source or (), store.database, store.workload_id, store.scenario_id
    )
    result = evaluate_predictors(
        known,
        slos,
        predictor,
        store.seed,
        # Standard output is for the result alone.
        progress=partial(say, err=True),
    )
    if printed == "json":
        say(json.dumps(result, indent=2, allow_nan=False))
        return
    for part in ("predictors", "scenarios"):
        say(pd.DataFrame(result[part]).to_string(index=False) + "\n")


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        fix = "write names separated by commas"
        raise InputError(f"{text!r} has an empty name", field="--gpu-profiles", fix=fix)
    return names


def _echo(answer: dict[str, Any], as_json: bool) -> None:
    say(json.dumps(answer, indent=2, allow_nan=False) if as_json else answer["text"])
