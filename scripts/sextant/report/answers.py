"""What the report says of each SLO: the store's rows, read once, as recommendations, predictions,
curves and words; and in one screen (`summary`): deployments, then how predictors did."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sextant.base.files import Row, group_by
from sextant.decide.headroom import compare_options
from sextant.experiment.scenarios import KINDS
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.facts.gpu import PriceOrigin, old_price_lines, origin_line, price_origins
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO, worst_limit
from sextant.pages.blocks import Block, Document, Facts, Note, Section, Table
from sextant.pages.words import number, percent, plural
from sextant.points.frame import BOUNDS, LENGTHS, TARGETS, judged, points_of_store
from sextant.points.store import open_store
from sextant.predict.predictor import MEASURED

Tables = Mapping[str, Sequence[Row]]  # rows by table; None is not known, the store's NaN too

MAX_DETAILED_SLOS = 6  # with more, only the first is shown in full
_TABLES = ("llm", "gpu_profile", "trace", "workload", "score", "capacity", "fleet", "provenance")
# An LLM's own measurements are its answer; predictors were only judged on it.
_IS_ANSWER = f"""(predictor = '{MEASURED}' OR NOT EXISTS (
    FROM recommendation AS r WHERE r.predictor = '{MEASURED}'
    AND (r.source, r.slo_id, r.llm_id) = (t.source, t.slo_id, t.llm_id)))"""
# Other server variants belong to studies, which have pages of their own.
_IS_DEFAULT = f"variant_id = '{DEFAULT_VARIANT}'"
_QUERIES = {
    **{name: f"FROM {name}" for name in _TABLES},
    "feasibility": f"FROM feasibility WHERE {_IS_DEFAULT}",
    "point": f"FROM point WHERE {_IS_DEFAULT}",
    "deciding": f"""SELECT p.* FROM point AS p SEMI JOIN decision USING
        (source, workload_id, scenario_id) WHERE {_IS_DEFAULT}""",
    "answer": f"FROM recommendation AS t WHERE {_IS_ANSWER}",
    "held_out": f"FROM recommendation AS t WHERE NOT {_IS_ANSWER}",
    "candidate": f"FROM candidate AS t WHERE {_IS_ANSWER}",
}
LEVEL_NAMES = {kind: scenario.level_words for kind, scenario in KINDS.items()}  # by scenario
TARGET_NAMES = {"nttft": "nTTFT", "itl": "ITL"}  # the latencies that predictors predict
_KEY = ("source", "slo_id", "predictor", "llm_id")
_SIZE = ("gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour", "probability_met")
_BOUNDS = [name for target in TARGETS for name in BOUNDS[target]]
_NUMBERS = [*TARGETS, *_BOUNDS, *LENGTHS, "request_rate_rps"]
_SCORES = {
    "S": "success_rate",
    "O": "overspend",
    "S/O": "so_score",
    "MAPE nTTFT": "mape_nttft",
    "MAPE ITL": "mape_itl",
}
_HEADER = ["predictor", *_SCORES]
REFERENCE_PREDICTORS = frozenset({"paris", "selecta", "morphling"})
"""Predictors that first measure a new LLM on the two reference profiles. A test compares them
with the registry of predictors, which would load their training libraries."""


def read_tables(database: str | Path) -> dict[str, list[Row]]:
    """Read the store; InputError if there is none, or it lacks a table. SLOs are in the order of
    their sheet, those of a trace in `trace_slo`. `answer` has recommendations (of points, else of
    each predictor), `held_out` those of predictors for measured LLMs, `deciding` the points they
    rest on, `candidate` alternatives, `prediction` rows of `detailed_slos`."""
    with open_store(database) as connection:
        # The store is filled once, from the sheet's first row on.
        slos = _rows(connection, "FROM slo ORDER BY rowid")
        tables = {"slo": [row for row in slos if row["trace_id"] is None]}
        tables["trace_slo"] = [row for row in slos if row["trace_id"] is not None]
        for name, query in _QUERIES.items():
            tables[name] = _rows(connection, f"{query} ORDER BY ALL")
        shown = [slo["slo_id"] for slo in detailed_slos(tables)]
        query = "FROM prediction WHERE list_contains(?, slo_id) ORDER BY ALL"
        tables["prediction"] = _rows(connection, query, shown)
    for point in (*tables["point"], *tables["deciding"]):
        # 4 users, not 4.0; a level, the store's key, is never unknown but may be infinite.
        level = math.inf if point["level"] is None else point["level"]
        point["level"] = int(level) if level.is_integer() else level
    tables["gpu_profile"].sort(key=lambda row: (row["usd_per_hour"], row["gpu_profile_id"]))
    return tables


def _rows(connection: duckdb.DuckDBPyConnection, query: str, *parameters: Any) -> list[Row]:
    cursor = connection.execute(query, parameters)
    names = [name for name, *_ in cursor.description]
    return [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in zip(names, row, strict=True)
        }
        for row in cursor.fetchall()
    ]


def detailed_slos(tables: Tables) -> Sequence[Row]:
    """Return the SLOs to show in full: all of a short sheet, the first of a long one."""
    slos = tables["slo"]
    return slos if len(slos) <= MAX_DETAILED_SLOS else slos[:1]


def sources(tables: Tables) -> list[str]:
    """Return the characterizations in the store, `measured` if there is none yet."""
    names = {row["source"] for name in ("point", "score") for row in tables[name]}
    return sorted(names) or [MEASURED]


def prices(tables: Tables) -> list[PriceOrigin]:
    """Return whose prices the GPU profiles have, and of when."""
    return price_origins((row["price_source"], row["price_as_of"]) for row in tables["gpu_profile"])


def price_lines(tables: Tables) -> list[str]:
    """Return the same as lines for a person, old prices last."""
    price_rows = prices(tables)
    return [origin_line(price_rows), *old_price_lines(price_rows)] if price_rows else []


def recommendations(tables: Tables) -> list[Row]:
    """Return the answers: the key, `basis` (`measured` or `predicted`), `gpu_profile_id` (None:
    none meets the SLO) and its size, `alternatives` (`headroom.compare_options`, the cheapest
    first), `nearest_miss` (the profile whose worst latency at its fewest users is least above its
    limit), and profiles that are not judged, by the reason: `does_not_fit, not_measured, fails`."""
    candidates = group_by(tables["candidate"], *_KEY)
    answers = []
    for row in tables["answer"]:
        options = candidates.get(tuple(row[name] for name in _KEY), [])
        miss = None
        others = [
            asdict(compare_options(row, option))
            for option in options
            if option["status"] == "meets" and option["gpu_profile_id"] != row["gpu_profile_id"]
        ]
        slow = [c for c in options if c["status"] == "too_slow" and c["limit_ratio"] is not None]
        if slow and not row["gpu_profile_id"]:
            nearest = min(slow, key=lambda c: (c["limit_ratio"], c["gpu_profile_id"]))
            miss = {
                "gpu_profile_id": nearest["gpu_profile_id"],
                "limit": worst_limit(nearest),
                "ratio": nearest["limit_ratio"],
                "users": nearest["fewest_users"],
            }
        answer = {
            **{name: row[name] for name in ("source", "slo_id", "llm_id", "predictor")},
            "basis": "measured" if row["predictor"] == MEASURED else "predicted",
            **{name: row[name] for name in _SIZE},
            "alternatives": sorted(others, key=lambda o: (o["usd_per_hour"], o["gpu_profile_id"])),
            "nearest_miss": miss,
        }
        for status in ("does_not_fit", "not_measured", "fails"):
            answer[status] = [c["gpu_profile_id"] for c in options if c["status"] == status]
        answers.append(answer)
    return answers


def prediction_pairs(tables: Tables, slo: Row, source: str, predictor: str) -> list[Row]:
    """Return held-out predictions with the latencies measured at the SLO's percentile and lengths:
    `llm_id, gpu_profile_id, users, {nttft,itl}_ms, true_{nttft,itl}_ms`."""
    wanted = SLO(**slo)
    key = ("llm_id", "gpu_profile_id", "users")
    columns = {
        f"true_{target}_ms": f"{PERCENTILE_PREFIX[percentile]}_{target}_ms"
        for target, percentile in zip(TARGET_NAMES, wanted.percentiles, strict=True)
    }
    points = [point for point in tables["deciding"] if point["source"] == source]
    if wanted.lengths:
        points = [p for p in points if wanted.is_of(np.array([p[name] for name in LENGTHS], float))]
    truth = {tuple(point[name] for name in key): point for point in points}
    answer_key = (source, slo["slo_id"], predictor)
    pairs = []
    for row in tables["prediction"]:
        point = truth.get(tuple(row[name] for name in key))
        if point and (row["source"], row["slo_id"], row["predictor"]) == answer_key:
            pairs.append({**row, **{true: point.get(name) for true, name in columns.items()}})
    return pairs


def load_curves(tables: Tables, source: str, slo: SLO) -> pd.DataFrame:
    """Return what each LLM's answer rests on: `predictor, llm_id, gpu_profile_id, users`, the
    latencies at the SLO's percentiles with their bounds, lengths and `request_rate_rps`. Rows have
    `predictor` of `measured`, or are of a predictor and an LLM that was not measured."""
    points = [row for row in tables["deciding"] if row["source"] == source]
    measured = pd.DataFrame(points, columns=[*tables["point"][0]] if tables["point"] else None)
    parts = []
    if points:
        measured = judged(points_of_store(measured), slo)
        parts.append(measured[measured["users"].notna()].assign(predictor=MEASURED))
    measured_llms = {row["llm_id"] for row in points}
    rows = [
        row
        for row in tables["prediction"]
        if (row["source"], row["slo_id"]) == (source, slo.slo_id)
        and row["llm_id"] not in measured_llms
    ]
    if rows:
        # As the predictor was asked: the workload's lengths are medians over the points' means.
        lengths = slo.lengths or (measured[LENGTHS].median() if points else {})
        parts.append(pd.DataFrame(rows).assign(request_rate_rps=np.nan, **lengths))
    keys = ["predictor", "llm_id", "gpu_profile_id", "users"]
    if not parts:
        return pd.DataFrame(columns=[*keys, *_NUMBERS])
    own_columns = [
        name for name in measured if name.startswith("own_") or name.endswith("_is_derived")
    ]
    numbers = [*_NUMBERS, *own_columns, "served_rps", "failed_share"]
    frame = pd.concat([part.reindex(columns=[*keys, *numbers]) for part in parts])
    frame[numbers] = frame[numbers].astype(float)
    # As eq. 3 takes them: where nothing succeeded, no limit is met.
    frame[TARGETS] = frame[TARGETS].where(frame[TARGETS] > 0)
    return frame.astype({"users": int}).sort_values(keys, ignore_index=True)


def slo_answers(tables: Tables) -> list[Row]:
    """Return by source and SLO shown in full `source, slo, heading, answers, scores` (predictors')
    and `held_out_by` (recommendations for hidden LLMs by predictor and LLM)."""
    names = sources(tables)
    key = ("source", "slo_id")
    all_answers = []
    parts = recommendations(tables), tables["score"], tables["held_out"]
    by_slo = [group_by(rows, *key) for rows in parts]
    for source in names:
        for slo in detailed_slos(tables):
            answers, scores, guesses = (rows.get((source, slo["slo_id"]), []) for rows in by_slo)
            scores = [row for row in scores if row["predictor"] != MEASURED]
            # Better judged predictors first; what has no score comes last.
            rank = {row["predictor"]: -(row["so_score"] or 0) for row in scores}
            answers = sorted(
                answers,
                key=lambda row: (row["basis"], row["llm_id"], rank.get(row["predictor"], 1)),
            )
            held_out_by: dict[str, dict[str, Row]] = {}
            for row in guesses:
                held_out_by.setdefault(row["predictor"], {})[row["llm_id"]] = row
            heading = slo["slo_id"] if len(names) < 2 else f"{slo['slo_id']} · {source}"
            answer = {"source": source, "slo": slo, "heading": heading, "answers": answers}
            all_answers.append(answer | {"scores": scores, "held_out_by": held_out_by})
    return all_answers


def deployment_cell(row: Row) -> str:
    """Write replicas and profile, e.g. `2 × 1xA100`."""
    if row["gpu_profile_id"] is None:
        return "none"
    return f"{number(row['replicas'])} × {row['gpu_profile_id']}"


def miss_words(row: Row) -> str:
    """Say why an LLM has no recommendation, and by how much the nearest profile misses."""
    if miss := row["nearest_miss"]:
        return (
            f"nearest: {miss['gpu_profile_id']} misses {METRICS[miss['limit']]} "
            f"by {number(miss['ratio'])}× with {plural(miss['users'], 'user')}"
        )
    if row["fails"]:
        return f"more requests failed than may on {', '.join(row['fails'])}"
    if row["does_not_fit"] and not row["not_measured"]:
        return "fits on no GPU profile"
    return "no latency is known"


def slo_words(slo: Row) -> str:
    """Write an SLO's limits and load as a sentence would."""
    wanted = SLO(**slo)
    limits = [
        f"{PERCENTILE_PREFIX[limit.percentile]} {METRICS[name]} ≤ {number(limit.limit_ms)} ms"
        f"{' per input token' if name == 'nttft' else ''}"
        for name, limit in wanted.limits.items()
    ]
    load = f"the traffic of {wanted.trace_id}"
    if wanted.trace_id is None:
        unit = "users" if wanted.users is not None else "requests a second"
        load = f"{number(wanted.load)} {unit}"
    words = f"{' and '.join(limits)}, for {load}"
    if not wanted.lengths:
        return words
    inputs, outputs = (number(value) for value in wanted.lengths.values())
    return f"{words} of {inputs} input and {outputs} output tokens"


def store_summary(database: Path) -> Document:
    """Return what a store recommends (of a long sheet for its first SLO), and mean scores."""
    tables = read_tables(database)

    def blocks_of(tables: Tables, source: str) -> list[Block]:
        if not (parts := answer_blocks(tables, source)):
            return []
        if points := [point for point in tables["deciding"] if point["source"] == source]:
            n_ok, n_failed = (sum(point[name] or 0 for point in points) for name in _COUNTS)
            llms, profiles = ({point[name] for point in points} for name in _PLACE)
            text = (
                f"{plural(len(llms), 'LLM')} on {plural(len(profiles), 'GPU profile')}: "
                f"{plural(len(points), 'point')}, {plural(n_ok + n_failed, 'request')}, "
                f"{n_failed or 'none'} failed."
            )
            parts.append(Note(text))
        return [*parts, *score_blocks(tables, source)]

    blocks = by_source(tables, blocks_of)
    if not blocks:
        blocks.append(Note("The store has no SLO, so there is nothing to recommend."))
    return Document("Sextant report", [*blocks, Facts(price_lines(tables))])


_COUNTS = ("n_ok", "n_failed")
_PLACE = ("llm_id", "gpu_profile_id")


def by_source(tables: Tables, blocks_of: Callable[[Tables, str], list[Block]]) -> list[Block]:
    """Return the blocks of each source, in a section of its own where there are several."""
    names = sources(tables)
    blocks: list[Block] = []
    for source in names:
        parts = blocks_of(tables, source)
        blocks += [Section(source, parts)] if parts and len(names) > 1 else parts
    return blocks


def answer_blocks(tables: Tables, source: str) -> list[Block]:
    """Return what a source's points and predictions recommend: LLMs by SLOs, and the limits."""
    columns: dict[str, dict[str, str]] = {}
    legend = []
    for answer in slo_answers(tables):
        if answer["source"] == source:
            slo_id = answer["slo"]["slo_id"]
            # Where predictors answer for an LLM, the one with the best score comes first.
            columns[slo_id] = {row["llm_id"]: _cell(row) for row in reversed(answer["answers"])}
            legend.append(f"{slo_id}: {slo_words(answer['slo'])}")
    slos = {row["slo_id"]: row for row in (*tables["slo"], *tables["trace_slo"])}
    simulated = [row for row in tables["capacity"] if row["source"] == source]
    for (slo_id,), of_slo in group_by(simulated, "slo_id").items():
        chosen = {
            row["llm_id"]: f"{deployment_cell(row)} {number(row['usd_per_hour'])}"
            for row in of_slo
            if row["is_chosen"]
        }
        columns[slo_id] = {row["llm_id"]: "none" for row in of_slo} | chosen
        legend.append(f"{slo_id}: {slo_words(slos[slo_id])}, simulated")
    if not columns:
        return []
    llms = {row["llm_id"] for row in tables["llm"]}.union(*columns.values())
    lines = [
        [llm, *(cells.get(llm, "not known") for cells in columns.values())] for llm in sorted(llms)
    ]
    n_slos = len(tables["slo"])
    which = "each SLO" if len(detailed_slos(tables)) == n_slos else f"the first of {n_slos} SLOs"
    title = f"Cheapest deployment that meets {which} (replicas × GPU profile, USD per hour)"
    answers = Table(["LLM", *columns], lines, range(len(columns) + 1))
    return [Section(title, [answers, Facts(legend)])]


def _cell(row: Row) -> str:
    """Write an answer, or by how much the nearest profile misses."""
    basis = "" if row["basis"] == MEASURED else " predicted"
    if row["gpu_profile_id"] is not None:
        return f"{deployment_cell(row)} {number(row['usd_per_hour'])}{basis}"
    miss = row["nearest_miss"]
    reason = f", {METRICS[miss['limit']]} {number(miss['ratio'])}× its limit" if miss else ""
    return f"none{reason}{basis}"


def score_blocks(tables: Tables, source: str) -> list[Block]:
    """Return how predictors were judged on LLMs they had not seen."""
    scores = [row for row in tables["score"] if row["source"] == source]
    means = predictor_means(scores)
    n_slos = len(tables["slo"])
    if not means:
        return []

    def cells(row: Row) -> list[str]:
        return [marked(row["predictor"]), *(percent(row[name]) for name in _SCORES.values())]

    judged = "Predictors, judged on each LLM without having seen it"
    blocks = list[Block]()
    if len(detailed_slos(tables)) < n_slos:
        first = tables["slo"][0]["slo_id"]
        of_first = [row for row in scores if row["slo_id"] == first]
        rows = [[*cells(r), r["note"] or ""] for r in of_first if r["predictor"] != MEASURED]
        table = Table([*_HEADER, "note"], rows, (0, len(_HEADER)))
        blocks.append(Section(f"{judged}, for {first}", [table]))
    table = Table(_HEADER, [cells(row) for row in means])
    words = (
        "S: share of the LLMs whose recommended deployment meets the SLO. O: its extra cost over "
        "the cheapest one that does. S/O: harmonic mean of S and 1 − O."
    )
    title = f"{judged}, means over {plural(n_slos, 'SLO')}"
    return [*blocks, Section(title, [table]), Note(words)]


def marked(predictor: str) -> str:
    """Return a predictor's name, with a triangle if it measures the reference profiles."""
    return f"{predictor} ▲" if predictor.split(" · ")[-1] in REFERENCE_PREDICTORS else predictor


def predictor_means(scores: Sequence[Row]) -> list[Row]:
    """Return a row per predictor, the best S/O first: means over the SLOs with a value."""

    def mean(values: Iterable[float | None]) -> float | None:
        numbers = [value for value in values if value is not None]
        return sum(numbers) / len(numbers) if numbers else None

    rows = [
        {"predictor": predictor}
        | {name: mean(row[name] for row in predictor_scores) for name in _SCORES.values()}
        for (predictor,), predictor_scores in group_by(scores, "predictor").items()
        if predictor != MEASURED
    ]
    return sorted(rows, key=lambda row: (-(row["so_score"] or 0), row["predictor"]))
