"""What the page of the study `burst` shows of a cell."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section
from sextant.pages.wording import number, percent
from sextant.studies.burst_measures import MAX_SLICES, Phase, averages, by_setting, over_time
from sextant.studies.labels import table_of

_NAMES = {"warm-up": "Warm-up", "conversation": "Mirrored conversation", "api": "Mirrored API"}
_NAMES |= {name: f"Sweep of {name}" for name in ("alpha", "beta", "theta")}
_SYMBOLS = {"alpha": "Shape alpha", "beta_s": "Scale beta (s)", "theta": "Zipf exponent theta"}
_METRICS = (
    ("Token latency (ms)", ("mean_token_latency_ms", "p90_token_latency_ms")),
    ("Output tokens/s", ("throughput_tok_s",)),
    ("Failed (fraction)", ("failure_rate",)),
)
_KV_USAGE = "KV cache used"
_TIME, _BLOCK = Axis("Seconds since the phase began", low=0), Axis("Block of requests")


def phases_section(place: str, measured: Mapping[str, Phase]) -> Section:
    """Average values of all phases."""
    rows = [{"phase": _NAMES[name], **averages(phase)} for name, phase in measured.items()]
    text = (
        "Token latency is the time from when a request was due to its last token, divided by its "
        "output tokens; TTFT counts from when it was due as well, and the mean ITL is of all gaps. "
        "Failed requests, those that took longer than the time limit included, are in no latency. "
        "Every phase begins on a server that has served all requests of the one before."
    )
    table = table_of(
        pd.DataFrame(rows),
        "phase n_requests n_failed failure_rate mean_token_latency_ms p90_token_latency_ms "
        "mean_ttft_ms mean_itl_ms throughput_tok_s mean_kv_usage max_kv_usage",
    )
    return Section.of_text(f"Phases: {place}", text, table=table)


def warmup_section(place: str, phase: Phase) -> Section:
    """How the rate was found."""
    facts, search = phase.facts, phase.facts["search"]
    mean = facts["mean_kv_cache_usage"]
    verdict = "within" if facts["is_within_limits"] else "OUTSIDE of"
    usage = "not known" if mean is None else percent(mean)
    setting = facts["settings"][0]
    text = (
        f"One request of mean lengths, served alone, took {number(search['single_request_s'])} s "
        f"and {percent(search['single_request_kv_usage'])} of the KV cache. From there, "
        f"{len(search['trials'])} trials of arrivals at alpha {setting['alpha']:g} led to "
        f"{number(search['rate_rps'])} requests/s, a scale beta of {number(setting['beta_s'])} s. "
        f"In the warm-up proper the mean use was {usage}: {verdict} the 20 to 50 % that the "
        "paper asks for."
    )
    trials = pd.DataFrame(list(search["trials"]))
    table = table_of(trials, "rate_rps kv_usage failed_fraction")
    return Section.of_text(f"Warm-up: {place}", text, table=table)


def mirrored_section(place: str, phases: Sequence[Phase]) -> Section:
    """Load and what came of it over time, after their Fig. 16."""
    series = [over_time(phase) for phase in phases]
    panels = []
    for phase in phases:
        settings = by_setting(phase)
        # A rate holds from its setting's start to its end.
        times_s = settings[["start_s", "end_s"]].to_numpy().ravel()
        rate = Curve("mean", times_s, np.repeat(settings["rate_rps"].to_numpy(), 2))
        panels.append(Panel(_NAMES[phase.name], _TIME, Axis("Requests/s due", low=0), [rate]))
    for label, columns in _METRICS:
        for rows in series:
            middle = (rows["start_s"] + rows["end_s"]) / 2
            curves = [Curve(_statistic(name), middle, rows[name]) for name in columns]
            panels.append(Panel("", _TIME, _axis(label), curves))
    for phase in phases:
        usage = Curve("mean", phase.kv_usage["time_s"], phase.kv_usage["usage"])
        panels.append(Panel("", _TIME, _axis(_KV_USAGE), [usage]))
    figure = panels_figure(
        panels, f"Mirrored loads over time, {place}", n_columns=len(phases), height_in=1.7
    )
    return Section.of_text(f"Mirrored loads: {place}", _mirrored_text(phases), figure)


def _mirrored_text(phases: Sequence[Phase]) -> str:
    parts = []
    for phase in phases:
        facts = phase.facts
        parts.append(
            f"{_NAMES[phase.name]}: {facts['n_windows']} windows, their time scaled by "
            f"{number(facts['time_factor'])}, at a mean rate {facts['rate_factor']:g} times the "
            f"warm-up's"
        )
    return (
        f"{'; '.join(parts)}. The figure has at most {MAX_SLICES} slices of equal time, fewer "
        "where requests are few; requests count when they were due, tokens when they came; the "
        "use of the KV cache is as the server told it once a second.\n\n"
        "BurstGPT's windows are not published as numbers. Unless the plan names other windows, "
        "those of Azure's conversation service (2023) replace its conversations, and those "
        "of Mooncake's trace, taken as Poisson, at twice the warm-up's rate, for its API: the "
        "paper says that the API's beta stays low, not how low."
    )


def sweeps_section(place: str, phases: Sequence[Phase]) -> Section:
    """Latency, throughput and failures per block of requests, after their Fig. 17."""
    blocks = {phase.name: by_setting(phase) for phase in phases}
    panels = []
    for phase in phases:
        column = "beta_s" if phase.name == "beta" else phase.name
        curve = Curve("mean", _numbers(blocks[phase.name]), blocks[phase.name][column])
        panels.append(Panel(_NAMES[phase.name], _BLOCK, Axis(_SYMBOLS[column], low=0), [curve]))
    for label, columns in (*_METRICS, (_KV_USAGE, ("mean_kv_usage",))):
        for rows in blocks.values():
            curves = [Curve(_statistic(name), _numbers(rows), rows[name]) for name in columns]
            panels.append(Panel("", _BLOCK, _axis(label), curves))
    figure = panels_figure(panels, f"Sweeps, {place}", n_columns=len(phases), height_in=1.7)
    table = table_of(
        pd.concat([rows.assign(phase=name, block=_numbers(rows)) for name, rows in blocks.items()]),
        "phase block alpha beta_s theta n_requests failure_rate mean_token_latency_ms "
        "p90_token_latency_ms mean_ttft_ms throughput_tok_s mean_kv_usage",
        phase="Sweep",
    )
    n_per_change = " or ".join(sorted({str(phase.facts["n_per_change"]) for phase in phases}))
    text = (
        f"A change after each {n_per_change} requests: alpha falls to a quarter and rises "
        "again as a quadratic while beta stays, so that the rate rises too; beta falls linearly to "
        "a quarter; theta rises by 0.8, which makes inputs shorter. Values are of the requests due "
        "in a block; those of a block that was overrun wait in the next."
    )
    return Section.of_text(f"Sweeps: {place}", text, figure, table)


def _statistic(column: str) -> str:
    return "p90" if column.startswith("p90") else "mean"


def _numbers(rows: pd.DataFrame) -> list[int]:
    return [*range(1, len(rows) + 1)]


def _axis(label: str) -> Axis:
    """Return a metric's axis; a share that is 0 throughout is still to be seen."""
    if label in ("Failed (fraction)", _KV_USAGE):
        return Axis(label, ticks=(0, 0.5, 1), names=("0", "0.5", "1"), low=-0.06, high=1.06)
    return Axis(label, low=0)
