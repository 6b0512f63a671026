"""What the report says of each SLO that is shown in full, and the words to say it."""

from collections.abc import Sequence

from sextant.base.rows import Row, group_by
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.wording import number, percent, plural
from sextant.report.recommendations import held_out, recommendations
from sextant.report.score_means import limit_grid, predictor_means, servable
from sextant.report.store_tables import MEASURED, Tables, detailed_slos


def sources(tables: Tables) -> list[str]:
    """Return the characterizations in the store, `measured` if there is none yet."""
    return sorted({row["source"] for name in ("point", "score") for row in tables[name]}) or [
        MEASURED
    ]


def slo_answers(tables: Tables) -> list[Row]:
    """Return what there is to say of each SLO shown in full, by source where there are several:
    `source, slo, heading, answers, unanswered` (LLMs), `scores` (of predictors) and `held_out_by`
    (recommendations for hidden LLMs by predictor and LLM).
    """
    names = sources(tables)
    answers, guesses = recommendations(tables), held_out(tables)
    by_slo = [group_by(rows, "source", "slo_id") for rows in (answers, tables["score"], guesses)]
    found = []
    for source in names:
        for slo in detailed_slos(tables):
            own = (rows.get((source, slo["slo_id"]), []) for rows in by_slo)
            heading = slo["slo_id"] if len(names) < 2 else f"{slo['slo_id']} · {source}"
            about = {"source": source, "slo": slo, "heading": heading}
            found.append({**about, **_answer(tables, *own)})
    return found


def _answer(
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


def summaries(tables: Tables) -> list[Row]:
    """Return what a long sheet comes to, by source; nothing where all SLOs are shown in full.

    Columns: `source, means` (`predictor_means`), `n_servable, n_asked` (`servable`) and `grids`
    (`limit_grid` by predictor, where there is one).
    """
    if len(detailed_slos(tables)) == len(tables["slo"]):
        return []
    found = []
    for source in sources(tables):
        scores = [row for row in tables["score"] if row["source"] == source]
        means = predictor_means(scores)
        by_predictor = group_by(scores, "predictor")
        grids = {
            row["predictor"]: limit_grid(tables["slo"], by_predictor[(row["predictor"],)])
            for row in means
        }
        n_servable, n_asked = servable(tables, source)
        row = {"source": source, "means": means, "n_servable": n_servable, "n_asked": n_asked}
        found.append(row | {"grids": {name: grid for name, grid in grids.items() if grid}})
    return found


def deployment(row: Row) -> str:
    """Write replicas and profile, e.g. `2 × 1xA100`."""
    if row["gpu_profile_id"] is None:
        return "none"
    return f"{number(row['replicas'])} × {row['gpu_profile_id']}"


def verdict(row: Row) -> str:
    """Say what became of a held-out recommendation."""
    if row["is_success"] is None:
        return "(not judged)"
    return f"✓ +{percent(row['overspend'])}" if row["is_success"] else "✗"


def miss_words(row: Row) -> str:
    """Say why an LLM has no recommendation, and by how much the nearest profile misses."""
    miss = row["nearest_miss"]
    if miss:
        return (
            f"nearest: {miss['gpu_profile_id']} misses {METRICS[miss['limit']]} "
            f"by {number(miss['ratio'])}× with {plural(miss['users'], 'user')}"
        )
    if row["does_not_fit"] and not row["not_measured"]:
        return "fits on no GPU profile"
    return "no latency is known"


def slo_words(slo: Row) -> str:
    """Write an SLO's limits and load as a sentence would."""
    asked = SLO(**slo)
    limits = [
        f"{PERCENTILE_PREFIX[limit.percentile]} {METRICS[name]} ≤ {number(limit.limit_ms)} ms"
        f"{' per input token' if name == 'nttft' else ''}"
        for name, limit in asked.limits.items()
    ]
    load = f"the traffic of {asked.trace_id}"
    if asked.trace_id is None:
        unit = "users" if asked.users is not None else "requests a second"
        load = f"{number(asked.load)} {unit}"
    words = f"{' and '.join(limits)}, for {load}"
    if not asked.lengths:
        return words
    inputs, outputs = (number(value) for value in asked.lengths.values())
    return f"{words} of {inputs} input and {outputs} output tokens"
