"""The page of a fleet: who runs where, what binds, and devices by hour."""

import json
from dataclasses import replace

import numpy as np
import pytest

from html_page import Page, figure_texts
from sextant.answer.fleet.document import devices_used, fleet_document
from sextant.answer.fleet.planning import answer_fleet
from sextant.base.files import provenance
from sextant.decide.fleet import Demand, Option, Pool
from sextant.facts.slo import SLO
from sextant.pages.page import write_page

POOLS = [Pool("rack", "A", 2, 4, 2.0), Pool("cloud", "A", 1, 8, 3.0, is_owned=False)]
DAY, NIGHT = (1.0, 0.25), (0.25, 1.0)


def answer_of(*loads, is_elastic=False):
    """An answer for demands with shares of 200 users by slot; a replica of one device serves 50.

    Where there are five, the last one comes last.
    """
    demands, options = [], []
    for place, shares in enumerate(loads):
        slo = SLO(f"s{place}", itl_ms=50, percentile=50, users=200)
        name = f"d{place}"
        demand = Demand(name, f"team {place}", "org__llm", slo, load_shares=shares)
        demands.append(replace(demand, priority=2 if place == 4 else 1))
        options.append(Option(name, "1xA", "A", 1, np.full(20, 50.0), 200 * np.array(shares)))
    return answer_fleet(demands, POOLS, options, {}, is_elastic=is_elastic)


def page_of(answer, folder):
    document = fleet_document(answer, provenance())
    write_page(document, folder / "fleet.html", folder / "fleet.json")
    html = (folder / "fleet.html").read_text()
    return Page(html), html, json.loads((folder / "fleet.json").read_text())


def test_the_page_says_who_runs_where_at_what_cost(tmp_path):
    answer = answer_of((1.0,), (1.0,))
    page, _, facts = page_of(answer, tmp_path)
    for words in (
        "Who runs where",
        "4 × 1xA",
        "8 of 8",
        "16.00",
        "Teams",
        "What would change it",
        "LLM",
        "USD/h",
    ):
        assert words in page.text
    assert "Not served" not in page.text
    assert all(link.startswith("#") for link in page.links)
    assert facts["plan"]["usd_per_hour"] == answer.plan.usd_per_hour == 16


@pytest.mark.parametrize("is_elastic", [False, True])
def test_devices_by_team_and_hour_add_up_to_what_is_in_use(is_elastic, tmp_path):
    answer = answer_of(DAY, NIGHT, is_elastic=is_elastic)
    uses = devices_used(answer.plan)
    for use in answer.plan.pools:
        mine = [devices for (pool, _), devices in uses.items() if pool == use.pool.pool_id]
        assert sum(mine, np.zeros(len(use.devices_used), int)).tolist() == list(use.devices_used)
    if is_elastic:
        texts = set(figure_texts(page_of(answer, tmp_path)[1]))
        assert {"Hour of the day", "rack", "cloud", "team 0", "team 1"} <= texts
    n_by_team = {team: devices.tolist() for (_, team), devices in uses.items()}
    assert n_by_team == (
        {"team 0": [4, 1], "team 1": [1, 4]} if is_elastic else {"team 0": [4], "team 1": [4]}
    )
