"""What a larger KV cache brings to which use case, served latency-critical or best-effort.

Papaioannou and Doudali: The Importance of Workload Choice in Evaluating LLM Inference Systems
(poster). Latency-critical requests come at a rate (open loop), best-effort ones all at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sextant.experiment.scenarios import Batch, OpenLoop
from sextant.facts.gpu import GIB
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Panel
from sextant.pages.words import interval, joined, number, plural
from sextant.points.metrics import N_BLOCKS
from sextant.studies import study
from sextant.studies.study import SETTING, Analysis, Finding, StudyData, part, place_words, table_of

CRITICAL = "latency-critical"
EFFORT = "best-effort"
N_RESAMPLES = 2000
_COMPARED = [*SETTING, "level"]
_LENGTHS = ["requested_input_tokens", "requested_output_tokens"]
_COLUMNS = ["user", "scheduled_s", "sent_s", "last_token_s", "token_offsets_ms"]
_JUDGED_BY = {CRITICAL: "latency", EFFORT: "throughput"}
_FEW_USE_CASES = "Fewer than two use cases were served."


def analyse(data: StudyData) -> Analysis:
    """Compare cache sizes within each use case and scenario, and use cases with each other."""
    rows = data.points_of(OpenLoop.kind, Batch.kind).copy()
    is_effort = (rows["scenario_kind"] == Batch.kind) | np.isinf(rows["level"])
    rows["inference"] = np.where(is_effort, EFFORT, CRITICAL)
    kv_bytes = {name: float(llm.kv_bytes_per_token) for name, llm in data.llms.items()}
    bytes_per_token = rows["llm_id"].map(kv_bytes).astype(float)
    rows["kv_gib"] = rows["batch_weight_tokens"] * bytes_per_token / GIB
    rows["token_latency_ms"] = rows["mean_e2e_ms"] / rows["mean_output_tokens"]
    points = rows.sort_values([*_COMPARED, "batch_weight_tokens"]).reset_index(drop=True)

    effects = cache_effects(points, data)
    use_cases = UseCases(points, effects, takeaways(points, effects))
    text = (
        "The cache counts where the 95 % interval of its effect excludes 1, at the heaviest load "
        "measured. The poster gives no numbers to compare with."
    )
    of_points = (
        "Latency counts from when a request was due: at its arrival if latency-critical, at the "
        "start if best-effort. Per output token is the mean latency over the mean output."
    )
    level_words = points["level"].map(study.level_words).astype(str)
    arriving = (level_words + " requests/s").where(level_words != "inf", "all at once")
    is_batch = points["scenario_kind"] == Batch.kind
    table = table_of(
        points.assign(load=(level_words + " in flight").where(is_batch, arriving)),
        "workload_id llm_id gpu_profile_id inference load batch_weight_tokens kv_gib n_ok n_failed "
        "mean_input_tokens mean_output_tokens throughput_tok_s mean_ttft_ms mean_e2e_ms "
        "token_latency_ms",
        workload_id="Use case",
        batch_weight_tokens="KV cache (tokens)",
    )
    sections = [
        part(
            "Takeaways",
            text,
            table=study.findings_table(use_cases.findings, "Takeaway of the poster"),
        ),
        part("Use cases", of_points, table=table),
        use_cases.effect_section,
        use_cases.cache_section,
    ]
    numbers = {
        "points": points,
        "effects": effects,
        "takeaways": [finding._asdict() for finding in use_cases.findings],
        "n_resamples": N_RESAMPLES,
        "n_blocks": N_BLOCKS,
    }

    return Analysis(use_cases.summary, numbers, sections)


def cache_effects(points: pd.DataFrame, data: StudyData) -> pd.DataFrame:
    """Return the effect of the largest cache against the smallest, per use case and level.

    Columns: `{throughput,latency}_ratio` with 95% bootstrap intervals, `verdict` (by throughput if
    best-effort, else by mean latency), and `is_heaviest`: the largest level of its scenario.
    """
    rows: list[dict[str, Any]] = []
    for key, group in points[points["n_ok"] > 0].groupby(_COMPARED):
        small = group.iloc[0]
        large = group.iloc[-1]
        if small["batch_weight_tokens"] == large["batch_weight_tokens"]:
            continue
        row: dict[str, Any] = dict(zip(_COMPARED, key, strict=True))
        row["inference"] = small["inference"]
        for name, point in (("small", small), ("large", large)):
            row[f"{name}_tokens"] = point["batch_weight_tokens"]
            row[f"{name}_kv_gib"] = point["kv_gib"]
        row |= _ratios(small, large, data, np.random.default_rng([data.seed, len(rows)]))
        name = _JUDGED_BY[row["inference"]]
        low = row[f"{name}_ratio_low"]
        high = row[f"{name}_ratio_high"]
        row["verdict"] = "no clear change"
        if low > 1 or high < 1:
            row["verdict"] = "better" if (low > 1) == (name == "throughput") else "worse"
        rows.append(row)

    effects = pd.DataFrame(rows)
    if rows:
        effects["is_heaviest"] = effects["level"] == effects.groupby(SETTING)["level"].transform(
            "max"
        )

    return effects


def _ratios(
    small: pd.Series, large: pd.Series, data: StudyData, rng: np.random.Generator
) -> dict[str, float]:
    tokens = []
    latencies = []
    lengths = []
    for point in (large, small):
        run = data.requests_of(point, [*_COLUMNS, *_LENGTHS]).sort_values(["scheduled_s", "user"])
        # Output tokens in equal parts of the level's time. Offsets are 32-bit: the last token may
        # lie a rounding error beyond the end.
        offsets = run["token_offsets_ms"].explode().dropna().astype(float)
        times_s = run["sent_s"].loc[offsets.index] + offsets / 1e3
        ends = (run["sent_s"].min(), run["last_token_s"].max())
        counts = np.histogram(np.clip(times_s, *ends), N_BLOCKS, ends)[0]
        tokens.append(counts / point["duration_s"])
        latencies.append(study.mean_blocks(run["last_token_s"] - run["scheduled_s"]))
        lengths.append(run[_LENGTHS].to_numpy())

    # The same seed gives both runs the same requests: a slow one is slow in both.
    is_paired = np.array_equal(lengths[0], lengths[1])
    ratios = {}
    for name, column, (blocks, base), paired in (
        ("throughput", "throughput_tok_s", tokens, False),
        ("latency", "mean_e2e_ms", latencies, is_paired),
    ):
        low, high = bootstrap_ratio(blocks, base, rng, is_paired=paired)
        ratios[f"{name}_ratio"] = large[column] / small[column]
        ratios |= {f"{name}_ratio_low": low, f"{name}_ratio_high": high}

    return ratios


def bootstrap_ratio(
    blocks: np.ndarray, base_blocks: np.ndarray, rng: np.random.Generator, *, is_paired: bool
) -> tuple[float, float]:
    """Return the 95% interval of a ratio of means by drawing blocks; NaN below 2 blocks."""
    n = len(blocks)
    n_base = len(base_blocks)
    if min(n, n_base) < 2:
        return np.nan, np.nan

    drawn = rng.integers(n, size=(N_RESAMPLES, n))
    drawn_base = drawn if is_paired else rng.integers(n_base, size=(N_RESAMPLES, n_base))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = blocks[drawn].mean(axis=1) / base_blocks[drawn_base].mean(axis=1)
        low, high = np.nanquantile(ratios, [0.025, 0.975])

    return float(low), float(high)


def takeaways(points: pd.DataFrame, effects: pd.DataFrame) -> list[Finding]:
    """Return each takeaway, and whether it holds at the heaviest levels."""
    served = points[points["n_ok"] > 0]
    lengths = served.groupby("workload_id")[["mean_input_tokens", "mean_output_tokens"]].mean()
    here = _FEW_USE_CASES
    holds = None
    if len(lengths) > 1:
        inputs, outputs = (float(lengths[name].max() / lengths[name].min()) for name in lengths)
        here = (
            f"Mean inputs differ {number(inputs)} times between use cases, mean outputs "
            f"{number(outputs)} times."
        )
        holds = inputs > outputs

    longest = lengths["mean_input_tokens"].idxmax() if len(lengths) else None
    heaviest = effects[effects["is_heaviest"]] if len(effects) else effects
    first = "The use case decides the length of inputs more than of outputs."
    large = "Use cases with large inputs (summarization, conversation) perform worse."
    critical = "A larger KV cache improves latency-critical inference, except summarization."
    effort = "A larger KV cache always improves best-effort inference."

    return [
        Finding(first, here, holds),
        Finding(large, *_large_inputs(served, lengths["mean_input_tokens"])),
        Finding(critical, *_larger_cache(heaviest, CRITICAL, longest)),
        Finding(effort, *_larger_cache(heaviest, EFFORT, None)),
    ]


def _large_inputs(served: pd.DataFrame, inputs: pd.Series) -> tuple[str, bool | None]:
    """Compare use cases with mean inputs above the geometric middle with the other use cases."""
    if len(inputs) < 2:
        return _FEW_USE_CASES, None

    large = {*inputs.index[inputs > (inputs.min() * inputs.max()) ** 0.5]}
    n_worse = n_pairs = 0
    same = ["llm_id", "gpu_profile_id", "scenario_id", "level", "batch_weight_tokens"]
    for _, group in served.groupby(same):
        is_large = group["workload_id"].isin(large)
        is_critical = (group["inference"] == CRITICAL).all()
        merit = -group["token_latency_ms"] if is_critical else group["throughput_tok_s"]
        for value in merit[is_large]:
            n_worse += (value < merit[~is_large]).sum()
            n_pairs += (~is_large).sum()

    if not n_pairs:
        return "No two use cases were measured in the same scenario with the same cache.", None

    here = (
        f"Large are the inputs of {joined(sorted(large))}. In {n_worse} of {n_pairs} pairs under "
        "the same load and cache the one with large inputs performs worse."
    )

    return here, bool(n_worse == n_pairs)


def _larger_cache(
    effects: pd.DataFrame, inference: str, excepted: str | None
) -> tuple[str, bool | None]:
    """Judge whether a larger cache helps all use cases but the excepted one, if there are more."""
    judged = effects[effects["inference"] == inference] if len(effects) else effects
    if judged.empty:
        return f"No {inference} use case was measured with two cache sizes.", None

    verdicts = judged.groupby("verdict")["workload_id"].agg(lambda names: sorted({*names}))
    here = "; ".join(f"{verdict}: {joined(names)}" for verdict, names in verdicts.items())
    n_use_cases = judged["workload_id"].nunique()
    here = f"Of {plural(n_use_cases, 'use case')} {here}"
    if excepted and n_use_cases > 1:
        judged = judged[judged["workload_id"] != excepted]
        here += f" (the longest inputs: {excepted})"

    # An unclear change neither confirms nor refutes the claim.
    holds = None if (judged["verdict"] != "worse").all() else False

    return f"{here}.", True if (judged["verdict"] == "better").all() else holds


@dataclass(frozen=True)
class UseCases:
    """What was measured of the use cases, and what the study says of it."""

    points: pd.DataFrame
    """Points of both kinds of inference, with `inference`, `token_latency_ms` and `kv_gib`."""
    effects: pd.DataFrame
    """Rows of `cache_effects`."""
    findings: Sequence[Finding]

    @property
    def summary(self) -> str:
        """The findings in a few sentences."""
        if self.points.empty:
            return "No use case was measured latency-critical or best-effort: nothing can be said."

        words = [f"Use cases measured: {self.points['workload_id'].nunique()}."]
        heaviest = (
            self.effects[self.effects["is_heaviest"]] if len(self.effects) else self.points[:0]
        )
        for inference, group in heaviest.groupby("inference", sort=False):
            name = _JUDGED_BY[inference]
            is_one_place = len(group[["llm_id", "gpu_profile_id"]].drop_duplicates()) == 1
            parts = []
            for _, row in group.iterrows():
                use_case = row["workload_id"] + ("" if is_one_place else f", {place_words(row)}")
                parts.append(
                    f"{number(row[f'{name}_ratio'])} times for {use_case} ({row['verdict']})"
                )
            words.append(
                f"The largest KV cache brings {inference} inference a {name} of {joined(parts)}."
            )

        verdicts = study.findings_words(self.findings, "the poster's {} takeaways")

        return " ".join([*words, verdicts[0].upper() + verdicts[1:]])

    @property
    def effect_section(self) -> Section:
        """What the largest cache brings over the smallest."""
        title = "Effect of a larger KV cache"
        if self.effects.empty:
            return part(title, "No use case was measured with two sizes.")

        intervals = {
            f"{name}_interval": self.effects[[f"{name}_ratio_low", f"{name}_ratio_high"]].agg(
                lambda ends: interval(*ends), axis=1
            )
            for name in ("throughput", "latency")
        }
        table = table_of(
            self.effects.assign(load=self.effects["level"].map(study.level_words), **intervals),
            "workload_id inference scenario_id load small_tokens large_tokens throughput_ratio "
            "throughput_interval latency_ratio latency_interval verdict",
            workload_id="Use case",
            load="Level",
            throughput_ratio="Throughput, largest over smallest",
            latency_ratio="Latency, largest over smallest",
            verdict="Larger is",
        )
        text = (
            "The verdict is by throughput if best-effort, by mean latency if latency-critical, "
            f"whose throughput is what arrives. Intervals are of {N_RESAMPLES} bootstrap draws of "
            f"the {N_BLOCKS} blocks of either run, the same of both where both served the same "
            "requests; what changes from one start of a server to the next is not in them."
        )

        return part(title, text, table=table)

    @property
    def cache_section(self) -> Section:
        """Performance over the size of the cache, one line per use case, at the heaviest load."""
        panels = []
        places = ["llm_id", "gpu_profile_id", "inference", "scenario_id"]
        for (*_, inference, _scenario), rows in self.points.groupby(places, sort=False):
            at_heaviest = rows[
                rows["level"] == rows.groupby("workload_id")["level"].transform("max")
            ]
            y = "mean_e2e_ms"
            label = "Mean latency (ms)"
            if inference == EFFORT:
                y = "throughput_tok_s"
                label = "Output tokens/s"
            x = "kv_gib" if at_heaviest["kv_gib"].notna().all() else "batch_weight_tokens"
            axis = Axis("KV cache (GiB)" if x == "kv_gib" else "KV cache (tokens)", is_log=True)
            curves = study.curves_of(at_heaviest, "workload_id", x, y)
            heading = f"{inference}, {place_words(at_heaviest.iloc[0])}"
            panels.append(Panel(heading, axis, Axis(label, low=0), curves))

        text = "The heaviest load of each scenario; mean latency from when requests were due."
        return part("Performance over the KV cache", text, panels)
