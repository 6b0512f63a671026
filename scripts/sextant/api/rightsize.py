"""What runs already, right-sized: observed beside predicted, and which replicas would do."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sextant.api.capacity import KeepOptions, PromiseOptions, SearchOptions, capacity_question
from sextant.api.groups import refuse
from sextant.api.keywords import with_keywords
from sextant.api.metrics import MetricsOptions
from sextant.api.question_options import CandidateOptions, CaseOptions, LimitOptions
from sextant.api.shown import ShownAnswer, shown_options
from sextant.api.trace_choice import TraceChoiceOptions
from sextant.api.traffic import SchedulerOptions, TrafficOptions
from sextant.base.errors import InputError

if TYPE_CHECKING:
    from sextant.rightsize.question import RightsizeQuestion
    from sextant.trace.observed import Observed

_DRAWN_AS_INGESTED = 0
"""Seed of a trace that is made of metrics: that of `ingest`, unless it is told another one."""
_LEAST_CACHED = 0.005
"""Share of the input that a prefix cache saves, below which it makes no difference."""


@dataclass(frozen=True, kw_only=True)
class ObservedOptions(TraceChoiceOptions):
    """What was observed, and what is deployed."""

    deployed: str
    """What serves now: REPLICASxGPU_PROFILE, e.g. 8x1xH100-80GB."""
    metrics: list[Path] | None = None
    """Metrics of the servers, as ingest --format prometheus reads them; may be given again."""
    trace: Path | None = None
    """In place of metrics: a normalised trace that `sextant ingest` made of metrics or of a log."""
    traffic: float = 1.0
    """Factor on the requests that were observed: what would do for so much traffic."""
    probe_out: Path | None = None
    """File to write: what was observed, as `recommend --probe` reads it."""


@with_keywords
def rightsize(
    *,
    observed: ObservedOptions,
    metrics: MetricsOptions,
    limits: LimitOptions,
    keep: KeepOptions,
    case: CaseOptions,
    candidates: CandidateOptions,
    server: SchedulerOptions,
) -> ShownAnswer:
    """Size what runs already: observed beside predicted, and which replicas would do.

    Returns
    -------
    ShownAnswer
        The options; a row of its frame per GPU profile, the cheapest option first.

    Raises
    ------
    InputError
        A keyword is wrong, or the measurements cannot answer.

    Examples
    --------
    >>> import sextant
    >>> samples = [f"resources/traces/vllm-{number}-sample.txt" for number in (1, 2)]
    >>> answer = sextant.rightsize(
    ...     deployed="1x1xH100-80GB", metrics=samples, interval="10min",
    ...     hf_config="resources/llms/meta-llama__Llama-3.1-8B-Instruct.json",
    ...     ttft_ms="p95:1000", tpot_ms=40, gpu_profiles="1xH100-80GB",
    ... )
    >>> answer.to_dict()["present"]["replicas"]
    1
    """
    from sextant.base.files import provenance
    from sextant.rightsize.document import rightsizing_document
    from sextant.rightsize.rightsize import rightsize_deployment

    with TemporaryDirectory(prefix="sextant-") as folder:
        trace, notes = _trace_of(observed, metrics, Path(folder))
        question = _question(
            replace(observed, trace=trace),
            PromiseOptions(limits=limits, keep=keep),
            case,
            candidates,
            server,
            observed.probe_out or Path(folder) / "probe.csv",
        )
        answer = rightsize_deployment(replace(question, notes=(*notes, *question.notes)))
    return shown_options(answer, lambda _: rightsizing_document(answer, provenance()))


def _trace_of(
    observed: ObservedOptions, metrics: MetricsOptions, folder: Path
) -> tuple[Path, list[str]]:
    """Return the trace, made of metrics where these are stated, and what was read of them."""
    files = observed.metrics or []
    sources = (observed.trace is not None, bool(files), metrics.prometheus is not None)
    if sum(sources) != 1:
        fix = "give exactly one of them"
        raise InputError(
            "one observation is needed", field="--metrics, --prometheus, --trace", fix=fix
        )
    if observed.trace is not None:
        metrics.refuse_without_metrics()
        return observed.trace, []
    refuse(observed, "metrics have no services", "service_in_trace")
    trace = folder / "metrics.parquet"
    report = metrics.ingest(files, trace, _DRAWN_AS_INGESTED)
    return trace, report["notes"][:1]


def _question(
    observed: ObservedOptions,
    promise: PromiseOptions,
    case: CaseOptions,
    candidates: CandidateOptions,
    server: SchedulerOptions,
    probe: Path,
) -> "RightsizeQuestion":
    """Return the question that the options are. Raises InputError for a wrong one."""
    from sextant.pages.words import HOUR_S
    from sextant.rightsize.question import Deployed, RightsizeQuestion
    from sextant.trace.observed import read_observed, window_rates
    from sextant.trace.trace_format import require_trace

    assert observed.trace is not None
    deployed = Deployed.parse(observed.deployed)
    require_trace(observed.trace)
    choice = observed.choice()
    seen = read_observed(observed.trace, choice)
    case = _with_cache(case, seen)
    traffic = TrafficOptions(
        trace=observed.trace,
        llm_in_trace=observed.llm_in_trace,
        service_in_trace=observed.service_in_trace,
        traffic=observed.traffic,
    )
    asked = capacity_question(traffic, promise, case, candidates, server, SearchOptions())
    window_s = asked.target.window_s or HOUR_S
    rates = window_rates(observed.trace, window_s, choice)
    return RightsizeQuestion(
        question=asked.question,
        traffic=asked.traffic,
        target=asked.target,
        settings=asked.settings,
        risk=asked.risk,
        n_draws=asked.n_draws,
        deployed=deployed,
        observed=seen,
        window_s=window_s,
        window_rps=observed.traffic * rates,
        probe=probe,
        notes=asked.notes,
    )


def _with_cache(case: CaseOptions, observed: "Observed") -> CaseOptions:
    """Return the case with the observed hits of the prefix cache, unless others are stated."""
    share = observed.cached_share or 0.0
    if case.serving.prefix_hit_rate or share < _LEAST_CACHED:
        return case
    return replace(case, serving=replace(case.serving, prefix_hit_rate=round(min(share, 0.99), 3)))
