"""What the report reads of a store: rows by table, recommendations, predictions and curves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.base.files import Row, group_by
from sextant.decide.headroom import NextBest, compare_options
from sextant.experiment.servers import SIMULATED
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.facts.slo import PERCENTILE_PREFIX, SLO, worst_limit
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
TARGET_NAMES = {"nttft": "nTTFT", "itl": "ITL"}  # the latencies that predictors predict
_NOT_JUDGED = ("does_not_fit", "not_measured", "fails")  # status of a candidate without an answer
_BOUNDS = [name for target in TARGETS for name in BOUNDS[target]]
_NUMBERS = [*TARGETS, *_BOUNDS, *LENGTHS, "request_rate_rps"]


def read_tables(database: str | Path) -> dict[str, list[Row]]:
    """Return the store's rows by table; InputError if there is none, or it lacks a table.

    `slo` is in the order of the sheet; SLOs of a trace are in `trace_slo`. `answer` has what the
    measured points of an LLM recommend, else what each predictor recommends; `held_out` has the
    predictors' recommendations for measured LLMs, `deciding` the points that recommendations rest
    on, `candidate` the options beside them, `prediction` the predictions for `detailed_slos`.
    """
    with open_store(database) as connection:
        # The store is filled once, from the sheet's first row on.
        slos = _rows(connection, "FROM slo ORDER BY rowid")
        tables = {"slo": [row for row in slos if row["trace_id"] is None]}
        tables["trace_slo"] = [row for row in slos if row["trace_id"] is not None]
        for name, query in _QUERIES.items():
            tables[name] = _rows(connection, f"{query} ORDER BY ALL")
        shown = [slo.slo_id for slo in detailed_slos(tables)]
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


def detailed_slos(tables: Tables) -> list[SLO]:
    """Return the SLOs to show in full: all of a short sheet, the first of a long one."""
    rows = tables["slo"]
    return [SLO(**row) for row in (rows if len(rows) <= MAX_DETAILED_SLOS else rows[:1])]


def slos_by_id(tables: Tables) -> dict[str, SLO]:
    """Return every SLO of the sheet by its id, also the SLOs of traces."""
    return {row["slo_id"]: SLO(**row) for row in (*tables["slo"], *tables["trace_slo"])}


def simulated_llms(tables: Tables, source: str, slo_id: str) -> set[str]:
    """Return the LLMs whose replicas a simulation found for an SLO: that is their answer."""
    return {
        row["llm_id"]
        for row in tables["capacity"]
        if (row["source"], row["slo_id"]) == (source, slo_id) and row["gpu_profile_id"] is not None
    }


def sources(tables: Tables) -> list[str]:
    """Return the characterizations in the store; `measured` alone if it has none yet."""
    names = {row["source"] for name in ("point", "score") for row in tables[name]}
    return sorted(names) or [MEASURED]


def measured_word(source: str) -> str:
    """Return what the points of a source are: measured, or simulated in a rehearsal."""
    return SIMULATED if source.startswith(SIMULATED) else MEASURED


class RecommendationKey(NamedTuple):
    """What identifies a recommendation in a store."""

    source: str
    slo_id: str
    llm_id: str
    predictor: str
    """`measured`, or the predictor that decided."""


@dataclass(frozen=True)
class MissedLimit:
    """The GPU profile whose worst latency, at its fewest users, is least above its limit."""

    gpu_profile_id: str
    limit: str
    """The metric of that latency, of `METRICS`."""
    ratio: float
    """Latency / limit."""
    users: int


@dataclass(frozen=True)
class StoredRecommendation:
    """What a store recommends for an LLM under an SLO, by its points or by a predictor."""

    source: str
    slo_id: str
    llm_id: str
    predictor: str
    option: Option
    """All None: no GPU profile meets the SLO."""
    alternatives: Sequence[NextBest]
    """Other options that meet the SLO, the cheapest first."""
    nearest_miss: MissedLimit | None
    """None: an option meets the SLO, or no latency is known."""
    does_not_fit: Sequence[str]
    """GPU profiles that the LLM does not fit on."""
    not_measured: Sequence[str]
    """GPU profiles that may serve the LLM, but have no points."""
    fails: Sequence[str]
    """GPU profiles on which more requests failed than may."""

    @property
    def is_measured(self) -> bool:
        """Whether it rests on the LLM's measured points."""
        return self.predictor == MEASURED

    @property
    def key(self) -> RecommendationKey:
        """What identifies it."""
        return RecommendationKey(self.source, self.slo_id, self.llm_id, self.predictor)

    @classmethod
    def of_rows(cls, row: Row, candidates: Sequence[Row]) -> "StoredRecommendation":
        """Return it from a row of table `recommendation`, and the rows of `candidate` beside it."""
        option = Option.of(row)
        others = [
            compare_options(row, candidate)
            for candidate in candidates
            if candidate["status"] == "meets"
            and candidate["gpu_profile_id"] != option.gpu_profile_id
        ]
        slow = [
            candidate
            for candidate in candidates
            if candidate["status"] == "too_slow" and candidate["limit_ratio"] is not None
        ]
        miss = None
        if slow and option.gpu_profile_id is None:
            nearest = min(slow, key=lambda other: (other["limit_ratio"], other["gpu_profile_id"]))
            miss = MissedLimit(
                nearest["gpu_profile_id"],
                worst_limit(nearest),
                nearest["limit_ratio"],
                nearest["fewest_users"],
            )

        profiles_by_status = {
            status: [other["gpu_profile_id"] for other in candidates if other["status"] == status]
            for status in _NOT_JUDGED
        }
        return cls(
            **{name: row[name] for name in RecommendationKey._fields},
            option=option,
            alternatives=sorted(others, key=lambda o: (o.usd_per_hour, o.gpu_profile_id)),
            nearest_miss=miss,
            does_not_fit=profiles_by_status["does_not_fit"],
            not_measured=profiles_by_status["not_measured"],
            fails=profiles_by_status["fails"],
        )

    @classmethod
    def of_dict(cls, entry: Mapping[str, Any]) -> "StoredRecommendation":
        """Return it from its entry in a report's JSON (`to_dict`)."""
        miss = entry["nearest_miss"]
        return cls(
            **{name: entry[name] for name in (*RecommendationKey._fields, *_NOT_JUDGED)},
            option=Option.of(entry),
            alternatives=[NextBest(**option) for option in entry["alternatives"]],
            nearest_miss=MissedLimit(**miss) if miss else None,
        )

    def to_dict(self) -> Row:
        """Return its entry in a report's JSON."""
        return {
            **self.key._asdict(),
            "basis": "measured" if self.is_measured else "predicted",
            **self.option._asdict(),
            "alternatives": [asdict(option) for option in self.alternatives],
            "nearest_miss": self.nearest_miss and asdict(self.nearest_miss),
            **{status: getattr(self, status) for status in _NOT_JUDGED},
        }


@dataclass(frozen=True)
class SLOReport:
    """What a store has for one SLO and one source of points."""

    source: str
    slo: SLO
    heading: str
    """The SLO, and the source if the store has several."""
    recommendations: Sequence[StoredRecommendation]
    """Measured LLMs first, then by LLM, the better judged predictor first."""
    scores: Sequence[Row]
    """Rows of table `score`, of predictors."""
    held_out: Mapping[str, Mapping[str, Row]]
    """Recommendations for LLMs that were hidden, by predictor and LLM."""


def recommendations(tables: Tables) -> list[StoredRecommendation]:
    """Return what the store recommends, in the order of table `recommendation`."""
    names = RecommendationKey._fields
    candidates = group_by(tables["candidate"], *names)
    return [
        StoredRecommendation.of_rows(row, candidates.get(tuple(row[name] for name in names), []))
        for row in tables["answer"]
    ]


def prediction_pairs(tables: Tables, slo: SLO, source: str, predictor: str) -> list[Row]:
    """Return held-out predictions with the latencies measured at the SLO's percentile and lengths.

    Keys: `llm_id, gpu_profile_id, users, {nttft,itl}_ms, true_{nttft,itl}_ms`.
    """
    key = ("llm_id", "gpu_profile_id", "users")
    columns = {
        f"true_{target}_ms": f"{PERCENTILE_PREFIX[percentile]}_{target}_ms"
        for target, percentile in zip(TARGET_NAMES, slo.percentiles, strict=True)
    }
    points = [point for point in tables["deciding"] if point["source"] == source]
    if slo.lengths:
        points = [p for p in points if slo.is_of(np.array([p[name] for name in LENGTHS], float))]
    truth = {tuple(point[name] for name in key): point for point in points}
    answer_key = (source, slo.slo_id, predictor)
    pairs = []
    for row in tables["prediction"]:
        point = truth.get(tuple(row[name] for name in key))
        if point and (row["source"], row["slo_id"], row["predictor"]) == answer_key:
            pairs.append({**row, **{true: point.get(name) for true, name in columns.items()}})
    return pairs


def load_curves(tables: Tables, source: str, slo: SLO) -> pd.DataFrame:
    """Return the curves that each LLM's recommendation rests on, one row per number of users.

    Columns: `predictor, llm_id, gpu_profile_id, users`, the latencies at the SLO's percentiles with
    their bounds, lengths and `request_rate_rps`. A measured LLM has rows of its points alone
    (`predictor` is `measured`), another LLM has rows of each predictor.
    """
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


def slo_reports(tables: Tables) -> list[SLOReport]:
    """Return what the store has for each source and each SLO that is shown in full."""
    names = sources(tables)
    by_slo = group_by(tables["score"], "source", "slo_id")
    held_out_by_slo = group_by(tables["held_out"], "source", "slo_id")
    every_recommendation = recommendations(tables)
    reports = []
    for source in names:
        for slo in detailed_slos(tables):
            scores = [
                row for row in by_slo.get((source, slo.slo_id), []) if row["predictor"] != MEASURED
            ]
            # Better judged predictors first; what has no score comes last.
            rank = {row["predictor"]: -(row["so_score"] or 0) for row in scores}
            of_slo = [
                answer
                for answer in every_recommendation
                if (answer.source, answer.slo_id) == (source, slo.slo_id)
            ]
            of_slo.sort(
                key=lambda answer: (
                    not answer.is_measured,
                    answer.llm_id,
                    rank.get(answer.predictor, 1),
                )
            )
            held_out: dict[str, dict[str, Row]] = {}
            for row in held_out_by_slo.get((source, slo.slo_id), []):
                held_out.setdefault(row["predictor"], {})[row["llm_id"]] = row

            heading = slo.slo_id if len(names) < 2 else f"{slo.slo_id} · {source}"
            reports.append(SLOReport(source, slo, heading, of_slo, scores, held_out))

    return reports
