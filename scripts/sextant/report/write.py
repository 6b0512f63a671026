"""The report of a store as a page, with its data as JSON."""

import json
import math
from collections import Counter
from pathlib import Path

from sextant.base.files import group_by, provenance
from sextant.base.sheets import file_name
from sextant.capacity.answer import CapacityOutcome
from sextant.capacity.document import outcome_cells
from sextant.experiment.scenarios import KINDS
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.page import write_page
from sextant.pages.words import number, plural
from sextant.points.metrics import POINT_LABELS, SETTING, warnings
from sextant.points.verdict import Kind, ProbeOutcome
from sextant.report.answers import (
    answer_blocks,
    by_source,
    key_figures,
    price_lines,
    prices,
    slo_words,
)
from sextant.report.cards import slo_sections
from sextant.report.stored import Tables, read_tables, recommendations, slo_reports, slos_by_id
from sextant.report.trust import trust_blocks
from sextant.studies.study import doubtful_places

_CARDS_NOTE = (
    "The price, the room to each limit, and latency over the load of one replica. Each curve is a "
    "GPU profile; bars are 90% intervals, open-ended where too few requests were measured; the "
    "ring marks the recommended load."
)
_MAX_REASONS = 3
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
    """Write the report of a store for every SLO: a page, JSON, and a folder of figures.

    JSON has the store's column names. The former content of the folder is deleted. The same store
    gives the same bytes.
    """
    tables = read_tables(database)
    store_provenance = {row["key"]: json.loads(row["value"]) for row in tables["provenance"]}
    origin = provenance({"store": database}) | {"store": store_provenance}
    reports = slo_reports(tables)
    of_slos, decisions = slo_sections(tables, reports)
    overview = by_source(tables, answer_blocks)
    top: list[Block] = []
    if overview and isinstance(overview[0], Headline):
        top = [overview.pop(0)]
    top.append(key_figures(tables))
    to_rent: list[Block] = [Note("The store has no SLO, so there is nothing to recommend.")]
    if overview:
        notes = [Note(line, "soft") for line in price_lines(tables)]
        to_rent = [*overview, *notes]
    doubts = []
    for warning in warnings(tables["point"]):
        count = f"{number(warning['n_points'])} of {number(len(tables['point']))} points"
        title = f"{warning['text']}: {count}."
        doubts.append(Section(title, [Facts(doubtful_places(warning))], is_detail=True))
    ids = [row["trace_id"] for row in tables["trace"]]
    links = [
        Note(
            f"Trace {name}, and how faithful its workloads are",
            link=f"traces/{file_name(name)}.html",
        )
        for name in ids
    ]
    document = Document(
        "Sextant report",
        [
            *top,
            Section("What to rent", to_rent, key="answer"),
            *([Section("LLM by LLM", [Note(_CARDS_NOTE, "soft"), *of_slos])] if overview else []),
            *_other_answers(tables),
            Section("How much to trust predictions", trust_blocks(tables, reports), key="trust"),
            Section("Feasibility", _feasibility_blocks(tables)),
            Section("Points", _point_blocks(tables)),
            *([Section("Doubtful points", doubts)] if doubts else []),
            *([Section("Traces and workloads", links)] if ids else []),
        ],
        {
            "decisions": decisions,
            "slos": [*tables["slo"], *tables["trace_slo"]],
            "recommendations": [answer.to_dict() for answer in recommendations(tables)],
            "held_out": tables["held_out"],
            "scores": tables["score"],
            "capacity": tables["capacity"],
            "feasibility": tables["feasibility"],
            "prices": [price._asdict() for price in prices(tables)],
            "warnings": warnings(tables["point"]),
            "provenance": origin,
        },
        "The cheapest GPU profile, and how many replicas of it, for each LLM under each SLO "
        "(latency limits under a load).",
        origin=origin,
    )
    write_page(document, html_out, json_out, figures_out)


def _other_answers(tables: Tables) -> list[Block]:
    """Return what was simulated: capacity for each SLO and LLM, and the fleet."""
    slos = slos_by_id(tables)
    header = ["LLM", "Replicas", "Price", "Probability", "Why", "A month (730 h)"]
    header.append("If a replica fails in the busiest minute")
    sections: list[Block] = []
    for (source, slo_id), rows in group_by(tables["capacity"], "source", "slo_id").items():
        cells = []
        for (llm_id,), of_llm in group_by(rows, "llm_id").items():
            if of_llm[0]["gpu_profile_id"] is None:
                cells.append([llm_id, "no answer", "", "", of_llm[0]["reason"]])
                continue
            # The chosen GPU profile; without one, the profile that misses least.
            shown = min(of_llm, key=lambda r: (not r["is_chosen"], r["alone_ratio"] or math.inf))
            row = [llm_id, *outcome_cells(CapacityOutcome.of_row(shown))]
            if shown["is_chosen"]:
                month = f"{number(HOURS_PER_MONTH * shown['usd_per_hour'])} USD"
                missed = plural(shown["n_windows_missed_by_failure"], "window")
                row += [month, f"{missed} of {shown['n_windows']} missed"]
            cells.append(row)

        page = f"../capacity/{file_name(source)}/{file_name(slo_id)}/index.html"
        blocks: list[Block] = [
            Headline(f"{slo_words(slos[slo_id])}, simulated"),
            Table(header, cells, range(len(header))),
            Note("Timeline, and what would change it", link=page),
        ]
        sections.append(Section(slo_id, blocks))
    parts: list[Block] = []
    if sections:
        note = (
            "The fewest replicas that meet an SLO while requests arrive at their own times, "
            "simulated step by step. These are the answers above, too. There an LLM without a law "
            "of a step has a steady load, by Little's law, which may need fewer replicas."
        )
        parts.append(Section("Capacity", [Note(note), *sections]))
    if demands := tables["fleet"]:
        others = [row["demand_id"] for row in demands if row["status"] != "served"]
        words = f"{len(demands) - len(others)} of {plural(len(demands), 'demand')} served"
        words += f"; not served: {', '.join(others)}." if others else "."
        page = f"fleet/{file_name(demands[0]['source'])}/index.html"
        link = Note("Which demand gets which GPUs, and what binds", link=f"../{page}")
        parts.append(Section("Fleet", [Headline(words), link]))
    return parts


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
        blocks.append(Section(_setting_words(*key), [table]))
    return [Note(words), *blocks] if blocks else [Note("No cell was tried yet.", "soft")]


def _setting_words(source: str, workload_id: str, scenario_id: str) -> str:
    return f"workload {workload_id}, scenario {scenario_id} ({source})"


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
        scenario = KINDS.get(rows[0]["scenario_kind"])
        level = (scenario.level_words if scenario else "level").capitalize()
        header = [_POINT_LABELS.get(name, level) for name in _POINT_COLUMNS]
        table = Table(header, [[row[name] for name in _POINT_COLUMNS] for row in rows], (0, 1))
        source, workload_id, scenario_id, *_ = key
        title = f"{plural(len(rows), 'point')}: {_setting_words(source, workload_id, scenario_id)}"
        blocks.append(Section(title, [table], is_detail=True))
    return blocks
