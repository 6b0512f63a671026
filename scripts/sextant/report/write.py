"""The report of a store as a page, with its data as JSON."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sextant.answer.capacity.document import profile_cells
from sextant.answer.text import (
    OPEN_WORDS,
    limit_words,
    loss_words,
    next_words,
    price_words,
    room_words,
)
from sextant.answer.what_if import of_points, what_if_widget
from sextant.base.files import Row, group_by, provenance
from sextant.base.sheets import file_name
from sextant.decide.headroom import measure_headroom
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.facts.slo import SLO
from sextant.pages.blocks import (
    Block,
    Document,
    Facts,
    Headline,
    Note,
    Section,
    Table,
    Widget,
)
from sextant.pages.page import write_page
from sextant.pages.wording import chance, number, plural
from sextant.points.metrics import POINT_LABELS, SETTING, warnings
from sextant.points.verdict import Kind, Outcome
from sextant.report.answers import (
    LEVEL_NAMES,
    deployment,
    held_out,
    load_curves,
    miss_words,
    recommendations,
    slo_answers,
    slo_words,
    verdict,
)
from sextant.report.overview import answer_blocks, by_source, marked, score_blocks
from sextant.report.store_tables import (
    MEASURED,
    Tables,
    price_lines,
    prices,
    provenance_facts,
    read_tables,
)

_MAX_WIDE_PROFILES = 6
"""With more GPU profiles a table of words does not fit a page."""
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


def write_report(database: Path, html_out: Path, json_out: Path, figures_out: Path) -> None:
    """Write the report of a store; the same store gives the same bytes.

    The page needs no other file, and links to the pages of capacity. JSON has the decisions of SLOs
    shown in full (`decide.headroom`), SLOs, recommendations, held-out recommendations, scores,
    capacity, feasibility, prices, warnings and provenance, with the store's column names, for every
    SLO. What was in the folder of the figures, an SVG file each, goes.
    Raises InputError as `read_tables` does.
    """
    tables = read_tables(database)
    origin = provenance({"store": database}) | {"store": provenance_facts(tables)}
    answers = slo_answers(tables)
    curves = [load_curves(tables, each["source"], SLO(**each["slo"])) for each in answers]
    cards = [_cards(*pair) for pair in zip(answers, curves, strict=True)]
    decisions = []
    for answer, own in zip(answers, cards, strict=True):
        place = {"source": answer["source"], "slo_id": answer["slo"]["slo_id"]}
        decisions += [{name: (place | card)[name] for name in _DECISION} for card in own]
    document = Document(
        "Sextant report",
        [
            Section("What to rent", _decision_blocks(tables, answers, curves, cards), key="answer"),
            *_capacity_part(tables),
            *_fleet_part(tables),
            *_doubt_part(tables),
            Section("Feasibility", _feasibility_blocks(tables)),
            Section("Points", _point_blocks(tables)),
            *_trace_part(tables),
            Section("How much to trust predictions", _trust_blocks(tables, answers), key="trust"),
        ],
        {
            "decisions": decisions,
            "slos": [*tables["slo"], *tables["trace_slo"]],
            "recommendations": recommendations(tables),
            "held_out": held_out(tables),
            "scores": tables["score"],
            "capacity": tables["capacity"],
            "feasibility": tables["feasibility"],
            "prices": [each._asdict() for each in prices(tables)],
            "warnings": warnings(tables["point"]),
            "provenance": origin,
        },
        "The cheapest GPU profile, and how many replicas of it, that meet each SLO (latency "
        "limits under a load).",
        origin,
    )
    write_page(document, html_out, json_out, figures_out)


def _cards(answer: Row, curves: pd.DataFrame) -> list[Row]:
    """Return each LLM's measured answer, or that of the best judged predictor.

    With its `headroom` (None where nothing is recommended, or a predictor decides without
    latencies), and `others`, the answers of other predictors.
    """
    cards = []
    for (_,), (first, *others) in group_by(answer["answers"], "llm_id").items():
        own = curves
        for name in ("predictor", "llm_id", "gpu_profile_id"):
            own = own[own[name] == first[name]]
        about = None
        if len(own):
            slo, size = SLO(**answer["slo"]), (first["replicas"], first["usd_per_hour"])
            about = measure_headroom(own, slo, *size)
        cards.append({**first, "headroom": about, "others": others})
    return cards


def _decision_blocks(
    tables: Tables,
    answers: Sequence[Row],
    curves: Sequence[pd.DataFrame],
    cards: Sequence[Sequence[Row]],
) -> list[Block]:
    from sextant.report.figures import load_chart

    overview = by_source(tables, answer_blocks)
    if not overview:
        return [Note("The store has no SLO, so there is nothing to recommend.")]
    words = (
        "Below, for each SLO and LLM: the price, the headroom to each limit (in percent, and as "
        "load of all replicas together), and latency over the load of one replica. Each curve is a "
        "GPU profile; bars are 90% intervals, open-ended where too few requests were measured; the "
        "ring marks the recommended load."
    )
    blocks = [*overview, *(Note(line, "soft") for line in (*price_lines(tables), words))]
    for position, answer in enumerate(answers):
        parts: list[Block] = [Note(f"Limits: {slo_words(answer['slo'])}.")]
        curve = curves[position]
        what_ifs = _what_ifs(tables, curve, SLO(**answer["slo"]), f"what-if-{position}")
        for card in cards[position]:
            chart = load_chart(curve, answer, card)
            llm_id, basis = card["llm_id"], card["basis"]
            how = basis if basis == MEASURED else f"predicted by {card['predictor']}"
            title = f"{llm_id} ({how}): {deployment(card)}"
            shown = [*_card_blocks(card, answer["slo"]), *([chart] if chart else [])]
            shown += [what_ifs[llm_id]] if llm_id in what_ifs else []
            parts.append(Section(title, shown, is_detail=True))
        blocks.append(Section(answer["heading"], parts))
    return blocks


def _what_ifs(tables: Tables, curves: pd.DataFrame, slo: SLO, place: str) -> dict[str, Widget]:
    """Return, by measured LLM, the part of a page in which the question can be changed."""
    prices = {row["gpu_profile_id"]: row["usd_per_hour"] for row in tables["gpu_profile"]}
    if slo.lengths:  # its answers rest on some of the points alone
        return {}
    made = {
        llm_id: of_points(own, prices, slo)
        for llm_id, own in curves[curves["predictor"] == MEASURED].groupby("llm_id")
    }
    return {
        llm_id: what_if_widget(basis, place=f"{place}-{position}", fold=llm_id)
        for position, (llm_id, basis) in enumerate(made.items())
        if basis is not None
    }


def _card_blocks(card: Row, slo: Row) -> list[Block]:
    """Return what an LLM's deployment costs, its room to the limits and what would change it."""
    names, missing = card["not_measured"], []
    if card["basis"] == MEASURED and names:
        few = ", ".join(names) if len(names) <= 4 else f"{len(names)} other GPU profiles"
        missing = [Note(f"Not measured on {few}.", "soft")]
    if card["gpu_profile_id"] is None:
        return [Headline(f"No GPU profile meets this SLO; {miss_words(card)}."), *missing]
    about = card["headroom"]
    facts = [("Price", price_words(about) if about else f"{card['usd_per_hour']:,.2f} USD/h")]
    if card["probability_met"] is not None:
        rests_on = f"; {OPEN_WORDS}" if about and about["is_open"] else ""
        facts.append(("Probability to meet the SLO", chance(card["probability_met"]) + rests_on))
    if about:
        each = plural(about["users_per_replica"], "user")
        judged = ""
        if about["level_users"] != about["users_per_replica"]:
            judged = f", judged at {number(about['level_users'])}, the next load tried"
        facts.append(("Load of a replica", each + judged))
        facts += [(limit_words(row), room_words(row, slo)) for row in about["limits"]]
        facts.append(("If a replica is lost", loss_words(about, slo)))
    # A predictor that decides at once compares no profiles.
    if card["alternatives"] or card["users_per_replica"] is not None:
        best = card["alternatives"][:1]
        facts.append(("Next best", next_words(best[0]) if best else "no other GPU profile"))
    if card["others"]:
        others = [f"{row['predictor']}: {deployment(row)}" for row in card["others"]]
        facts.append(("Other predictors", "; ".join(others)))
    return [Facts(facts), *missing]


def _capacity_part(tables: Tables) -> list[Block]:
    """Return a section for each SLO that was simulated: what is chosen for each LLM, or the GPU
    profile that comes nearest and why it misses.
    """
    slos = {row["slo_id"]: row for row in (*tables["slo"], *tables["trace_slo"])}
    header = ["LLM", "replicas", "price", "probability", "why", "a month (730 h)"]
    header.append("if a replica fails in the busiest minute")
    note = (
        "The fewest replicas that meet an SLO in every window of time while requests arrive at "
        "their own times, simulated step by step. The answer above takes a rate as a steady load, "
        "which may need fewer."
    )
    found: list[Block] = [Note(note)]
    for (source, slo_id), rows in group_by(tables["capacity"], "source", "slo_id").items():
        by_llm = group_by(rows, "llm_id").items()
        cells = [[llm_id, *_capacity_cells(of_llm)] for (llm_id,), of_llm in by_llm]
        page = f"../capacity/{file_name(source)}/{file_name(slo_id)}/index.html"
        blocks: list[Block] = [
            Headline(f"{slo_words(slos[slo_id])}, simulated"),
            Table(header, cells, range(len(header))),
            Note("Timeline, and what would change it: its page in the folder capacity.", link=page),
        ]
        found.append(Section(slo_id, blocks))
    return [Section("Capacity", found)] if len(found) > 1 else []


def _capacity_cells(rows: Sequence[Row]) -> list[str]:
    if rows[0]["gpu_profile_id"] is None:
        return ["no answer", "", "", rows[0]["reason"]]
    nearest = min(rows, key=lambda row: (not row["is_chosen"], row["alone_ratio"] or math.inf))
    if not nearest["is_chosen"]:
        return profile_cells(nearest)
    month = f"{number(HOURS_PER_MONTH * nearest['usd_per_hour'])} USD"
    missed = plural(nearest["n_windows_missed_by_failure"], "window")
    return [*profile_cells(nearest), month, f"{missed} of {nearest['n_windows']} missed"]


def _fleet_part(tables: Tables) -> list[Block]:
    rows = tables["fleet"]
    if not rows:
        return []
    served = [row["demand_id"] for row in rows if row["status"] == "served"]
    others = [row["demand_id"] for row in rows if row["status"] != "served"]
    words = f"{len(served)} of {plural(len(rows), 'demand')} served"
    words += f"; not served: {', '.join(others)}." if others else "."
    page = f"fleet/{file_name(rows[0]['source'])}/index.html"
    note = f"Which demand gets which GPUs, and what binds: {page} of the results."
    return [Section("Fleet", [Headline(words), Note(note)])]


def _trace_part(tables: Tables) -> list[Block]:
    rows = tables["trace"]
    links: list[Block] = [
        Note(
            f"Trace {row['trace_id']}: traces/{file_name(row['trace_id'])}.html next to this page."
        )
        for row in rows
    ]
    text = "What each trace is like, and how faithful the workloads are that were fitted to it:"
    return [Section("Traces and workloads", [Note(text), *links])] if rows else []


def _doubt_part(tables: Tables) -> list[Block]:
    """Return what makes points doubtful, with the places concerned."""
    n_settings = len(group_by(tables["point"], *SETTING))
    found: list[Block] = []
    for warning in warnings(tables["point"]):
        places = []
        for place in warning["places"]:
            levels = ", ".join(map(str, place["levels"]))
            kind = LEVEL_NAMES.get(place["scenario_kind"], "level")
            of = f" ({' · '.join(place[name] for name in SETTING)})" if n_settings > 1 else ""
            places.append(f"{place['llm_id']} on {place['gpu_profile_id']}, {kind} {levels}{of}")
        n_points = f"{number(warning['n_points'])} of {number(len(tables['point']))} points"
        found.append(Section(f"{warning['text']}: {n_points}.", [Facts(places)], is_detail=True))
    return [Section("Doubtful points", found)] if found else []


def _feasibility_blocks(tables: Tables) -> list[Block]:
    groups = group_by(tables["feasibility"], "source", "workload_id", "scenario_id")
    if not groups:
        return [Note("No cell was tried yet.", "soft")]
    text = (
        "The batch weight is the most tokens, input and output of all requests in flight, that "
        "the server may hold; or why the LLM cannot be served there."
    )
    found = [
        Section(" · ".join(key), [_feasibility_table(tables, rows)]) for key, rows in groups.items()
    ]
    return [Note(text), *found]


def _feasibility_table(tables: Tables, rows: Sequence[Row]) -> Table:
    """Return LLMs by GPU profiles of one workload and scenario: marks, or words where they fit."""
    listed = [
        (row["gpu_id"], row["n_gpus"], row["gpu_profile_id"]) for row in tables["gpu_profile"]
    ]
    types = [*dict.fromkeys(gpu_id for gpu_id, _, _ in listed)]  # the cheapest first
    listed.sort(key=lambda each: (types.index(each[0]), each[1]))
    profiles = [profile_id for _, _, profile_id in listed]
    profiles += sorted({row["gpu_profile_id"] for row in rows} - {*profiles})
    known = any(row["batch_weight_tokens"] is not None for row in rows if row["is_feasible"])
    has_words = len(profiles) <= _MAX_WIDE_PROFILES and known
    marks = {id(row): _MARKS.get(Outcome(row["verdict"]).kind, "–") for row in rows}
    cells = {
        (row["llm_id"], row["gpu_profile_id"]): marks[id(row)]
        + (f" {_feasibility_words(row)}" if has_words else "")
        for row in rows
    }
    llm_ids = sorted({row["llm_id"] for row in [*tables["llm"], *rows]})
    lines = [[llm, *(cells.get((llm, profile), "") for profile in profiles)] for llm in llm_ids]
    reasons = {row["reason"] for row in rows if not row["is_feasible"]}
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        # Of many different reasons only the kind.
        why = row["reason"] if len(reasons) <= _MAX_REASONS else Outcome(row["verdict"]).kind.value
        counts[marks[id(row)], "can be served" if row["is_feasible"] else why] += 1
    order = sorted(counts.items(), key=lambda item: ("✓✗–".index(item[0][0]), item[0][1]))
    legend = " ".join(f"{mark} {words}: {count}." for (mark, words), count in order)
    return Table(["LLM", *profiles], lines, range(len(profiles) + 1), note=legend)


def _feasibility_words(row: Row) -> str:
    if not row["is_feasible"]:
        return row["reason"]
    if row["batch_weight_tokens"] is None:
        return "it ran already: memory and batch weight are not known"
    return (
        f"{number(row['batch_weight_tokens'])} tokens; weights {number(row['weight_gib'])} GiB, "
        f"KV cache {number(row['kv_gib'])} GiB; {plural(row['n_server_starts'], 'server start')}"
    )


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
        level = LEVEL_NAMES.get(rows[0]["scenario_kind"], "level").capitalize()
        labels = {name: _POINT_LABELS.get(name, level) for name in _POINT_COLUMNS}
        cells = [[row[name] for name in labels] for row in rows]
        table = Table([*labels.values()], cells, (0, 1))
        title = f"{plural(len(rows), 'point')}: {' · '.join(key)}"
        blocks.append(Section(title, [table], is_detail=True))
    return blocks


def _trust_blocks(tables: Tables, answers: Sequence[Row]) -> list[Block]:
    from sextant.report.figures import prediction_charts, score_charts

    text = (
        "Each measured LLM was hidden in turn and recommended for from the others, among the GPU "
        "profiles that it fits on; only static_policy, one answer for all, is chosen in hindsight. "
        "MAPE is the mean absolute error of predicted latencies, relative to the measured ones. "
        "An LLM that no profile serves within the limits cannot be judged and is left out. Failed "
        "requests enter no latency, so no SLO accounts for them. ▲ first measures the hidden LLM "
        "on two reference GPU profiles, and is not credited for these."
    )
    scores = by_source(tables, score_blocks)
    if not scores:
        return [Note(text), Note("No predictor was judged.", "soft")]
    notes = {f"{row['predictor']}: {row['note']}." for row in tables["score"] if row["note"]}
    blocks: list[Block] = [Note(text), *scores, Facts(sorted(notes))]
    if charts := score_charts(answers):
        words = "Each mark is a predictor: the farther up and left, the better it recommends."
        blocks += [Note(f"{words} Lines join equal S/O."), *charts]
    blocks += [
        Section(f"{answer['heading']}: recommendations for hidden LLMs", [_held_out_table(answer)])
        for answer in answers
        if answer["held_out_by"]
    ]
    if charts := prediction_charts(tables, answers):
        words = (
            "A panel is an LLM that the predictor was not shown, with the mean absolute error "
            "relative to the measured latency; axes are logarithmic. On the line a prediction is "
            "exact; below it, the predictor is too hopeful."
        )
        title = "Predicted against measured latencies of hidden LLMs"
        blocks.append(Section(title, [Note(words), *charts]))
    return blocks


def _held_out_table(answer: Row) -> Table:
    rows = []
    for row in answer["answers"]:
        if row["basis"] == MEASURED:
            guesses = [own.get(row["llm_id"]) for own in answer["held_out_by"].values()]
            cells = [f"{_priced(each)} {verdict(each)}" if each else "–" for each in guesses]
            rows.append([row["llm_id"], _priced(row), *cells])
    header = ["LLM", "optimum (measured)", *map(marked, answer["held_out_by"])]
    note = (
        "✓ carries all users within the limits, at so much above the optimum's cost; ✗ does not; "
        "not judged: no profile meets the SLO."
    )
    return Table(header, rows, range(len(header)), note=note)


def _priced(row: Row) -> str:
    if row["gpu_profile_id"] is None:
        return "none"
    return f"{deployment(row)} {number(row['usd_per_hour'])} USD/h"
