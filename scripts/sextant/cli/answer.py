"""The commands that answer questions, and those on the characterizations that answers rest on."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli import options

_SIMULATED = (
    "With --trace the answer is that of `sextant capacity`: replicas for this traffic, simulated."
)


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """How a recommendation is made."""

    max_failed: Annotated[float | None, typer.Option(min=0, max=1)] = None
    """Largest share of failed requests; 0.01 by default."""
    predictor: str = "roofline"  #: Predictor for an unmeasured LLM.
    trace: Path | None = None
    """In place of a load, the traffic of this normalised trace: the answer is that of `sextant
    capacity`."""
    decision: Literal["utility", "paper"] = "utility"
    """utility: price against probability; paper: LLM-Pilot's eq. 1-3."""
    disaggregated: Annotated[bool, typer.Option("--disaggregated")] = False
    """Compare with prefill and decode on replicas of their own, at a request rate."""
    risk: float | None = None
    """Take the cheapest option that breaks a limit at most this likely; predicted ones need a
    predictor that draws samples: roofline."""


@options.grouped
def recommend(
    *,
    load: options.LoadOptions,
    limits: options.LimitOptions,
    given: RecommendOptions,
    asked: options.AskedOptions,
    candidates: options.CandidateOptions,
    shown: options.PrintOptions,
) -> None:
    """Say which GPU profile, and how many replicas, serve an LLM at the lowest cost."""
    if given.trace is not None:
        from sextant.cli import capacity

        if given.disaggregated:
            fix = "give --request-rate in place of the trace"
            problem = "pools are sized at a steady rate"
            raise InputError(problem, field="--disaggregated", fix=fix)
        if load != options.LoadOptions():
            loads = "--trace, --users, --request-rate, --tokens-per-day"
            raise InputError("two loads are given", field=loads, fix="give exactly one of them")
        shares: dict[str, Any] = {"max_failed": given.max_failed, "risk": given.risk}
        shares = {name: value for name, value in shares.items() if value is not None}
        capacity.print_capacity(
            traffic=capacity.TrafficOptions(trace=given.trace),
            limits=limits,
            keep=capacity.KeepOptions(**shares),
            asked=asked,
            candidates=candidates,
            server=capacity.SchedulerOptions(),
            search=capacity.SearchOptions(),
            shown=shown,
            _notes=(_SIMULATED,),
        )
        return
    from sextant.recommend.document import recommendation_document
    from sextant.recommend.recommend import recommend_llm

    slo = options.slo_of_options(asked, load, limits, given.max_failed)
    how: dict[str, Any] = {name: getattr(given, name) for name in ("predictor", "decision", "risk")}
    how |= candidates.of() | {"is_disaggregated": given.disaggregated}
    answer = recommend_llm(asked.question(slo, **how))
    shown.print(recommendation_document(answer, has_widget=shown.out is not None))
    if not answer.has_option:
        raise typer.Exit(3)


@options.grouped
def explain(
    *,
    gpu_profile: Annotated[str, typer.Option(help="GPU profile, e.g. 1xA100-40GB.")],
    users_per_replica: Annotated[int, typer.Option(min=1, help="Concurrent users of a replica.")],
    asked: options.AskedOptions,
    printed: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How to print the result.")
    ] = "text",
) -> None:
    """Say what a predicted latency is made of: the terms of the mechanistic model."""
    from sextant.recommend.explain import explain_llm, explanation_document

    # The limits play no part: latencies are explained, not judged.
    limits = options.LimitOptions(nttft_ms="1", itl_ms="1")
    slo = options.slo_of_options(asked, options.LoadOptions(users=users_per_replica), limits)
    explanation = explain_llm(asked.question(slo), gpu_profile, users_per_replica)
    options.print_document(explanation_document(explanation), printed)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(options.StoreOptions):
    """What predictors are judged on."""

    slos: Path | None = None
    """Sheet of SLOs (columns as config/slos.tsv) to judge S, O and S/O on; without it the accuracy
    of latencies alone is judged."""
    random_slos: Annotated[int | None, typer.Option(min=1, max=10_000)] = None
    """Number of SLOs to draw (--seed) in place of a sheet, log-uniformly over what was measured."""
    predictor: list[str] | None = None
    """Predictor to judge; may be given again. Those of the store by default."""
    hold_out: Literal["llm", "gpu", "engine", "engine_version"] = "llm"
    """What a fold has not seen where the accuracy of latencies is judged."""


@options.grouped
def evaluate(
    *,
    given: EvaluateOptions,
    printed: Annotated[
        Literal["table", "json"], typer.Option("--format", help="How to print the result.")
    ] = "table",
) -> None:
    """Judge predictors by leave-one-LLM-out: accuracy, success rate S, overspend O and S/O."""
    import pandas as pd

    from sextant.ask.source import load_sources
    from sextant.judge.comparison import evaluate_predictors

    if given.slos and given.random_slos:
        field, fix = "--slos, --random-slos", "give one of them"
        raise InputError("a sheet and random SLOs are given", field=field, fix=fix)
    known, _ = load_sources(
        given.source or (), given.database, given.workload_id, given.scenario_id
    )
    for line in known.left_out:
        options.say(line, err=True)
    result = evaluate_predictors(
        known,
        given.slos or given.random_slos,
        given.predictor,
        given.seed,
        hold_out=given.hold_out,
        # Standard output is for the result alone.
        progress=partial(options.say, err=True),
    )
    if printed == "json":
        options.say(json.dumps(result.to_dict(), indent=2, allow_nan=False))
        return
    for rows in (result.predictors, result.scenarios):
        if rows:
            options.say(pd.DataFrame(rows).to_string(index=False) + "\n")


CharacterizationFolder = Annotated[
    Path, typer.Option(file_okay=False, help="Folder of the characterization, made or updated.")
]


def characterizations(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of characterizations to list, too.")
    ] = None,
    database: options.Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List what answers can rest on: what ships, what the store has, and folders."""
    from sextant.ask.source import known_sources
    from sextant.points.characterization import characterization_summary, characterization_text

    rows = [
        characterization_summary(known, place)
        for known, place in known_sources(folders or (), database)
    ]
    options.say(
        json.dumps(rows, indent=2) if as_json else "\n\n".join(map(characterization_text, rows))
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What was measured, as far as the files do not say it."""

    gpu_profile: str  #: What was measured, as <n>x<gpu_id>, e.g. 1xH100-80GB.
    configs: str | None = None
    """Folder of the LLMs' <llm_id>.json, relative to OUT; what ships else."""
    llm: str | None = None  #: The LLM's name on Hugging Face, if the files do not have it.
    engine: str | None = None  #: The engine that served, e.g. vllm.
    engine_version: str | None = None  #: The engine's version.


@options.grouped
def import_characterization(
    *,
    tool: Annotated[
        Literal["vllm-bench", "guidellm", "aiperf"],
        typer.Argument(help="The load tool that wrote the files."),
    ],
    files: Annotated[
        list[Path], typer.Option("--from", help="File of its results; may be repeated.")
    ],
    out: CharacterizationFolder,
    given: ImportOptions,
) -> None:
    """Make the folder of a characterization from the results of a load tool.

    A published data set is imported by the script in its folder, import.py in
    resources/characterizations/.
    """
    from sextant.points.load_tools import MeasuredSetup, import_load_tool

    served = MeasuredSetup(given.gpu_profile, given.llm, given.engine, given.engine_version)
    options.say(f"{out}: {import_load_tool(tool, files, out, served, given.configs)}")


def export_characterization(
    out: CharacterizationFolder,
    database: options.Database = None,
    source: Annotated[str | None, typer.Option(help="Characterization to write.")] = None,
    llms: Annotated[
        Path, typer.Option(help="Sheet of the LLMs, whose configurations are copied.")
    ] = Path("config/llms.tsv"),
    licence: Annotated[
        str | None, typer.Option(help="Licence of the data, for a new folder, e.g. CC-BY-4.0.")
    ] = None,
    attribution: Annotated[
        str | None, typer.Option(help="Who measured it, for a new folder.")
    ] = None,
) -> None:
    """Write measured points as the folder of a characterization, to share or to answer from."""
    from sextant.ask.question import PIPELINE_STORE
    from sextant.points.export import export_folder
    from sextant.points.measured import load_characterization

    known = load_characterization(database or PIPELINE_STORE, source)
    count = export_folder(known, out, llms=llms, licence=licence, attribution=attribution)
    options.say(f"{out}: {count} points")
