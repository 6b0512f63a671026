"""How long a large fleet takes to plan, and how far above the least cost the plan may be.

    .venv/bin/python benchmarks/fleet_scale.py [--case "room for all"] [--demands 100]

Synthetic demands × 20 GPU profiles (5 GPUs, 1 to 8 devices) × 50 nodes of 8 devices, owned and
rented, three priorities, 1,000 joint draws: with room for all, with too little room, and with 50
nodes that all differ in price. Prints a row a case: CPU seconds of the plan and of the whole answer
(every change solved again), demands served, cost and gap.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import pandas as pd

from sextant.decide.fleet import FleetDemand, FleetOption, GPUPool
from sextant.facts.slo import SLO
from sextant.fleet.plan import answer_fleet, plan_fleet

USD_PER_HOUR = {"A": 1.2, "B": 2.5, "C": 4.1, "D": 6.9, "E": 0.8}
POWER = {"A": 1.0, "B": 2.0, "C": 3.7, "D": 6.0, "E": 0.6}
CASES: dict[str, dict] = {
    "room for all": {},
    "too little room": {"traffic": 2.0},
    "no two nodes alike": {"n_pools": 50},
}


def fleet(n_demands: int, traffic: float = 1.0, n_pools: int = 5, seed: int = 0):
    """Return demands, pools and options of a synthetic fleet."""
    random = np.random.default_rng(seed)
    pools = []
    for i in range(n_pools):
        gpu = "ABCDE"[i % 5]
        usd = USD_PER_HOUR[gpu] * (1 + 0.01 * (i // 5))
        pools.append(GPUPool(f"p{i}", gpu, 50 // n_pools, 8, usd, is_owned=bool(i % 2)))
    demands, options = [], []
    for i in range(n_demands):
        slo = SLO("s", itl_ms=50, percentile=50, users=100)
        priority, least = int(random.integers(1, 4)), int(random.integers(1, 3))
        demands.append(FleetDemand(f"d{i}", f"t{i % 20}", "llm", slo, priority, least))
        options += _options(f"d{i}", random, traffic)
    return demands, pools, options


def _options(name: str, random: np.random.Generator, traffic: float) -> list[FleetOption]:
    load, served = random.lognormal(4, 1) * traffic, random.uniform(5, 40)
    error = random.lognormal(0, 0.2, 1000)
    options = []
    for gpu, power in POWER.items():
        suits = random.uniform(0.7, 1.3)
        for n in (1, 2, 4, 8):
            if n * power >= random.uniform(0.5, 4):  # the LLM fits
                each = served * power * n**0.85 * suits * error
                options.append(FleetOption(name, f"{n}x{gpu}", gpu, n, np.ceil(load / each)))
    return options


def row(name: str, given: dict, n_demands: int, time_limit_s: float) -> dict:
    """Plan one case; then answer it in full."""
    of = fleet(n_demands, **given)
    start = time.process_time()
    plan = plan_fleet(*of, time_limit_s=time_limit_s)
    planned = time.process_time()
    looser: dict[str, dict[float, list[FleetOption]]] = {}
    for each in of[2]:
        faster = replace(each, needs=np.ceil(each.needs / 1.25))
        looser.setdefault(each.demand_id, {}).setdefault(1.25, []).append(faster)
    answer_fleet(*of, looser, time_limit_s=time_limit_s)
    return {
        "case": name,
        "options": len(of[2]),
        "plan_s": planned - start,
        "answer_s": time.process_time() - planned,
        "served": len(plan.served),
        "most_served": plan.most_served,
        "usd_per_hour": plan.usd_per_hour,
        "gap": plan.gap,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES, help="all by default")
    parser.add_argument("--demands", type=int, default=100)
    parser.add_argument("--time-limit", type=float, default=120.0)
    given = parser.parse_args()
    names = given.case or [*CASES]
    rows = [row(name, CASES[name], given.demands, given.time_limit) for name in names]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.5g}".format))


if __name__ == "__main__":
    main()
