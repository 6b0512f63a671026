"""Latency and throughput over the number of users, per LLM and GPU profile, and what does not fit.

Lazuka et al.: LLM-Pilot, SC 2024, sections III-C and V-B (Fig. 7, Table III).
"""

import pandas as pd

from sextant.experiment.scenarios import ClosedLoop
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import listed, number, plural
from sextant.points.run import CELL_KEY
from sextant.studies.study import Analysis, StudyData, level_axis, part, place_words, table_of

SATURATION = 0.9
"""A combination is saturated from the fewest users that reach this share of its highest
throughput."""
_SETTING = ["workload_id", "scenario_id"]
_COMBINATION = ["llm_id", "gpu_profile_id", *_SETTING, "variant_id"]
_CURVES = (
    ("throughput_tok_s", "Throughput", "Output tokens/s"),
    ("median_ttft_ms", "TTFT, median", "ms"),
    ("median_nttft_ms", "nTTFT, median", "ms per input token"),
    ("median_itl_ms", "ITL, median", "ms"),
)


def analyse(data: StudyData) -> Analysis:
    """Draw the curves of closed loops; list every cell with its verdict."""
    points = data.points[data.points["scenario_kind"] == ClosedLoop.kind]
    points = points.sort_values([*_COMBINATION, "level"]).reset_index(drop=True)
    cells, combinations = feasibility(data), saturation(points)
    sections = [_feasibility_section(cells)]
    sections += [_saturation_section(combinations)] if len(combinations) else []
    # Sections need different names, and an LLM may be in several settings.
    n_settings = len(points[_SETTING].drop_duplicates())
    for (llm_id, *setting), own in points.groupby(["llm_id", *_SETTING]):
        place = f"{llm_id} ({', '.join(setting)})" if n_settings > 1 else llm_id
        sections.append(_curves_section(place, own))
    n_other = len(data.points) - len(points)
    numbers = {
        "feasibility": cells,
        "saturation": combinations,
        "points": points,
        "n_points_of_other_scenarios": n_other,
    }
    return Analysis(_summary(cells, combinations), numbers, sections)


def feasibility(data: StudyData) -> pd.DataFrame:
    """Return one row per cell: its key, `verdict, why`, memory, batch weight, starts and levels.

    `verdict` is `fits`, `does not fit` or `unsupported`; `why` says more of the latter two.
    `levels` are those that were measured, `levels_left_out` those that could tell nothing, with
    the rule's words.
    """
    measured = data.points.groupby(list(CELL_KEY))["level"].agg(
        lambda levels: ", ".join(f"{level:g}" for level in sorted(levels))
    )
    rows = data.feasibility.join(measured.rename("levels"), on=list(CELL_KEY))
    verdicts = {cell.key: cell.run.verdict for cell in data.cells}
    own = [verdicts[key] for key in rows[list(CELL_KEY)].itertuples(index=False, name=None)]
    kinds = [verdict.outcome.kind.value for verdict in own]
    return rows.assign(verdict=kinds, why=[verdict.why for verdict in own])


def saturation(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per combination that served anything.

    Columns: the combination; `max_throughput_tok_s` and `saturated_users`, the fewest that reach
    90% of it; `n_levels`; `most_users`; `is_still_rising`, whether those are the most users
    measured; and `{ttft,itl}_growth`, the median at most users over that at the fewest.
    """
    rows = []
    for combination, own in points.groupby(_COMBINATION):
        served = own[own["n_ok"] > 0]
        if served.empty:
            continue
        highest = served["throughput_tok_s"].max()
        is_near = served["throughput_tok_s"] >= SATURATION * highest
        first, last = served.iloc[0], served.iloc[-1]
        saturated_users = served.loc[is_near, "level"].min()
        rows.append(
            {
                **dict(zip(_COMBINATION, combination, strict=True)),
                "max_throughput_tok_s": highest,
                "saturated_users": saturated_users,
                "n_levels": len(served),
                "most_users": last["level"],
                "is_still_rising": bool(len(served) > 1 and saturated_users == last["level"]),
                "ttft_growth": last["median_ttft_ms"] / first["median_ttft_ms"],
                "itl_growth": last["median_itl_ms"] / first["median_itl_ms"],
            }
        )
    return pd.DataFrame(rows)


def _summary(cells: pd.DataFrame, combinations: pd.DataFrame) -> str:
    counts = cells["verdict"].value_counts()
    n_fitting = int(counts.get("fits", 0))
    others = [f"{name}: {counts[name]}" for name in counts.index if name != "fits"]
    words = f"Of {plural(len(cells), 'combination')} of LLM and GPU profile {n_fitting} fit"
    words += f" ({listed(others)})." if others else "."
    if combinations.empty:
        return f"{words} No request was served."
    best = combinations.loc[combinations["max_throughput_tok_s"].idxmax()]
    words += (
        f" The highest throughput is {number(best['max_throughput_tok_s'])} output tokens/s, of "
        f"{place_words(best)}."
    )
    several = combinations[combinations["n_levels"] > 1]
    if several.empty:
        return words
    words += (
        f" {several['is_still_rising'].sum()} of {len(several)} were not saturated by the most "
        "users measured. From the "
        f"fewest to the most users, median TTFT grew {_span(several['ttft_growth'])} times and "
        f"median ITL {_span(several['itl_growth'])} times."
    )
    if n_left_out := int(cells["levels_left_out"].notna().sum()):
        words += f" In {n_left_out} the sweep ended early: more users could tell nothing."
    return words


def _span(values: pd.Series) -> str:
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _feasibility_section(cells: pd.DataFrame) -> Section:
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
    return part("Feasibility", text, table=table)


def _varying(rows: pd.DataFrame) -> str:
    """Return the columns, besides LLM and profile, that differ among rows."""
    return " ".join(name for name in (*_SETTING, "variant_id") if rows[name].nunique() > 1)


def _saturation_section(combinations: pd.DataFrame) -> Section:
    text = (
        "LLM-Pilot found TTFT to grow with the number of users, and ITL to stay until the memory "
        "is full and then to rise while throughput no longer does (V-B)."
    )
    table = table_of(
        combinations,
        f"llm_id gpu_profile_id {_varying(combinations)} max_throughput_tok_s saturated_users "
        "most_users is_still_rising ttft_growth itl_growth",
        saturated_users=f"Users that reach {SATURATION:.0%} of it",
    )
    return part("Saturation", text, table=table)


def _curves_section(place: str, points: pd.DataFrame) -> Section:
    n_ok, n_failed = int(points["n_ok"].sum()), int(points["n_failed"].sum())
    fewest = int(points["n_ok"].min())
    text = (
        f"Medians of served requests ({number(n_ok)} in all, at least {number(fewest)} a point); "
        f"{number(n_failed)} failed. Users in closed loop, each with one request in flight."
    )
    panels = [_panel(points, *curve) for curve in _CURVES]
    figure = panels_figure(panels, f"Curves of {place}", has_points=True)
    table = table_of(
        points,
        f"gpu_profile_id {_varying(points)} level n_ok n_failed throughput_tok_s "
        "median_ttft_ms median_nttft_ms median_itl_ms median_e2e_ms",
        level="Users",
    )
    return part(f"Curves: {place}", text, figure, table)


def _panel(points: pd.DataFrame, column: str, heading: str, unit: str) -> Panel:
    is_one = points["variant_id"].nunique() == 1
    lines = [
        Curve(place if is_one else f"{place}, {variant}", own["level"], own[column])
        for (place, variant), own in points.groupby(["gpu_profile_id", "variant_id"])
    ]
    is_log = column != "throughput_tok_s"
    y = Axis(unit, is_log=is_log, low=None if is_log else 0)
    return Panel(heading, level_axis("Users", points["level"]), y, lines)
