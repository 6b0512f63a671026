"""The points of a characterization as frames: columns, latencies at a percentile, features.

`complete` types a table of points and fills in what follows from a row. `at_percentile` gives the
latencies that predictors learn from, `judged` the latencies that an SLO limits. Features of LLMs
and GPU profiles are computed from facts, or come published with a characterization.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.answer_times import answer_ms, requests_in_flight
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import ENDS, PERCENTILE_PREFIX, SLO, between, end_column, factor

if TYPE_CHECKING:
    from sextant.experiment.experiment import Experiment

IDENTIFIERS = ["llm_id", "gpu_profile_id"]
KEYS = [*IDENTIFIERS, "users"]  # what names a point of a closed loop
KV_PRECISION = "kv_precision"
_SOFTWARE = ["engine", "engine_version", "precision", KV_PRECISION]
_LAYOUT = ["tensor_parallel", "data_parallel", "expert_parallel"]
GRAPHS = "cuda_graphs"
SERVING = [*_SOFTWARE, *_LAYOUT, GRAPHS]
"""How an LLM was served. Layers are split over `tensor_parallel` devices, over all of the profile
where it is null. There are `data_parallel` copies of the attention layers. `cuda_graphs` says
whether an engine that has them used them; null: as by default."""
LENGTHS = ["input_tokens", "output_tokens"]  # mean lengths of a point's requests
WAIT = "wait_steps"
STEP_TOKENS = "max_num_batched_tokens"
SLOTS = "max_num_seqs"
MEMORY_SHARE = "gpu_memory_utilization"
SETTINGS = [WAIT, STEP_TOKENS, SLOTS, MEMORY_SHARE]
"""Settings of a server, null where it had its engine's: steps that a prompt waits, the most tokens
of a step, the most requests that decode at once, the share of a GPU's memory that it may use."""
LOAD = ["users", "request_rate_rps"]  # the rate of a closed loop is a result
TARGETS = ["nttft_ms", "itl_ms"]
BOUNDS = {name: [end_column(name, end) for end in ENDS] for name in TARGETS}  # of intervals
BASES = ["ttft_basis", "itl_basis"]
"""What the percentiles of `TARGETS` are estimated from, e.g. `median`; empty where they were
measured. `<name>_ms` is its value, of TTFT and ITL."""
FLOOR_MS = 1e-6
"""What a predicted latency of 0 ms or less becomes: LLM-Pilot's scoring takes 0 as a latency that
meets every limit; `has_latency` would take it for a point where nothing succeeded."""
STATISTICS = ("mean", "median", "p90", "p95", "p99")
LATENCIES = ("ttft_ms", "nttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
LATENCY_COLUMNS = [f"{statistic}_{name}" for statistic in STATISTICS for name in LATENCIES]
INTERVAL_COLUMNS = [
    end_column(f"{prefix}_{name}", end)
    for name in LATENCIES
    for prefix in PERCENTILE_PREFIX.values()
    for end in ENDS
]
"""Ends of the 90% intervals of percentiles: columns that a frame of points may have, too."""
_COUNTS = ["n_ok", "n_failed"]
_NAMES = ["measured_on", "run_id", "doubt"]
_RATES = ["throughput_tok_s", "energy_j_per_token"]
COLUMNS = [
    *(*IDENTIFIERS, *SERVING, *LENGTHS, *LOAD, *SETTINGS),
    *(*LATENCY_COLUMNS, *_RATES, *_COUNTS, *_NAMES),
]
"""Every frame of points has these, null where its source lacks them; one row per measurement."""
_TYPES = {
    **dict.fromkeys(COLUMNS, "float64"),
    **dict.fromkeys((*_LAYOUT, "users", *_COUNTS), "Int64"),
    GRAPHS: "boolean",
    **dict.fromkeys((*IDENTIFIERS, *_SOFTWARE, *_NAMES), "str"),
}

Pair = tuple[str, str]  # (`llm_id`, `gpu_profile_id`)


def graphs_of(arguments: Container[str]) -> bool | None:
    """Return False where a server's arguments leave CUDA graphs out, else None: its default."""
    return False if "--enforce-eager" in arguments else None


def complete(points: pd.DataFrame, defaults: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Return points with all of `COLUMNS`, typed; column `derived` names the computed latencies.

    A missing value comes from `defaults`, or is computed from its row: nTTFT = TTFT / input tokens
    (a ratio of means unless lengths are equal); ITL = TPOT, else mean ITL = (E2E − TTFT) / (output
    tokens − 1).
    """
    others = [name for name in points if name not in _TYPES]
    frame = points.reindex(columns=[*COLUMNS, *others])
    for name, value in (defaults or {}).items():
        frame[name] = frame[name].astype(object).where(frame[name].notna(), value)
    frame = frame.astype(_TYPES)
    names_of = {
        name: [f"{statistic}_{name}_ms" for statistic in STATISTICS] for name in ("nttft", "itl")
    }
    is_stated = {name: frame[names].notna().any(axis=1) for name, names in names_of.items()}

    for statistic in STATISTICS:
        ratio = frame[f"{statistic}_ttft_ms"] / frame["input_tokens"]
        frame[f"{statistic}_nttft_ms"] = frame[f"{statistic}_nttft_ms"].fillna(ratio)
    steps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    gap_ms = (frame["mean_e2e_ms"] - frame["mean_ttft_ms"]) / steps
    has_no_gap = frame[["mean_itl_ms", "mean_tpot_ms"]].isna().all(axis=1)
    frame["mean_itl_ms"] = frame["mean_itl_ms"].mask(has_no_gap & (gap_ms > 0), gap_ms)
    for statistic in ("mean", "median"):
        column = f"{statistic}_itl_ms"
        frame[column] = frame[column].fillna(frame[f"{statistic}_tpot_ms"])

    is_computed = {
        name: ~stated & frame[names_of[name]].notna().any(axis=1)
        for name, stated in is_stated.items()
    }
    derived = np.char.add(*(np.where(rows, f"{name} ", "") for name, rows in is_computed.items()))
    before = frame["derived"].astype("str") if "derived" in frame else derived
    return frame.assign(derived=pd.Series(before, frame.index).where(before != "", derived))


def points_of_store(points: pd.DataFrame) -> pd.DataFrame:
    """Return rows of the store's table `point` as a frame of points (`COLUMNS`)."""
    names = {
        "mean_input_tokens": "input_tokens",
        "mean_output_tokens": "output_tokens",
        "energy_per_output_token_j": "energy_j_per_token",
    }
    return complete(points.rename(columns=names))


def at_percentile(
    points: pd.DataFrame,
    percentiles: tuple[int, int],
    first_token: str = "nttft",
    more: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the points at percentiles, sorted by LLM, GPU profile and users.

    Columns: `source`, `IDENTIFIERS, LOAD, SERVING, LENGTHS, SETTINGS`, `nttft_ms, itl_ms` with
    `BOUNDS` (NaN: unknown), rates and `more`. A percentile that a point lacks is estimated
    (`estimated`). `users` of a point with a rate are the requests in flight, by Little's law. With
    `first_token` `ttft`, `nttft_ms` is TTFT over mean input tokens, which spreads less than nTTFT.
    """
    # A copy is one block of memory, to which columns are added faster.
    frame = points.reindex(columns=list(dict.fromkeys([*points, *COLUMNS]))).copy()
    for target, percentile in zip(TARGETS, percentiles, strict=True):
        frame[[target, *BOUNDS[target]]] = _latency(points, target, percentile)
    if first_token == "ttft":
        ttft_ms = _latency(points, "ttft_ms", percentiles[0])
        per_token = ttft_ms.div(frame["input_tokens"].astype(float), axis=0)
        has_ttft = per_token.iloc[:, 0].notna()
        frame.loc[has_ttft, ["nttft_ms", *BOUNDS["nttft_ms"]]] = per_token[has_ttft].to_numpy()

    # Requests in flight = request rate × E2E, at least 1. E2E is measured, else TTFT + (output
    # tokens − 1) × ITL; means are taken, or medians where a point has no means.
    e2e_ms = pd.Series(np.nan, frame.index)
    outputs = frame["output_tokens"].astype(float)
    for statistic in ("mean", "median"):
        values = {name: frame[f"{statistic}_{name}"].astype(float) for name in LATENCIES}
        computed_ms = answer_ms(values["ttft_ms"].fillna(0), values["itl_ms"], outputs)
        computed = pd.Series(computed_ms, frame.index).where(computed_ms > 0)
        e2e_ms = e2e_ms.fillna(values["e2e_ms"]).fillna(computed)
    rates_rps = frame["request_rate_rps"].astype(float)
    in_flight = requests_in_flight(rates_rps, e2e_ms).round().clip(lower=1)
    in_flight = in_flight.where(np.isfinite(in_flight)).astype("Int64")
    frame["users"] = frame["users"].astype("Int64").fillna(in_flight)

    bounds = [name for ends in BOUNDS.values() for name in ends]
    numbers = [*LENGTHS, *SETTINGS, *TARGETS, *bounds, *_RATES]
    source = ["source"] if "source" in frame else []
    chosen = frame[[*source, *IDENTIFIERS, *LOAD, *SERVING, *numbers, *more]]
    ordered = chosen.sort_values([*IDENTIFIERS, "users"], ignore_index=True, kind="stable")
    whole = "int64" if ordered["users"].notna().all() else "Int64"
    types = dict.fromkeys([*numbers, "request_rate_rps"], "float64")
    return ordered.astype({**types, "users": whole})


def is_usable(latencies: pd.DataFrame) -> pd.Series:
    """Return which points (`at_percentile`) predictors can learn from, and can be judged on.

    These have nTTFT or ITL, and users, who are stated or follow from a request rate.
    """
    return (latencies[TARGETS] > 0).any(axis=1) & latencies["users"].notna()


def served_as_most(points: pd.DataFrame) -> dict[str, Any]:
    """Return how most points were served, by `SERVING`; None where no point says."""
    return {name: points[name].mode().get(0) for name in SERVING}


FORMULAS = {
    "ttft": "nTTFT × input tokens",
    "nttft": "TTFT / input tokens",
    "itl": "TPOT, or (E2E − TTFT) / (output tokens − 1) at points without it",
    "tpot": "ITL, or (E2E − TTFT) / (output tokens − 1) at points without it",
    "e2e": "TTFT + (output tokens − 1) × TPOT, or ITL at points without it",
}
"""What stands in for a latency that a point lacks."""


def judged(points: pd.DataFrame, slo: SLO) -> pd.DataFrame:
    """Return `at_percentile` for an SLO, with the columns that decide whether it is met.

    Each limited latency has `own_<metric>_ms` with its interval (a latency of 0 is none) and
    `<metric>_is_derived` (computed by `FORMULAS`). `served_rps` is the rate as measured,
    `failed_share` the failed share of all requests (NaN: unknown). `BASES` say what the percentiles
    of `TARGETS` are estimated from where a point lacks them.
    """
    points = points.reindex(columns=list(dict.fromkeys([*points, *COLUMNS])))
    columns: dict[str, pd.Series] = {}

    derived = points.get("derived", pd.Series("", points.index)).fillna("")
    for metric, (_, percentile) in slo.limits.items():
        latency = _latency(points, f"{metric}_ms", percentile)
        is_derived = latency[""].isna() | derived.str.contains(rf"\b{metric}\b")
        latency = latency.where(latency[""].notna(), _derived(points, metric, percentile))
        latency = latency.where((latency[""] > 0) & np.isfinite(latency[""]))
        columns |= {_limited_column(metric, end): latency[end] for end in latency}
        columns[f"{metric}_is_derived"] = is_derived & latency[""].notna()

    computed_rps = points["throughput_tok_s"] / points["output_tokens"]
    columns["served_rps"] = points["request_rate_rps"].fillna(computed_rps).astype(float)

    columns |= _bases(points, slo)
    columns["failed_share"] = failed_share(points)

    # All at once: a frame that grows by so many columns one by one is slow.
    others = points.drop(columns=list(columns), errors="ignore")
    judged_points = pd.concat([others, pd.DataFrame(columns)], axis=1)
    more = [*columns, *_COUNTS]
    return at_percentile(judged_points, slo.percentiles, slo.first_token, more)


def failed_share(points: pd.DataFrame) -> pd.Series:
    """Return the share of each point's requests that failed; NaN where it is not known."""
    n_ok, n_failed = (points[name].astype(float) for name in _COUNTS)
    return n_failed / (n_ok + n_failed).where(lambda n_requests: n_requests > 0)


def _bases(points: pd.DataFrame, slo: SLO) -> dict[str, pd.Series]:
    """Return `BASES`: the statistic that a percentile is estimated from, and its value in ms.

    TTFT is that of the point's own requests. A mean counts as a median. Points that state what
    their percentiles are estimated from keep it.
    """
    first_token = "ttft_ms" if slo.first_token == "ttft" else TARGETS[0]
    targets = (first_token, TARGETS[1])
    bases: dict[str, pd.Series] = {}
    for name, target, percentile in zip(BASES, targets, slo.percentiles, strict=True):
        stated = points.reindex(columns=[name, f"{name}_ms"])
        statistics = stated[name].astype(object).fillna("")
        values_ms = stated[f"{name}_ms"].astype(float)
        for columns, rows in _estimates(points, target, percentile):
            if percentile in columns:
                continue
            column = next(iter(columns.values()))
            statistics[rows.index] = column.removesuffix(f"_{target}")
            per_token = rows["input_tokens"].astype(float) if target == TARGETS[0] else 1.0
            values_ms[rows.index] = rows[column].astype(float) * per_token
        bases |= {name: statistics, f"{name}_ms": values_ms}
    return bases


def has_percentiles(points: pd.DataFrame, percentiles: tuple[int, int]) -> np.ndarray:
    """Return whether points have these percentiles of TTFT and ITL themselves, (points, 2).

    A mean does not count as a median here.
    """
    first, later = (PERCENTILE_PREFIX[percentile] for percentile in percentiles)
    sides = ([f"{first}_ttft_ms", f"{first}_nttft_ms"], [f"{later}_itl_ms", f"{later}_tpot_ms"])
    has = [points.reindex(columns=columns).notna().any(axis=1) for columns in sides]
    return np.stack(has, axis=1)


def _limited_column(metric: str, end: str) -> str:
    """Return the column of a limited latency, or of an end of its interval."""
    return f"own_{metric}_{end}_ms" if end else f"own_{metric}_ms"


def _derived(points: pd.DataFrame, metric: str, percentile: int) -> pd.DataFrame:
    """Return a latency and its interval by `FORMULAS`."""

    def at(name: str) -> pd.DataFrame:
        return _latency(points, f"{name}_ms", percentile)

    if metric in ("itl", "tpot"):
        return at("tpot" if metric == "itl" else "itl")
    inputs, outputs = (points[name].astype(float) for name in LENGTHS)
    if metric == "nttft":
        return at("ttft").div(inputs, axis=0)
    ttft = at("nttft").mul(inputs, axis=0)
    if metric == "ttft":
        return ttft
    first = at("ttft")
    first = first.where(first.notna(), ttft)
    gap = at("tpot")
    gap = gap.where(gap.notna(), at("itl"))
    e2e_ms = answer_ms(first.to_numpy(), gap.to_numpy(), outputs.to_numpy()[:, None])
    return pd.DataFrame(e2e_ms, points.index, first.columns)


def limited(latencies: pd.DataFrame, slo: SLO, end: str = "") -> dict[str, np.ndarray]:
    """Return the limited latencies in ms, by metric, or an end of their intervals.

    They are measured, or follow from predicted nTTFT and ITL; NaN: unknown.
    """
    columns = [end_column(name, end) if end else name for name in TARGETS]
    targets_ms = latencies[columns].to_numpy(float)
    targets_ms = np.where((targets_ms > 0) & np.isfinite(targets_ms), targets_ms, np.nan)
    by_metric = slo.latencies(targets_ms, latencies.reindex(columns=LENGTHS).to_numpy(float))
    for metric, values in by_metric.items():
        column = _limited_column(metric, end)
        if column in latencies:
            flag = f"{metric}_is_derived"
            is_judged = latencies[flag if flag in latencies else column].notna()
            by_metric[metric] = np.where(is_judged, latencies[column].to_numpy(float), values)
    return by_metric


def is_refused(latencies: pd.DataFrame, slo: SLO) -> np.ndarray:
    """Return at which points more requests failed than the SLO allows; unknown counts as none."""
    if "failed_share" not in latencies:
        return np.zeros(len(latencies), bool)
    refused: np.ndarray = latencies["failed_share"].to_numpy(float) > slo.allowed_failures
    return refused


def replica_load(latencies: pd.DataFrame, slo: SLO) -> np.ndarray:
    """Return a replica's load at each point in the SLO's unit: measured, or Little's law."""
    users = latencies["users"].to_numpy()
    lengths = latencies.reindex(columns=LENGTHS).to_numpy(float)
    carried = np.asarray(slo.carried(users, latencies[TARGETS].to_numpy(float), lengths), float)
    if slo.users is not None or "served_rps" not in latencies:
        return carried
    served = latencies["served_rps"].to_numpy(float)
    return np.where(served > 0, served, carried)


def _latency(points: pd.DataFrame, target: str, percentile: int) -> pd.DataFrame:
    """Return a latency at a percentile and the ends of its interval, estimated alike."""
    latency = pd.DataFrame(np.nan, points.index, ["", *ENDS])
    for columns, rows in _estimates(points, target, percentile):
        (first, *_) = columns
        for end in latency:
            names = [end_column(name, end) if end else name for name in columns.values()]
            values = [rows[name].astype(float) for name in names if name in rows]
            if len(values) < len(names):
                continue  # a source without intervals
            if len(columns) == 1:
                latency.loc[rows.index, end] = values[0] * factor(target, first, percentile)
            else:
                weight = between(first, max(columns), percentile)
                latency.loc[rows.index, end] = values[0] ** (1 - weight) * values[1] ** weight
    return latency


def _estimates(
    points: pd.DataFrame, target: str, percentile: int
) -> Iterator[tuple[dict[int, str], pd.DataFrame]]:
    """Yield the columns that give a latency, by percentile, with the rows that have these columns.

    That is the column of the percentile, else the two around it, else the nearest one.
    A mean replaces the median if the median is wanted, or if a row has no percentile at all.
    """
    names = {number: f"{prefix}_{target}" for number, prefix in PERCENTILE_PREFIX.items()}
    has_value = points.reindex(columns=[*names.values(), f"mean_{target}"]).notna().to_numpy()
    for pattern in np.unique(has_value, axis=0):
        columns = {
            number: name for (number, name), has in zip(names.items(), pattern, strict=False) if has
        }
        if pattern[-1] and 50 not in columns and (percentile == 50 or not columns):
            columns = {50: f"mean_{target}", **columns}
        below = [number for number in columns if number < percentile][-1:]
        above = [number for number in columns if number > percentile][:1]
        chosen = [percentile] if percentile in columns else [*below, *above]
        if chosen:
            rows = points[(has_value == pattern).all(axis=1)]
            yield {number: columns[number] for number in chosen}, rows


def estimated(points: pd.DataFrame, percentiles: Mapping[str, int]) -> dict[str, list[str]]:
    """Return, by latency, the columns that estimate it where a point lacks its percentile."""
    sources: dict[str, list[str]] = {}
    for target, percentile in percentiles.items():
        used = [
            name
            for columns, _ in _estimates(points, target, percentile)
            for name in columns.values()
        ]
        if set(used) - {f"{PERCENTILE_PREFIX[percentile]}_{target}"}:
            sources[target] = [*dict.fromkeys(used)]
    return sources


def has_latency(latencies: pd.DataFrame) -> pd.Series:
    """Return which rows have both `nttft_ms` and `itl_ms`, finite and above 0."""
    values = latencies[TARGETS]
    return ((values > 0) & np.isfinite(values)).all(axis=1)


_LLM_FACTS = [
    *("llm_type", "dtype", "n_parameters", "n_layers", "hidden_size", "ffn_size", "n_heads"),
    *("n_kv_heads", "head_dim", "vocab_size", "context_tokens", "weight_bytes"),
    "kv_bytes_per_token",
]
ENCODER_DECODER = "encoder-decoder"
PAGED = "paged"
PADDED = "padded"
"""How an engine executes an LLM: padded to the longest request, with or without an encoder, or
with attention over a paged (unpadded) KV cache."""


class Features(NamedTuple):
    """What is known of each LLM and each GPU profile before anything is measured."""

    llms: pd.DataFrame  # one row per LLM, indexed by `llm_id`
    profiles: pd.DataFrame  # one row per GPU profile, indexed by `gpu_profile_id`


class FactTables(NamedTuple):
    """What is known before anything is measured: all that a predictor sees of a new LLM."""

    llms: Mapping[str, LLM]  # by `llm_id`
    profiles: Mapping[str, GPUProfile]  # by `gpu_profile_id`
    published: Features | None = None
    """Features that came with a characterization; None: they are computed from the facts."""

    @property
    def features(self) -> Features:
        """What predictors without physics learn from: published features if all have some."""
        computed = computed_features(self.llms, self.profiles)
        pairs = zip(computed, self.published or (), strict=False)
        is_complete = all(facts.index.isin(published.index).all() for facts, published in pairs)
        return self.published if self.published and is_complete else computed


def computed_features(llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]) -> Features:
    """Return features from facts, `total_*` over a profile's devices, without the price."""
    llm_rows = [{name: getattr(llm, name) for name in _LLM_FACTS} for llm in llms.values()]
    profile_rows = []
    for profile in profiles.values():
        gpu = profile.gpu
        n_gpus = profile.n_gpus
        names = ("memory_gib", "memory_bandwidth_gb_s", "dense_16bit_tflops")
        rates = {name: getattr(gpu, name) for name in names}
        device = {"gpu_id": gpu.gpu_id, "architecture": gpu.architecture, "n_gpus": n_gpus}
        total = {f"total_{name}": n_gpus * rate for name, rate in rates.items()}
        profile_rows.append({**device, **rates, **total})
    return Features(
        pd.DataFrame(llm_rows, index=pd.Index(llms, name="llm_id"), columns=_LLM_FACTS),
        pd.DataFrame(profile_rows, index=pd.Index(profiles, name="gpu_profile_id")),
    )


def features_of_sheets(
    llm_rows: Sequence[Mapping[str, Any]],
    gpu_rows: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, GPUProfile],
) -> Features:
    """Return the published features: of LLMs, and of each profile's devices."""
    gpus = _feature_table(gpu_rows, "gpu_id")
    table = gpus.loc[[profile.gpu.gpu_id for profile in profiles.values()]]
    n_gpus = pd.Series({name: profile.n_gpus for name, profile in profiles.items()})
    table = table.set_axis(n_gpus.index.rename("gpu_profile_id")).assign(n_gpus=n_gpus)
    total = table["n_gpus"] * table["memory_capacity_gb"]
    llms = _feature_table(llm_rows, "llm_id")
    return Features(llms, table.assign(memory_capacity_gb_total=total))


def _feature_table(rows: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    rows = [{name: value for name, value in row.items() if name != "note"} for row in rows]
    # A row lacks the columns it has no value in: the fullest rows have the columns' order.
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    return pd.DataFrame(rows, columns=list(columns)).set_index(key)


def published_features(experiment: "Experiment") -> Features | None:
    """Return the features that came with an experiment's characterization, if any did."""
    rows = experiment.features
    return features_of_sheets(rows["llms"], rows["gpus"], experiment.profiles) if rows else None


def feature_rows(source: str, features: Features | None) -> list[dict[str, str]]:
    """Return the rows of table `feature`."""
    return [
        {"source": source, "kind": kind, "id": name, "facts": facts.to_json(double_precision=15)}
        for kind, table in zip(("llm", "gpu_profile"), features or (), strict=bool(features))
        for name, facts in table.astype(object).iterrows()
    ]


def execution_classes(llms: Mapping[str, LLM], published: Features | None) -> dict[str, str]:
    """Return how each LLM is executed. Published `is_flash_attention` says which decoders ran
    padded, with others of their type; the rest ran paged."""
    flash: dict[str, float] = {}
    if published is not None and "is_flash_attention" in published.llms:
        flash = published.llms["is_flash_attention"].astype(float).to_dict()
    by_type = {llms[llm_id].llm_type: value for llm_id, value in flash.items() if llm_id in llms}
    padded = {name for name, llm in llms.items() if flash.get(name, by_type.get(llm.llm_type)) == 0}
    return {
        name: ENCODER_DECODER if llm.is_encoder_decoder else PADDED if name in padded else PAGED
        for name, llm in llms.items()
    }
