"""The fleet's program against brute force, its bounds, and what it says where not all fit."""

import json
import os
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import milp

from html_page import Page
from sextant.base.files import provenance
from sextant.decide.fleet import FleetDemand, FleetOption, GPUPool
from sextant.decide.sizing import size_replicas
from sextant.facts.slo import SLO
from sextant.fleet.answer import Mend
from sextant.fleet.document import fleet_document
from sextant.fleet.plan import answer_fleet, plan_fleet
from sextant.pages.blocks import as_json, as_text
from sextant.pages.page import write_page


def demand(name, users=100, **more):
    slo = SLO(name, itl_ms=50, percentile=50, users=users)
    return FleetDemand(name, f"team {name}", "llm", slo, **more)


def option(name, n_gpus, served, load=100, gpu="A"):
    served = np.atleast_1d(np.array(served, float))
    return FleetOption(name, f"{n_gpus}x{gpu}", gpu, n_gpus, size_replicas(load, served, 1e-9))


def packs(items, n_nodes):
    """Whether replicas of these sizes fit on the nodes, by trying every node for each."""
    if not items:
        return True
    nodes = {tuple(sorted(n_nodes))}
    for size in sorted(items, reverse=True):
        nodes = {
            tuple(sorted((*free[:at], free[at] - size, *free[at + 1 :])))
            for free in nodes
            for at in range(len(free))
            if free[at] >= size
        }
    return bool(nodes)


def cheapest_split(by_gpu, pools):
    """The least cost of these replicas (sizes by GPU) over all splits; None: no room."""
    total = 0.0
    for gpu, items in by_gpu.items():
        own = [pool for pool in pools if pool.gpu_id == gpu]
        least = np.inf
        for split in product(range(len(own)), repeat=len(items)):
            cost = 0.0
            for place, pool in enumerate(own):
                mine = [size for size, at in zip(items, split, strict=True) if at == place]
                size = pool.devices_per_node
                fitting = (n for n in range(pool.nodes + 1) if packs(mine, [size] * n))
                n_nodes = next(fitting, np.inf)
                cost += (sum(mine) if pool.is_owned else n_nodes * size) * pool.usd_per_hour
                cost += 0 if np.isfinite(n_nodes) else np.inf
            least = min(least, cost)
        total += least
    return total if np.isfinite(total) else None


def brute_force(demands, pools, options, risk):
    """The best (numbers served by priority, -cost, chance, -devices) over all choices."""
    own = [[None, *(each for each in options if each.demand_id == d.demand_id)] for d in demands]
    priorities = sorted({d.priority for d in demands})
    best = None
    for chosen in product(*own):
        pairs = [(asked, each) for asked, each in zip(demands, chosen, strict=True) if each]
        replicas = [each.replicas(risk, asked.least_replicas) for asked, each in pairs]
        if None in replicas or sum(replicas) > 12:
            continue
        by_gpu = {}
        for (_, each), n in zip(pairs, replicas, strict=True):
            by_gpu.setdefault(each.gpu_id, []).extend([each.n_gpus] * n)
        if (usd := cheapest_split(by_gpu, pools)) is not None:
            counts = [sum(asked.priority == p for asked, _ in pairs) for p in priorities]
            both = [*zip((each for _, each in pairs), replicas, strict=True)]
            chance = sum(each.is_met(n).mean() for each, n in both)
            devices = sum(each.n_gpus * n for each, n in both)
            worth = (*counts, -round(usd, 6), round(chance, 6), -devices)
            best = worth if best is None else max(best, worth)
    return best


PRICES = [0.5, 1.0, 2.0, 3.0]


def random_fleet(seed):
    random = np.random.default_rng(seed)

    def within(low, high):
        return int(random.integers(low, high))

    demands, pools = [], []
    for i in range(within(2, 4)):
        demands.append(demand(f"d{i}", priority=within(1, 3), least_replicas=within(1, 3)))
    for i in range(within(2, 4)):
        size = "AB"[within(0, 2)], within(1, 3), within(2, 5)
        pools.append(GPUPool(f"p{i}", *size, float(random.choice(PRICES)), bool(within(0, 2))))
    options = [
        option(d.demand_id, n, random.choice([0, 40, 60, 100], 5) * n**0.7, gpu=gpu)
        for d in demands
        for gpu in "AB"
        for n in (1, 2, 4)
    ]
    return demands, pools, options


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_plan_is_the_best_by_brute_force_and_lies_on_nodes_with_room(seed):
    """In numbers served, then in cost, then in probability, then in devices."""
    demands, pools, options = random_fleet(seed)
    plan = plan_fleet(demands, pools, options, risk=0.2)
    *best, usd, chance, devices = brute_force(demands, pools, options, 0.2)
    priorities = sorted({d.priority for d in demands})
    counts = [sum(each.demand.priority == p for each in plan.served) for p in priorities]
    assert counts == best
    assert plan.usd_per_hour == pytest.approx(-usd, abs=1e-5)
    assert plan.bound_usd_per_hour <= plan.usd_per_hour + 1e-6
    assert sum(each.probability_met for each in plan.served) == pytest.approx(chance)
    assert sum(use.devices_used for use in plan.pools) == -devices
    check_places(plan, pools)


def check_places(plan, pools):
    """Every replica lies on a node of the pool with room, and the cost is that of the nodes."""
    by_pool = {pool.pool_id: pool for pool in pools}
    sizes = {each.demand.demand_id: each.n_gpus for each in plan.served}
    used, lying = Counter(), Counter()
    for each in plan.placements:
        used[each.pool_id, each.node] += each.replicas * sizes[each.demand_id]
        lying[each.demand_id] += each.replicas
    for (name, node), devices in used.items():
        assert node < by_pool[name].nodes
        assert devices <= by_pool[name].devices_per_node
    assert lying == {each.demand.demand_id: each.replicas for each in plan.served}
    paid = (
        use.devices_used if use.pool.is_owned else use.nodes_used * use.pool.devices_per_node
        for use in plan.pools
    )
    cost = sum(n * use.pool.usd_per_hour for n, use in zip(paid, plan.pools, strict=True))
    assert plan.usd_per_hour == pytest.approx(cost)
    own = sum(each.usd_per_hour for each in plan.served)
    idle = sum(use.idle_usd_per_hour for use in plan.pools)
    assert own + idle == pytest.approx(plan.usd_per_hour)


def test_of_ten_draws_a_risk_of_a_fifth_leaves_out_the_two_worst():
    one = option("d", 1, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100], load=300)
    assert one.replicas(0.2) == 10
    assert one.is_met(10).mean() == 0.8
    assert one.replicas(0.001) == 30
    assert option("d", 1, [0, 0, 50, 50, 50]).replicas(0.2) is None


def test_shared_errors_make_it_likelier_that_all_are_met_at_once():
    served = np.where(np.arange(100) < 20, 40.0, 60.0)
    pools, demands = [GPUPool("p", "A", 9, 8)], [demand("a"), demand("b")]
    alike = [option(name, 1, served) for name in "ab"]
    apart = [option("a", 1, served), option("b", 1, served[::-1])]
    shared, opposite = (plan_fleet(demands, pools, each, risk=0.2) for each in (alike, apart))
    assert [each.replicas for each in shared.served] == [2, 2]
    assert (shared.joint_probability_met, opposite.joint_probability_met) == (0.8, 0.6)
    assert shared.product_probability_met == pytest.approx(0.64)


def test_replicas_that_have_to_share_a_node_are_named():
    rented = [GPUPool("p", "A", 2, 4, 1.0, is_owned=False)]
    answer = answered([demand("a", least_replicas=2)], rented, [option("a", 1, 1000)])
    told = "a: all replicas lie on one node; no other has room, or none is rented."
    assert answer.warnings == (told,)


def test_a_node_that_serves_a_higher_priority_in_place_of_another_says_so():
    pools, asked = [GPUPool("p", "A", 1, 4, 1.0)], [demand("a"), demand("b", priority=2)]
    answer = answered(asked, pools, [option("a", 1, 16), option("b", 1, 33)])
    assert [each.demand.demand_id for each in answer.plan.served] == ["b"]
    (worth,) = answer.further_nodes
    assert (worth.n_more_served, worth.serves, worth.drops) == (0, ("a",), ("b",))
    assert "serves a in place of b, +3.00 USD/h" in as_text(fleet_document(answer))
    dear = replace(worth, usd_per_hour_saved=-1234.5)
    assert "+1,234.50 USD/h" in as_text(fleet_document(replace(answer, further_nodes=(dear,))))


def large_fleet(n_demands, scale):
    random = np.random.default_rng(7)
    price = {"A": 1.2, "B": 2.5, "C": 4.1, "D": 6.9}
    demands = [demand(f"d{i:02}", priority=int(random.integers(1, 4))) for i in range(n_demands)]
    pools = [GPUPool(f"p{i}", gpu, 4, 8, price[gpu], bool(i % 2)) for i, gpu in enumerate(price)]
    bases, loads = random.uniform(5, 40, n_demands), scale * random.lognormal(4, 1, n_demands)
    options = []
    for each, base, load in zip(demands, bases, loads, strict=True):
        for gpu, usd in price.items():
            for n in (1, 2, 4, 8):
                served = base * n**0.9 * usd**0.9 * random.lognormal(0, 0.2, 50)
                options.append(option(each.demand_id, n, served, load, gpu))
    return demands, pools, options


def test_a_larger_fleet_is_solved_within_its_gap_and_above_an_independent_bound():
    demands, pools, options = large_fleet(30, 1.0)
    plan = plan_fleet(demands, pools, options)
    assert len(plan.served) == plan.most_served == 30
    assert plan.gap <= 2e-4
    # No demand costs less than its cheapest option by the device.
    price = {pool.gpu_id: pool.usd_per_hour for pool in pools}
    cheapest = dict.fromkeys((each.demand_id for each in options), np.inf)
    for each in options:
        usd = (each.replicas(0.1) or np.inf) * each.n_gpus * price[each.gpu_id]
        cheapest[each.demand_id] = min(cheapest[each.demand_id], usd)
    assert sum(cheapest.values()) <= plan.usd_per_hour + 1e-9
    check_places(plan, pools)


def answered(demands, pools, options, looser=None, **more):
    return answer_fleet(demands, pools, options, looser or {}, **more)


def test_who_conflicts_and_what_would_mend_it():
    pools = [GPUPool("p", "A", 1, 8, 1.0), GPUPool("q", "B", 1, 8, 1.0)]
    demands = [demand("a"), demand("b", priority=2), demand("c")]
    options = [option("a", 1, 20), option("b", 1, 20), option("c", 1, 50, gpu="B")]
    looser = {"b": {1.25: [option("b", 1, 26)], 1.5: [option("b", 1, 35)]}}
    looser |= {each: {1.25: [option(each, 1, 50, gpu=gpu)]} for each, gpu in ("aA", "cB")}
    answer = answered(demands, pools, options, looser)
    assert [each.demand_id for each in answer.plan.unserved] == ["b"]
    assert answer.conflict == ("a", "b")
    assert answer.mends[0] == Mend("b", "no_room", {"p": 1}, 1.5)
    assert {each.pool_id: each.n_more_served for each in answer.further_nodes} == {"p": 1, "q": 0}
    of_a = next(each for each in answer.looser_limits if each.demand_id == "a")
    assert (of_a.n_more_served, of_a.usd_per_hour_saved) == (1, -2.0)
    text = as_text(fleet_document(answer))
    assert "2 of 3 demands served for 7.00 USD/h" in text
    assert "1 more node of p, or limits 1.5 times as high" in text
    assert "a and b cannot all be served" in text


def test_a_conflict_is_irreducible():
    demands, pools, options = large_fleet(12, 18.0)
    answer = answered(demands, pools, options, time_limit_s=30)
    assert answer.plan.unserved

    def served(names):
        own = [each for each in demands if each.demand_id in names]
        mine = [each for each in options if each.demand_id in names]
        return len(plan_fleet(own, pools, mine).served)

    assert served(answer.conflict) < len(answer.conflict)
    for name in answer.conflict:
        assert served(set(answer.conflict) - {name}) == len(answer.conflict) - 1


def test_a_further_node_is_worth_what_it_saves():
    pools = [GPUPool("cheap", "A", 1, 4, 1.0), GPUPool("dear", "B", 2, 4, 3.0, is_owned=False)]
    demands = [demand("a"), demand("b")]
    options = [option(name, 1, 25, gpu=gpu) for name in "ab" for gpu in "AB"]
    answer = answered(demands, pools, options)
    assert answer.plan.usd_per_hour == 4 * 1 + 4 * 3
    saved = {each.pool_id: each.usd_per_hour_saved for each in answer.further_nodes}
    assert saved == {"cheap": pytest.approx(8.0, abs=1e-3), "dear": 0.0}
    assert json.loads(as_json(fleet_document(answer)))["plan"]["gap"] == answer.plan.gap


def test_what_the_time_limit_leaves_open_is_said():
    fleet = large_fleet(30, 6.0)
    plan = plan_fleet(*fleet, time_limit_s=0)
    assert len(plan.served) < plan.most_served == 30
    assert plan.bound_usd_per_hour == 0
    answer = answered(*fleet, time_limit_s=0)
    assert (answer.conflict, answer.mends, answer.further_nodes) == ((), (), ())
    assert "--time-limit" in answer.warnings[-1]


def test_rows_of_alike_nodes_keep_their_names():
    pools = [GPUPool(name, "A", 1, 8, 1.0, is_owned=False) for name in "pqr"]
    demands = [demand(name) for name in "abc"]
    plan = plan_fleet(demands, pools, [option(name, 8, 100) for name in "abc"])
    assert {(each.pool_id, each.node) for each in plan.placements} == {(n, 0) for n in "pqr"}
    assert [use.nodes_used for use in plan.pools] == [1] * 3


def test_what_the_solver_prints_stays_off_standard_output(capfd, monkeypatch):
    def prints(*args, **more):
        os.write(1, b"a line of its own")
        return milp(*args, **more)

    monkeypatch.setattr("sextant.decide.fleet_program.milp", prints)
    plan_fleet([demand("a")], [GPUPool("p", "A", 1, 8)], [option("a", 1, 100)])
    print("the answer")
    assert capfd.readouterr().out == "the answer\n"


def test_at_one_price_the_likelier_wins_and_none_served_has_no_probability():
    pools, asked = [GPUPool("p", "A", 1, 4, 2.0)], [demand("a")]
    options = [
        option("a", n, np.where(np.arange(1000) < late, 0, served))
        for n, served, late in ((2, 50, 95), (4, 100, 54), (1, 25, 99))
    ]
    (served,) = plan_fleet(asked, pools, options).served
    assert (served.gpu_profile_id, served.replicas, served.probability_met) == ("4xA", 1, 0.946)
    nobody = as_text(fleet_document(answered(asked, pools, [option("a", 1, 0)])))
    assert "None of 1 demand can be served" in nobody and "0.99" not in nobody


def test_replicas_for_availability_lie_on_different_nodes():
    pools = [GPUPool("p", "A", 3, 8)]
    asked = [demand("a", least_replicas=3), demand("b")]
    plan = plan_fleet(asked, pools, [option(name, 2, 1000) for name in "ab"])
    nodes = {each.node for each in plan.placements if each.demand_id == "a"}
    assert (plan.served[0].replicas, nodes) == (3, {0, 1, 2})


def test_the_page_says_who_runs_where_at_what_cost(tmp_path):
    """Two demands of 200 users; a replica of one device serves 50."""
    pools = [GPUPool("rack", "A", 2, 4, 2.0), GPUPool("cloud", "A", 1, 8, 3.0, is_owned=False)]
    options = [option(name, 1, 50, load=200) for name in "ab"]
    answer = answered([demand("a"), demand("b")], pools, options)
    html, json_path = tmp_path / "fleet.html", tmp_path / "fleet.json"
    write_page(fleet_document(answer, provenance()), html, json_path)
    page, facts = Page(html.read_text()), json.loads(json_path.read_text())
    for part in ("Who runs where", "4 × 1xA", "8 of 8", "16.00", "Teams", "What would change it"):
        assert part in page.text
    assert "Not served" not in page.text
    assert all(link.startswith("#") for link in page.links)
    assert facts["plan"]["usd_per_hour"] == answer.plan.usd_per_hour == 16
