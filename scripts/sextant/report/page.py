"""The report as a page that needs no network, as JSON and as text for a terminal."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sextant.files import atomic_path, provenance, write_json
from sextant.recommend import PERCENTILE_PREFIX
from sextant.report.figures import axis_limits, latency_figure, prediction_figure, profile_styles
from sextant.report.tables import (
    LIMIT_NAMES,
    MEASURED,
    SETTING,
    Row,
    Tables,
    decision_points,
    doubts,
    group_by,
    held_out,
    number,
    points_with_costs,
    prediction_pairs,
    provenance_facts,
    read_tables,
    recommendations,
    warnings,
)

_TEMPLATE = "page.html.j2"


def write_report(
    database: Path,
    html_out: Path,
    json_out: Path,
    *,
    title: str = "Sextant report",
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write the report of a store; the same store gives the same bytes.

    Args:
        database: the store, opened read-only.
        html_out: the page, one file that refers to no other.
        json_out: SLOs, recommendations, held-out recommendations, scores, feasibility,
            warnings and provenance, with the store's column names.
        title: heading of the page.
        progress: is told of each step.

    Raises:
        InputError: there is no store, or it lacks a table.
    """
    tell = progress or (lambda step: None)
    tell("reading the store")
    tables = read_tables(database)
    origin = provenance({"store": database}) | {"store": provenance_facts(tables)}
    tell("drawing the figures")
    html = _page(tables, origin, title)
    tell("writing the report")
    with atomic_path(html_out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    write_json(json_out, _as_json(tables, origin))


def _as_json(tables: Tables, origin: Row) -> Row:
    return {
        "slos": tables["slo"],
        "recommendations": recommendations(tables),
        "held_out": held_out(tables),
        "scores": tables["score"],
        "feasibility": tables["feasibility"],
        "warnings": warnings(tables["point"]),
        "provenance": origin,
    }


def summary_text(database: Path) -> str:
    """Return the recommendations and scores of a store for a terminal.

    Raises:
        InputError: there is no store, or it lacks a table.
    """
    tables = read_tables(database)
    blocks = []
    for promise in _promises(tables):
        lines = [f"{promise['heading']}: {_slo_words(promise['slo'])}"]
        predictors = list(promise["held_out_by"])
        header = ["LLM", "recommended", "USD/h", "basis", *(f"unseen: {p}" for p in predictors)]
        rows = [
            [row["llm_id"], *_summary_cells(row, promise, predictors)] for row in promise["answers"]
        ]
        rows += [[llm_id, "neither measured nor predicted"] for llm_id in promise["unanswered"]]
        lines += _aligned([header, *rows]) if rows else ["  no LLM is known"]
        scores = [_score_cells(score) for score in promise["scores"]]
        if scores:
            header = ["predictor", "S", "O", "S/O", "MAPE nTTFT", "MAPE ITL", "LLMs", "note"]
            lines += ["", *_aligned([header, *scores])]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "The store has no SLO, so there is nothing to recommend."


def _summary_cells(row: Row, promise: Row, predictors: Sequence[str]) -> list[str]:
    basis = row["basis"] if row["basis"] == MEASURED else f"predicted by {row['predictor']}"
    unseen = []
    for predictor in predictors if row["basis"] == MEASURED else ():
        guess = promise["held_out_by"][predictor].get(row["llm_id"])
        unseen.append(f"{_deployment(guess)} {_verdict(guess)}" if guess else "–")
    if row["gpu_profile_id"] is None:
        return [f"none; {_miss(row)}", "–", basis, *unseen]
    return [_deployment(row), number(row["usd_per_hour"]), basis, *unseen]


def _score_cells(score: Row) -> list[str]:
    rates = ("success_rate", "overspend", "so_score", "mape_nttft", "mape_itl")
    cells = [score["predictor"], *(_percent(score[name]) for name in rates)]
    return [*cells, number(score["n_llms"]), score["note"] or ""]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    n_columns = max(map(len, rows))
    padded = [[*row, *[""] * (n_columns - len(row))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in padded]


def _promises(tables: Tables) -> list[Row]:
    """Return what there is to say of each SLO, by source where there are several."""
    sources = sorted({row["source"] for name in ("point", "score") for row in tables[name]})
    answers, guesses = recommendations(tables), held_out(tables)
    promises = []
    for source in sources or [MEASURED]:
        for slo in tables["slo"]:
            key = (source, slo["slo_id"])
            own, scores, judged = (_of(rows, key) for rows in (answers, tables["score"], guesses))
            promise = _promise(tables, own, scores, judged)
            heading = slo["slo_id"] if len(sources) < 2 else f"{slo['slo_id']} · {source}"
            promises.append({"source": source, "slo": slo, "heading": heading, **promise})
    return promises


def _promise(
    tables: Tables, answers: Sequence[Row], scores: Sequence[Row], guesses: Sequence[Row]
) -> Row:
    scores = [row for row in scores if row["predictor"] != MEASURED]
    # Better judged predictors first; what has no score comes last.
    rank = {row["predictor"]: -(row["so_score"] or 0) for row in scores}
    answered = {row["llm_id"] for row in answers}
    return {
        "answers": sorted(
            answers, key=lambda row: (row["basis"], row["llm_id"], rank.get(row["predictor"], 1))
        ),
        "unanswered": [r["llm_id"] for r in tables["llm"] if r["llm_id"] not in answered],
        "scores": scores,
        "held_out_by": {
            predictor: {row["llm_id"]: row for row in rows}
            for (predictor,), rows in group_by(guesses, "predictor").items()
        },
    }


def _of(rows: Sequence[Row], key: tuple[str, str]) -> list[Row]:
    return [row for row in rows if (row["source"], row["slo_id"]) == key]


def _page(tables: Tables, origin: Row, title: str) -> str:
    points = points_with_costs(tables)
    profile_ids = [row["gpu_profile_id"] for row in tables["gpu_profile"]]
    # Points may be on profiles that the sheet no longer has.
    profile_ids += sorted({point["gpu_profile_id"] for point in points} - {*profile_ids})
    styles = profile_styles(profile_ids)
    promises = _promises(tables)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": _percent,
        "deployment": _deployment,
        "verdict": _verdict,
        "miss": _miss,
        "slo_words": _slo_words,
    }
    return environment.get_template(_TEMPLATE).render(
        title=title,
        tables=tables,
        promises=promises,
        warnings=warnings(points),
        most_tried=_most_users(decision_points(tables)),
        settings=_settings(points, styles, tables["slo"]),
        scatters=_scatters(tables, promises, styles),
        feasibility=_feasibility(tables, profile_ids),
        n_settings=len(group_by(points, *SETTING)),
        doubts=doubts,
        origin=origin,
    )


def _most_users(points: Sequence[Row]) -> dict[tuple, int]:
    """Return the most users tried, by (source, LLM, profile)."""
    groups = group_by(points, "source", "llm_id", "gpu_profile_id")
    return {place: max(row["users"] or 0 for row in rows) for place, rows in groups.items()}


def _settings(
    points: Sequence[Row], styles: Mapping[str, Mapping], slos: Sequence[Row]
) -> list[Row]:
    """Return each setting's points and its figures, one an LLM."""
    # The curves are medians: a limit on another percentile says nothing about them.
    itl_limits = {slo["slo_id"]: slo["itl_ms"] for slo in slos if slo["percentile"] == 50}
    settings = []
    for key, rows in group_by(points, *SETTING).items():
        limits = axis_limits(rows)
        name = " · ".join(key)
        figures = [
            (llm_id, Markup(latency_figure(own, styles, limits, itl_limits, f"{llm_id}, {name}")))
            for (llm_id,), own in group_by(rows, "llm_id").items()
        ]
        settings.append({"name": name, "points": rows, "figures": figures})
    return settings


def _scatters(tables: Tables, promises: Sequence[Row], styles: Mapping[str, Mapping]) -> list[Row]:
    """Return a figure for each SLO and predictor that predicts latencies."""
    scatters = []
    for promise in promises:
        for score in promise["scores"]:
            predictor = score["predictor"]
            pairs = prediction_pairs(tables, promise["slo"], promise["source"], predictor)
            if pairs:
                name = f"{promise['heading']} · {predictor}"
                svg = prediction_figure(pairs, styles, f"Predicted against measured, {name}")
                scatters.append({"name": name, "n_pairs": len(pairs), "svg": Markup(svg)})
    return scatters


def _feasibility(tables: Tables, profile_ids: Sequence[str]) -> list[Row]:
    """Return a matrix of LLMs and GPU profiles for each workload and scenario tried."""
    matrices = []
    groups = group_by(tables["feasibility"], "source", "workload_id", "scenario_id")
    for key, rows in groups.items():
        cells = {(row["llm_id"], row["gpu_profile_id"]): row for row in rows}
        llm_ids = sorted({row["llm_id"] for row in [*tables["llm"], *rows]})
        known = [*profile_ids, *sorted({row["gpu_profile_id"] for row in rows} - {*profile_ids})]
        lines = [(llm_id, [cells.get((llm_id, name)) for name in known]) for llm_id in llm_ids]
        matrices.append({"name": " · ".join(key), "profile_ids": known, "lines": lines})
    return matrices


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{number(100.0 * fraction)} %"


def _deployment(row: Row) -> str:
    """Write replicas and profile, e.g. `2 × 1xA100`."""
    if row["gpu_profile_id"] is None:
        return "none"
    return f"{number(row['replicas'])} × {row['gpu_profile_id']}"


def _verdict(row: Row) -> str:
    """Say what became of a held-out recommendation."""
    if row["is_success"] is None:
        return "(not judged)"
    return f"✓ +{_percent(row['overspend'])}" if row["is_success"] else "✗"


def _miss(row: Row) -> str:
    """Say why an LLM has no recommendation, and by how much the nearest profile misses."""
    miss = row["nearest_miss"]
    if miss:
        users = "1 user" if miss["users"] == 1 else f"{number(miss['users'])} users"
        return (
            f"nearest: {miss['gpu_profile_id']} misses {LIMIT_NAMES[miss['limit']]} "
            f"by {number(miss['ratio'])}× with {users}"
        )
    if row["does_not_fit"] and not row["not_measured"]:
        return "fits on no GPU profile"
    return "no latency is known"


def _slo_words(slo: Row) -> str:
    statistic = PERCENTILE_PREFIX[slo["percentile"]]
    return (
        f"{statistic} nTTFT ≤ {number(slo['nttft_ms'])} ms per input token and "
        f"{statistic} ITL ≤ {number(slo['itl_ms'])} ms, for {number(slo['users'])} users"
    )
