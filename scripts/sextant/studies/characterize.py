"""Latency and throughput over the number of users, per LLM and GPU profile, and what does not fit.

Lazuka et al.: LLM-Pilot, SC 2024, sections III-C and V-B (Fig. 7, Table III).
"""

import pandas as pd

from sextant.experiment.scenarios import ClosedLoop
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Panel
from sextant.pages.words import joined, number, plural
from sextant.points.run import CELL_KEY
from sextant.studies import study
from sextant.studies.study import Analysis, StudyData, part, table_of

SATURATION = 0.9  # of the highest throughput, reached by the fewest saturating users
_SETTING = ["workload_id", "scenario_id"]
_COMBINATION = ["llm_id", "gpu_profile_id", *_SETTING, "variant_id"]
_CURVES = (
    ("throughput_tok_s", "Throughput", Axis("Output tokens/s", low=0)),
    ("median_ttft_ms", "TTFT, median", Axis("ms", is_log=True)),
    ("median_nttft_ms", "nTTFT, median", Axis("ms per input token", is_log=True)),
    ("median_itl_ms", "ITL, median", Axis("ms", is_log=True)),
)


def analyse(data: StudyData) -> Analysis:
    """Draw the curves of closed loops; list every cell with its verdict."""
    points = data.points_of(ClosedLoop.kind)
    points = points.sort_values([*_COMBINATION, "level"]).reset_index(drop=True)
    cells = feasibility(data)
    combinations = saturation(points)
    text = (
        "Memory is by facts: weights, and what is left of the usable memory. The batch weight "
        "is the largest that the server held under load, or the one that a variant fixes; each "
        "server start is one weight tried."
    )
    table = table_of(
        cells,
        f"llm_id gpu_profile_id {_varying(cells)} verdict why weight_gib kv_gib "
        "batch_weight_tokens n_server_starts levels levels_left_out",
        kv_gib="Left for the KV cache (GiB)",
    )
    sections = [part("Feasibility", text, table=table)]
    if len(combinations):
        text = (
            "LLM-Pilot found TTFT to grow with the number of users, and ITL to stay until the "
            "memory is full and then to rise while throughput no longer does (V-B)."
        )
        table = table_of(
            combinations,
            f"llm_id gpu_profile_id {_varying(combinations)} max_throughput_tok_s saturated_users "
            "most_users is_still_rising ttft_growth itl_growth",
            saturated_users=f"Users that reach {SATURATION:.0%} of it",
        )
        sections.append(part("Saturation", text, table=table))

    # Sections need different names, and an LLM may be in several settings.
    n_settings = len(points[_SETTING].drop_duplicates())
    for (llm_id, *setting), group in points.groupby(["llm_id", *_SETTING]):
        where = f"{llm_id} ({', '.join(setting)})" if n_settings > 1 else llm_id
        sections.append(_curves_section(where, group))

    numbers = {
        "feasibility": cells,
        "saturation": combinations,
        "points": points,
        "n_points_of_other_scenarios": len(data.points) - len(points),
    }

    return Analysis(_summary(cells, combinations), numbers, sections)


def feasibility(data: StudyData) -> pd.DataFrame:
    """Return one row per cell: its key, verdict, memory, starts, and levels."""
    levels = data.points.sort_values("level").groupby(list(CELL_KEY))["level"]
    measured = levels.agg(lambda group: ", ".join(map(study.level_words, group)))
    rows = data.feasibility.join(measured.rename("levels"), on=list(CELL_KEY))
    verdicts = [cell.run.verdict for cell in data.cells]  # in the order of the rows
    return rows.assign(
        verdict=[verdict.outcome.kind.value for verdict in verdicts],
        why=[verdict.why for verdict in verdicts],
    )


def saturation(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per combination that served anything.

    It has the highest throughput, the fewest users that reach 90% of it, whether these are the most
    users measured, and the growth of the median latencies.
    """
    rows = []
    for combination, group in points[points["n_ok"] > 0].groupby(_COMBINATION):
        highest = group["throughput_tok_s"].max()
        saturated = group.loc[group["throughput_tok_s"] >= SATURATION * highest, "level"].min()
        first = group.iloc[0]
        last = group.iloc[-1]
        row = {
            "max_throughput_tok_s": highest,
            "saturated_users": saturated,
            "n_levels": len(group),
            "most_users": last["level"],
            "is_still_rising": bool(len(group) > 1 and saturated == last["level"]),
            "ttft_growth": last["median_ttft_ms"] / first["median_ttft_ms"],
            "itl_growth": last["median_itl_ms"] / first["median_itl_ms"],
        }
        rows.append(dict(zip(_COMBINATION, combination, strict=True)) | row)

    return pd.DataFrame(rows)


def _summary(cells: pd.DataFrame, combinations: pd.DataFrame) -> str:
    counts = cells["verdict"].value_counts()
    others = [f"{name}: {counts[name]}" for name in counts.index if name != "fits"]
    words = f"Of {plural(len(cells), 'combination')} of LLM and GPU profile {counts.get('fits', 0)}"
    words += f" fit ({joined(others)})." if others else " fit."
    if combinations.empty:
        return f"{words} No request was served."

    best = combinations.loc[combinations["max_throughput_tok_s"].idxmax()]
    words += (
        f" The highest throughput is {number(best['max_throughput_tok_s'])} output tokens/s, of "
        f"{study.place_words(best)}."
    )
    several = combinations[combinations["n_levels"] > 1]
    if several.empty:
        return words

    spans = {}
    for name in ("ttft", "itl"):
        growth = several[f"{name}_growth"]
        ends = dict.fromkeys(number(float(end)) for end in (growth.min(), growth.max()))
        spans[name] = " to ".join(ends)

    words += (
        f" {several['is_still_rising'].sum()} of {len(several)} were not saturated by the most "
        "users measured. From the fewest to the most users, median TTFT grew "
        f"{spans['ttft']} times and median ITL {spans['itl']} times."
    )
    if n_left_out := cells["levels_left_out"].notna().sum():
        words += f" In {n_left_out} the sweep ended early: more users could tell nothing."

    return words


def _varying(rows: pd.DataFrame) -> str:
    """Return the columns, besides LLM and profile, that differ among rows."""
    return " ".join(name for name in (*_SETTING, "variant_id") if rows[name].nunique() > 1)


def _curves_section(where: str, points: pd.DataFrame) -> Section:
    n_ok = points["n_ok"].sum()
    n_failed = points["n_failed"].sum()
    fewest = points["n_ok"].min()
    text = (
        f"Medians of served requests ({number(int(n_ok))} in all, at least {number(int(fewest))} a "
        f"point); {number(int(n_failed))} failed. Users in closed loop, each with one request in "
        "flight."
    )
    users = study.level_axis("Users", points["level"])
    by = "gpu_profile_id variant_id"
    panels = [
        Panel(heading, users, y, study.curves_of(points, by, "level", name))
        for name, heading, y in _CURVES
    ]
    table = table_of(
        points,
        f"gpu_profile_id {_varying(points)} level n_ok n_failed throughput_tok_s "
        "median_ttft_ms median_nttft_ms median_itl_ms median_e2e_ms",
        level="Users",
    )

    return part(f"Curves: {where}", text, panels, table)
