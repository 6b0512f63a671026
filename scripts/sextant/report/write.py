"""The report of a store as a page, with its data as JSON."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.answer import words as text
from sextant.base.files import Row, group_by, provenance
from sextant.base.sheets import file_name
from sextant.capacity.answer import CapacityOutcome
from sextant.capacity.document import outcome_cells
from sextant.decide.headroom import NextBest, measure_headroom
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.facts.slo import ENDS, METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.blocks import Block, Chart, Document, Facts, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.page import write_page
from sextant.pages.words import chance, number, percent, plural
from sextant.points.frame import FLOOR_MS, TARGETS, limited, replica_load
from sextant.points.metrics import POINT_LABELS, SETTING, warnings
from sextant.points.verdict import Kind, ProbeOutcome
from sextant.predict.predictor import MEASURED
from sextant.recommend.what_if import of_points, what_if_widget
from sextant.report import answers as stored
from sextant.report.answers import Tables, by_source, deployment_cell, marked, slo_words
from sextant.studies.study import doubtful_places

_MAX_REASONS = 3
_DECISION = ("source", "slo_id", "llm_id", "predictor", "gpu_profile_id", "replicas", "headroom")
_MARKS = {Kind.FITS: "✓", Kind.DOES_NOT_FIT: "✗"}
_POINT_COLUMNS = (
    *("llm_id", "gpu_profile_id", "level", "n_ok", "n_failed", "throughput_tok_s"),
    *(f"{end}_{name}_ms" for name in ("ttft", "nttft", "itl", "e2e") for end in ("median", "p90")),
    *("server_mean_itl_ms", "client_lag_p99_ms", "energy_per_output_token_j"),
)
_POINT_LABELS = POINT_LABELS | {
    "server_mean_itl_ms": "Server's mean ITL (ms)",
    "client_lag_p99_ms": "Client lag, p99 (ms)",
}
_MAX_TICKS = 10
_MOST_OVERSPEND = 200  # what overspends more, in percent, is drawn at the edge of the figure
_EQUAL_SCORES = (0.2, 0.4, 0.6, 0.8)


def write_report(database: Path, html_out: Path, json_out: Path, figures_out: Path) -> None:
    """Write the report of a store for every SLO: a page, JSON by the store's column names, a folder
    of figures, whose former content goes; the same store gives the same bytes."""
    tables = stored.read_tables(database)
    store_provenance = {row["key"]: json.loads(row["value"]) for row in tables["provenance"]}
    origin = provenance({"store": database}) | {"store": store_provenance}
    answers = stored.slo_answers(tables)
    decisions = list[Row]()
    of_slos = [_slo_section(tables, answer, decisions) for answer in answers]
    words = (
        "Below, for each SLO and LLM: the price, the headroom to each limit (in percent, and as "
        "load of all replicas together), and latency over the load of one replica. Each curve is a "
        "GPU profile; bars are 90% intervals, open-ended where too few requests were measured; the "
        "ring marks the recommended load."
    )
    to_rent: list[Block] = [Note("The store has no SLO, so there is nothing to recommend.")]
    if overview := by_source(tables, stored.answer_blocks):
        notes = [Note(line, "soft") for line in (*stored.price_lines(tables), words)]
        to_rent = [*overview, *notes, *of_slos]
    doubts = []
    for warning in warnings(tables["point"]):
        count = f"{number(warning['n_points'])} of {number(len(tables['point']))} points"
        title = f"{warning['text']}: {count}."
        doubts.append(Section(title, [Facts(doubtful_places(warning))], is_detail=True))
    ids = [row["trace_id"] for row in tables["trace"]]
    links = ["What each trace is like, and how faithful the workloads are that were fitted to it:"]
    links += [f"Trace {name}: traces/{file_name(name)}.html next to this page." for name in ids]
    document = Document(
        "Sextant report",
        [
            Section("What to rent", to_rent, key="answer"),
            *_other_answers(tables),
            *([Section("Doubtful points", doubts)] if doubts else []),
            Section("Feasibility", _feasibility_blocks(tables)),
            Section("Points", _point_blocks(tables)),
            *([Section("Traces and workloads", [*map(Note, links)])] if ids else []),
            Section("How much to trust predictions", _trust_blocks(tables, answers), key="trust"),
        ],
        {
            "decisions": decisions,
            "slos": [*tables["slo"], *tables["trace_slo"]],
            "recommendations": stored.recommendations(tables),
            "held_out": tables["held_out"],
            "scores": tables["score"],
            "capacity": tables["capacity"],
            "feasibility": tables["feasibility"],
            "prices": [price._asdict() for price in stored.prices(tables)],
            "warnings": warnings(tables["point"]),
            "provenance": origin,
        },
        "The cheapest GPU profile, and how many replicas of it, that meet each SLO (latency "
        "limits under a load).",
        origin,
    )
    write_page(document, html_out, json_out, figures_out)


def _slo_section(tables: Tables, answer: Row, decisions: list[Row]) -> Section:
    """Return a part per LLM, of its measured or best answer; add these to `decisions`."""
    slo = SLO(**answer["slo"])
    heading = answer["heading"]
    curves = stored.load_curves(tables, answer["source"], slo)
    usd = {row["gpu_profile_id"]: row["usd_per_hour"] for row in tables["gpu_profile"]}
    parts: list[Block] = [Note(f"Limits: {slo_words(answer['slo'])}.")]
    for (llm_id,), (first, *others) in group_by(answer["answers"], "llm_id").items():
        llm_curves = curves[
            (curves["llm_id"] == llm_id) & (curves["predictor"] == first["predictor"])
        ]
        there = llm_curves[llm_curves["gpu_profile_id"] == first["gpu_profile_id"]]
        about = None
        if len(there):
            about = measure_headroom(there, slo, first["replicas"], first["usd_per_hour"])
        card = {**first, "slo_id": slo.slo_id, "headroom": about}
        decisions.append(
            {name: card[name] for name in _DECISION} | {"headroom": about and about.to_dict()}
        )
        is_measured = first["basis"] == MEASURED
        how = MEASURED if is_measured else f"predicted by {first['predictor']}"
        shown = _card_blocks(card, others, slo)
        if llm_curves[TARGETS].notna().any(axis=None):
            panels = [_load_panel(metric, llm_curves, slo, card) for metric in slo.limits]
            whose = llm_id if is_measured else f"{llm_id}, {how}"
            title = f"Latency over load, {heading}, {whose}"
            svg = panels_figure(panels, title, has_points=True)
            shown.append(Chart(svg, name=f"load {heading} {llm_id}"))
        # With limits on lengths the answers rest on some of the points alone.
        if is_measured and not slo.lengths and (basis := of_points(llm_curves, usd, slo)):
            id_prefix = f"what-if-{len(decisions)}"
            shown.append(what_if_widget(basis, id_prefix=id_prefix, fold=llm_id))
        parts.append(Section(f"{llm_id} ({how}): {deployment_cell(first)}", shown, is_detail=True))
    return Section(heading, parts)


def _card_blocks(card: Row, others: Sequence[Row], slo: SLO) -> list[Block]:
    """Return a deployment's cost, its room to the limits, and other predictors' answers."""
    names = card["not_measured"]
    missing = []
    if card["basis"] == MEASURED and names:
        few = ", ".join(names) if len(names) <= 4 else f"{len(names)} other GPU profiles"
        missing = [Note(f"Not measured on {few}.", "soft")]
    if card["gpu_profile_id"] is None:
        return [Headline(f"No GPU profile meets this SLO; {stored.miss_words(card)}."), *missing]
    about = card["headroom"]
    price = text.price_words(about) if about else f"{card['usd_per_hour']:,.2f} USD/h"
    facts = [("Price", price)]
    if card["probability_met"] is not None:
        rests_on = f"; {text.OPEN_WORDS}" if about and about.is_open else ""
        facts.append(("Probability to meet the SLO", chance(card["probability_met"]) + rests_on))
    if about:
        load = plural(about.users_per_replica, "user")
        if about.level_users != about.users_per_replica:
            load += f", judged at {number(about.level_users)}, the next load tried"
        facts.append(("Load of a replica", load))
        facts += [(text.limit_words(row), text.room_words(row, slo)) for row in about.limits]
        facts.append(("If a replica is lost", text.loss_words(about, slo)))
    # A predictor that decides at once compares no profiles.
    if card["alternatives"] or card["users_per_replica"] is not None:
        best = card["alternatives"][:1]
        facts.append(
            ("Next best", text.next_words(NextBest(**best[0])) if best else "no other GPU profile")
        )
    if others:
        answers = "; ".join(f"{row['predictor']}: {deployment_cell(row)}" for row in others)
        facts.append(("Other predictors", answers))
    return [Facts(facts), *missing]


def _other_answers(tables: Tables) -> list[Block]:
    """Return what was simulated: capacity for each SLO and LLM, and the fleet."""
    slos = {row["slo_id"]: row for row in (*tables["slo"], *tables["trace_slo"])}
    header = ["LLM", "replicas", "price", "probability", "why", "a month (730 h)"]
    header.append("if a replica fails in the busiest minute")
    sections: list[Block] = []
    for (source, slo_id), rows in group_by(tables["capacity"], "source", "slo_id").items():
        by_llm = group_by(rows, "llm_id").items()
        cells = [[llm_id, *_capacity_cells(of_llm)] for (llm_id,), of_llm in by_llm]
        page = f"../capacity/{file_name(source)}/{file_name(slo_id)}/index.html"
        blocks: list[Block] = [
            Headline(f"{slo_words(slos[slo_id])}, simulated"),
            Table(header, cells, range(len(header))),
            Note("Timeline, and what would change it: its page in the folder capacity.", link=page),
        ]
        sections.append(Section(slo_id, blocks))
    parts: list[Block] = []
    if sections:
        note = (
            "The fewest replicas that meet an SLO in every window of time while requests arrive at "
            "their own times, simulated step by step. The answer above takes a rate as a steady "
            "load, which may need fewer."
        )
        parts.append(Section("Capacity", [Note(note), *sections]))
    if demands := tables["fleet"]:
        others = [row["demand_id"] for row in demands if row["status"] != "served"]
        words = f"{len(demands) - len(others)} of {plural(len(demands), 'demand')} served"
        words += f"; not served: {', '.join(others)}." if others else "."
        page = f"fleet/{file_name(demands[0]['source'])}/index.html"
        note = f"Which demand gets which GPUs, and what binds: {page} of the results."
        parts.append(Section("Fleet", [Headline(words), Note(note)]))
    return parts


def _capacity_cells(rows: Sequence[Row]) -> list[str]:
    if rows[0]["gpu_profile_id"] is None:
        return ["no answer", "", "", rows[0]["reason"]]
    nearest = min(rows, key=lambda row: (not row["is_chosen"], row["alone_ratio"] or math.inf))
    if not nearest["is_chosen"]:
        return outcome_cells(CapacityOutcome.of_row(nearest))
    month = f"{number(HOURS_PER_MONTH * nearest['usd_per_hour'])} USD"
    missed = plural(nearest["n_windows_missed_by_failure"], "window")
    cells = outcome_cells(CapacityOutcome.of_row(nearest))
    return [*cells, month, f"{missed} of {nearest['n_windows']} missed"]


def _feasibility_blocks(tables: Tables) -> list[Block]:
    """Return LLMs by GPU profiles of each workload and scenario."""
    words = (
        "✓ with the batch weight, the most tokens (input and output of all requests in flight) "
        "that the server may hold; or why the LLM cannot be served there."
    )
    listed = tables["gpu_profile"]
    blocks = list[Block]()
    types = [*dict.fromkeys(row["gpu_id"] for row in listed)]  # the cheapest first
    listed = sorted(listed, key=lambda row: (types.index(row["gpu_id"]), row["n_gpus"]))
    profile_ids = [row["gpu_profile_id"] for row in listed]
    tried = group_by(tables["feasibility"], "source", "workload_id", "scenario_id")
    for key, rows in tried.items():
        profiles = [*profile_ids, *sorted({row["gpu_profile_id"] for row in rows} - {*profile_ids})]
        reasons = {row["reason"] for row in rows if not row["is_feasible"]}
        cells = {}
        counts = Counter[tuple[str, str]]()
        for row in rows:
            kind = ProbeOutcome(row["verdict"]).kind
            weight = row["batch_weight_tokens"]
            mark = _MARKS.get(kind, "–")
            size = f" {number(weight)}" if row["is_feasible"] and weight is not None else ""
            cells[row["llm_id"], row["gpu_profile_id"]] = mark + size
            # Of many different reasons only the kind.
            why = row["reason"] if len(reasons) <= _MAX_REASONS else kind.value
            counts[mark, "can be served" if row["is_feasible"] else why] += 1
        llm_ids = sorted({row["llm_id"] for row in [*tables["llm"], *rows]})
        lines = [[llm, *(cells.get((llm, profile), "") for profile in profiles)] for llm in llm_ids]
        order = sorted(counts.items(), key=lambda item: ("✓✗–".index(item[0][0]), item[0][1]))
        legend = " ".join(f"{mark} {reason}: {count}." for (mark, reason), count in order)
        table = Table(["LLM", *profiles], lines, range(len(profiles) + 1), note=legend)
        blocks.append(Section(" · ".join(key), [table]))
    return [Note(words), *blocks] if blocks else [Note("No cell was tried yet.", "soft")]


def _point_blocks(tables: Tables) -> list[Block]:
    points = tables["point"]
    if not points:
        return [Note("No points are measured yet.", "soft")]
    blocks: list[Block] = []
    if n_published := sum(bool(point["is_published_median"]) for point in points):
        words = (
            f"Of {number(n_published)} of the {number(len(points))} points only the medians of "
            "nTTFT and ITL are published, without requests; they count in recommendations and "
            "scores, but have no throughput."
        )
        blocks.append(Note(words))
    for key, rows in group_by(points, *SETTING).items():
        level = stored.LEVEL_NAMES.get(rows[0]["scenario_kind"], "level").capitalize()
        header = [_POINT_LABELS.get(name, level) for name in _POINT_COLUMNS]
        table = Table(header, [[row[name] for name in _POINT_COLUMNS] for row in rows], (0, 1))
        title = f"{plural(len(rows), 'point')}: {' · '.join(key)}"
        blocks.append(Section(title, [table], is_detail=True))
    return blocks


def _trust_blocks(tables: Tables, answers: Sequence[Row]) -> list[Block]:
    words = (
        "Each measured LLM was hidden in turn and recommended for from the others, among the GPU "
        "profiles that it fits on; only static_policy, one answer for all, is chosen in hindsight. "
        "MAPE is the mean absolute error relative to the measured latency. An LLM that no profile "
        "serves within the limits is left out; failed requests enter no latency. ▲ first measures "
        "the hidden LLM on two reference GPU profiles, and is not credited for these."
    )
    scores = by_source(tables, stored.score_blocks)
    if not scores:
        return [Note(words), Note("No predictor was judged.", "soft")]
    notes = {f"{row['predictor']}: {row['note']}." for row in tables["score"] if row["note"]}
    blocks: list[Block] = [Note(words), *scores, Facts(sorted(notes))]
    shown = {a["heading"]: [s for s in a["scores"] if s["overspend"] is not None] for a in answers}
    if charts := [
        _score_chart(*heading_scores) for heading_scores in shown.items() if heading_scores[1]
    ]:
        words = "Each mark is a predictor: the farther up and left, the better it recommends."
        blocks += [Note(f"{words} Lines join equal S/O."), *charts]
    for answer in answers:
        if answer["held_out_by"]:
            title = f"{answer['heading']}: recommendations for hidden LLMs"
            blocks.append(Section(title, [_held_out_table(answer)]))
    if charts := [*_prediction_charts(tables, answers)]:
        words = (
            "A panel is an LLM that the predictor was not shown, with its MAPE. On the line a "
            "prediction is exact; below it, the predictor is too hopeful."
        )
        title = "Predicted against measured latencies of hidden LLMs"
        blocks.append(Section(title, [Note(words), *charts]))
    return blocks


def _held_out_table(answer: Row) -> Table:
    def priced(row: Row) -> str:
        if row["gpu_profile_id"] is None:
            return "none"
        return f"{deployment_cell(row)} {number(row['usd_per_hour'])} USD/h"

    rows = []
    for row in answer["answers"]:
        if row["basis"] != MEASURED:
            continue
        rows.append([row["llm_id"], priced(row)])
        for guesses in answer["held_out_by"].values():
            guess = guesses.get(row["llm_id"])
            cell = "–"
            if guess is not None:
                cell = "✗" if guess["is_success"] is not None else "(not judged)"
                cell = f"✓ +{percent(guess['overspend'])}" if guess["is_success"] else cell
                cell = f"{priced(guess)} {cell}"
            rows[-1].append(cell)
    header = ["LLM", "optimum (measured)", *map(marked, answer["held_out_by"])]
    note = (
        "✓ carries all users within the limits, at so much above the optimum's cost; ✗ does not; "
        "not judged: no profile meets the SLO."
    )
    return Table(header, rows, range(len(header)), note=note)


def _load_panel(metric: str, curves: pd.DataFrame, slo: SLO, card: Row) -> Panel:
    limit_ms, percentile = slo.limits[metric]
    lines = []
    drawn = [limit_ms]
    loads = []
    for profile_id, curve in curves.groupby("gpu_profile_id"):
        y, low, high = (limited(curve, slo, end)[metric] for end in ("", *ENDS))
        x = replica_load(curve, slo)
        ringed: list[int] = []
        if card["gpu_profile_id"] == profile_id and card["headroom"]:
            is_there = curve["users"].to_numpy() == card["headroom"].level_users
            ringed = np.flatnonzero(is_there).tolist()
        # Where an end is not known the interval stops at the latency itself.
        bottom, top = (np.where(np.isnan(end), y, end) for end in (low, high))
        lines.append(Curve(profile_id, x, y, bottom, top, ringed=ringed))
        # A wide interval would squeeze the curves: what lies beyond a factor of 2 is cut.
        drawn += [value for end in (y, low.clip(min=y / 2), high.clip(max=y * 2)) for value in end]
        loads += x[np.isfinite(x)].tolist()
    sides = [0.9 * min(loads, default=1), 1.1 * max(loads, default=1)]
    label = f"limit {number(limit_ms)} ms"
    lines.append(Curve(label, sides, [limit_ms, limit_ms], is_reference=True))
    name = METRICS[metric]
    unit = "ms/token" if metric == "nttft" else "ms"
    low_ms = np.nanmin(drawn) / 1.3
    high_ms = np.nanmax(drawn) * 1.4
    levels = sorted(set(curves["users"])) if slo.users is not None else []
    ticks = levels if 0 < len(levels) <= _MAX_TICKS else None
    load = "Users" if slo.users is not None else "Requests a second"
    x_axis = Axis(f"{load} of a replica", True, ticks, ticks and [str(level) for level in ticks])
    label = f"{PERCENTILE_PREFIX[percentile]} {name} ({unit})"
    return Panel("", x_axis, Axis(label, is_log=True, low=low_ms, high=high_ms), lines)


def _score_chart(heading: str, scores: Sequence[Row]) -> Chart:
    """Draw success over overspend in percent (LLM-Pilot, Fig. 8); lines join equal S/O."""
    lines = [
        Curve(
            f"{marked(row['predictor'])}: S/O {percent(row['so_score'])}",
            [min(100 * row["overspend"], _MOST_OVERSPEND)],
            [100 * row["success_rate"]],
        )
        for row in scores
    ]
    for so_score in _EQUAL_SCORES:
        # Eq. 7 of LLM-Pilot solved for S, from where S is 1.
        thrift = np.linspace(so_score / (2 - so_score), 1, 60)
        success = so_score * thrift / (2 * thrift - so_score)
        name = f"S/O {100 * so_score:.0f} %"
        lines.append(Curve(name, 100 * (1 - thrift), 100 * success, is_reference=True))
    x = Axis("Relative overspend O (%)")
    y = Axis("Success rate S (%)", low=-4, high=106)
    title = f"Success against overspend, {heading}"
    svg = panels_figure([Panel("", x, y, lines)], title, height_in=3.6, has_points=True)
    return Chart(svg, title=heading, name=f"so_scores {heading}")


def _prediction_charts(tables: Tables, answers: Sequence[Row]) -> Iterator[Chart]:
    """Yield predicted against measured latencies, of each SLO and predictor of latencies."""
    for answer in answers:
        for predictor in (score["predictor"] for score in answer["scores"]):
            pairs = stored.prediction_pairs(tables, answer["slo"], answer["source"], predictor)
            if pairs:
                name = f"{answer['heading']} · {predictor}"
                svg = prediction_figure(pairs, f"Predicted against measured, {name}")
                caption = f"{plural(len(pairs), 'point')}."
                yield Chart(svg, caption, marked(name), f"prediction {name}")


def prediction_figure(pairs: Sequence[Row], title: str) -> str:
    """Draw `prediction_pairs`, a panel per LLM and latency, with its MAPE."""
    panels = []
    for name, words in stored.TARGET_NAMES.items():
        true = f"true_{name}_ms"
        predicted = f"{name}_ms"
        known_pairs = [pair for pair in pairs if pair[true] and pair[predicted] is not None]
        values = [pair[column] for pair in known_pairs for column in (true, predicted)]
        shown = [value for value in values if value > FLOOR_MS] or [0.5, 2.0]
        ends = [min(shown) / 1.3, max(shown) * 1.3]
        axis = Axis("", is_log=True, low=ends[0], high=ends[1])
        labels = (f"Measured {words} (ms)", f"Predicted {words}")
        x, y = (axis._replace(label=label) for label in labels)
        for (llm_id,), llm_pairs in group_by(known_pairs, "llm_id").items():
            errors = [abs(pair[predicted] - pair[true]) / pair[true] for pair in llm_pairs]
            drawn = [pair for pair in llm_pairs if pair[predicted] > FLOOR_MS]
            across, up = ([pair[column] for pair in drawn] for column in (true, predicted))
            points = Curve("a GPU profile and load", across, up, is_marks=True)
            lines = [points, Curve("", ends, ends, is_reference=True)]
            panels.append(Panel(f"{llm_id}: {percent(float(np.mean(errors)))}", x, y, lines))
    return panels_figure(panels, title, n_columns=3, height_in=2.2)
