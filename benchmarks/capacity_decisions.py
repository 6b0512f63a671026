"""Replicas by `sextant capacity`, eq. 3 of LLM-Pilot, mean and peak rate, where the truth is known.

The truth of a case is a step law that decides nothing: the most likely one with all times × 0.9 or
× 1.1, or a draw of the posterior that the decision has not seen, and another day of the traffic.
Needed are the fewest replicas under the truth. Each rule is judged by its replicas over those, and
by the windows that they miss. Eq. 3 divides the mean rate by that of the most users whom one
replica serves within the limits in a closed loop; the others take 1.3 times the mean, or the rate
of the busiest minute. All rules have the same most likely law; eq. 3 sees it without noise.

    SEXTANT_MIRROR=../shared/datasets python benchmarks/capacity_decisions.py [--draws 24]
"""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.ask.laws import CaseLaws, find_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.ask.traffic import TraceTraffic, demand_of_trace
from sextant.base.errors import InputError
from sextant.decide.latency_surface import LatencySurface, ReplicaLaws
from sextant.decide.replica_sizing import enough_replicas, size_profiles
from sextant.decide.replicas import SimulatedReplica, simulated_replica
from sextant.decide.sizing import fewest_replicas
from sextant.decide.windows import Target
from sextant.facts.slo import SLO
from sextant.simulate.server import NAMES, OK, StepLaw
from sextant.simulate.simulation import simulate_closed
from sextant.trace.job import ingest_trace
from sextant.workload.requests import RequestStream, mean_lengths_of, steady_like

HERE = Path(__file__).parents[1]
MIRROR = Path(os.environ.get("SEXTANT_MIRROR", HERE.parent / "shared" / "datasets"))
TRACES = {
    # File, format, window in s, limit of TTFT in ms at p95.
    "Azure sample": (HERE / "resources/traces/azure-2023-conv-sample.csv", "sextant", 60, 1000),
    "Azure hour": (MIRROR / "azure-2023/AzureLLMInferenceTrace_conv.csv", "azure", 300, 1000),
    "Mooncake": (MIRROR / "mooncake/conversation_trace.jsonl", "mooncake", 300, 30000),
}
LLMS = {
    "Llama-3.1-8B": "meta-llama--Meta-Llama-3.1-8B.json",
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B.json",
    "Llama-3.1-70B": "llama-3.1-70b-instruct.json",
}
PRICES = {"1xH100-80GB": 3.0, "2xH100-80GB": 6.0, "4xH100-80GB": 12.0, "1xH200-141GB": 3.8}
SCALES = (4.0, 16.0)
ITL_MS = 50
CLOSED_S, WARMUP_S, MOST_USERS = 400.0, 100.0, 1024
HEADROOM = 1.3
N_TRUE_DRAWS = 4
RISKS = {"sextant capacity, risk 0.1": 0.1, "sextant capacity, risk 0.5": 0.5}
RULES = (*RISKS, "eq. 3 (users)", f"mean rate x {HEADROOM}", "peak minute")


def demands(folder: Path) -> Iterator[tuple[str, RequestStream, Target, SLO]]:
    """Yield each trace with its target."""
    for name, (file, form, window_s, ttft_ms) in TRACES.items():
        out = folder / f"{name}.parquet"
        ingest_trace(file, form, out, out.with_suffix(".r.parquet"), out.with_suffix(".json"))
        demand = demand_of_trace(out, window_s=window_s)
        slo = SLO("d3", ttft_ms=ttft_ms, itl_ms=ITL_MS, percentile=95, request_rate_rps=1)
        yield name, demand, Target(slo.limits, window_s=window_s), slo


def offer(config: str, demand: RequestStream, slo: SLO, prices: Path, n_draws: int) -> CaseLaws:
    """Return the laws of an LLM on all profiles."""
    path = MIRROR / "hf_configs" / config
    lengths = mean_lengths_of(demand)
    names = tuple(PRICES)
    question = Question(
        slo,
        hf_config=path,
        gpu_profile_ids=names,
        prices=prices,
        requests=lengths,
        # Each trace and LLM has draws of its own.
        seed=demand.n + len(config),
    )
    return find_laws(question, Settings(), n_draws)


def truths(laws: ReplicaLaws) -> Iterator[tuple[str, StepLaw]]:
    """Yield what may be true: a name and a law."""
    for factor in (0.9, 1.1):
        values = laws.terms[0]
        is_time = np.array([name.endswith("_ms") for name in NAMES])
        yield f"law x {factor}", StepLaw.of(np.where(is_time, values * factor, values))
    for draw in range(-N_TRUE_DRAWS, 0):
        yield "a draw", laws.law(draw)


def closed_rate(laws: ReplicaLaws, demand: RequestStream, slo: SLO) -> float:
    """Return the requests a second of the most users whom one replica serves within the limits."""
    n = 20_000
    places = np.random.default_rng(0).integers(demand.n, size=n)
    lengths = demand.input_tokens[places], demand.output_tokens[places]
    requests, best = RequestStream.of(np.arange(n, dtype=float), *lengths), 0.0
    is_short = sum(lengths) <= laws.scheduler.longest
    if not is_short.all():
        kept = tuple(each[is_short] for each in lengths)
        requests = RequestStream.of(np.arange(len(kept[0]), dtype=float), *kept)
    low, high = 0, MOST_USERS + 1
    users = 8
    while high - low > 1:
        found = simulate_closed(
            users,
            requests,
            laws.scheduler,
            laws.law(0),
            duration_s=CLOSED_S,
            warmup_s=WARMUP_S,
        )
        own = (found.status == OK) & found.is_counted
        ttft_ms = 1e3 * np.quantile(found.ttft_s[own], 0.95) if own.any() else np.inf
        is_met = ttft_ms <= (slo.ttft_ms or np.inf) and 1e3 * found.gaps.quantile_s(0.95) <= ITL_MS
        if is_met:
            low, best = users, own.sum() / (CLOSED_S - WARMUP_S)
        else:
            high = users
        users = min(2 * users, MOST_USERS) if high > MOST_USERS else (low + high) // 2
        if low == MOST_USERS:
            break
    return best


def replicas_by_rule(
    server: SimulatedReplica,
    traffic: TraceTraffic,
    target: Target,
    rate_rps: float,
    minute_s: float,
) -> dict[str, int | None]:
    """Return what each rule takes; None where it has no answer."""
    demand = traffic.drawn(0)
    profile_id = server.profile.gpu_profile_id
    servers = {profile_id: server}
    surface = LatencySurface({profile_id: server.laws}, steady_like(traffic, 0))
    found: dict[str, int | None] = {}
    for name, risk in RISKS.items():
        (sizing,) = size_profiles(servers, traffic, target, 1 - risk, surface).values()
        needs = sizing.needs
        found[name] = enough_replicas(needs, 1 - risk) if len(needs) else None
    peak_rps = demand.busiest(minute_s)[1] / minute_s
    rates = (demand.rate_rps, HEADROOM * demand.rate_rps, peak_rps)
    for name, wanted in zip(RULES[len(RISKS) :], rates, strict=True):
        found[name] = math.ceil(wanted / rate_rps) if rate_rps else None
    return found


def judged(
    name: str,
    truth: SimulatedReplica,
    demand: RequestStream,
    target: Target,
    chosen: dict[str, int | None],
) -> list[dict]:
    """Return a row a rule: its replicas over those needed, and the windows that they miss."""
    if truth.judge_alone(demand, target).n_missed:
        return []
    start = max(filter(None, chosen.values()), default=1)
    needed = fewest_replicas(
        lambda n: not truth.judge(demand, n, target).n_missed, start, 8 * start + 64
    )
    if needed is None:
        return []
    rows = []
    for rule, replicas in chosen.items():
        row = {"truth": name, "rule": rule, "needed": needed, "replicas": replicas}
        if replicas is not None:
            missed = truth.judge(demand, replicas, target)
            row |= {"missed": missed.n_missed / len(missed.start_s), "ratio": replicas / needed}
        rows.append(row)
    return rows


def case(
    laws: ReplicaLaws,
    offered: CaseLaws,
    profile_id: str,
    demand: RequestStream,
    target: Target,
    slo: SLO,
    minute_s: float,
) -> list[dict]:
    """Return the rows of one LLM, profile and demand."""
    traffic, profile = TraceTraffic(demand, target.window_s), offered.case.gpu_profiles[profile_id]
    server = simulated_replica(profile, laws.of_draws(np.arange(len(laws.terms) - N_TRUE_DRAWS)))
    rate_rps = closed_rate(laws, demand, slo)
    chosen = replicas_by_rule(server, traffic, target, rate_rps, minute_s)
    rows = []
    for seed, (name, law) in enumerate(truths(laws), start=1001):
        truth = simulated_replica(profile, ReplicaLaws(laws.scheduler, law.array()[None]))
        rows += judged(name, truth, traffic.drawn(seed), target, chosen)
    return rows


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return means over cases, a row a rule."""
    answered = frame[frame["replicas"].notna()]
    grouped = answered.groupby("rule", sort=False)
    total = grouped[["replicas", "needed"]].sum().astype(float)
    means = pd.DataFrame(
        {
            "decisions": grouped.size(),
            "too few": grouped.apply(lambda rows: (rows["replicas"] < rows["needed"]).mean()),
            "windows missed": grouped["missed"].mean(),
            "replicas over needed": total["replicas"] / total["needed"],
            "median ratio": grouped["ratio"].median(),
        }
    )
    return means.reindex([rule for rule in RULES if rule in means.index])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--out", type=Path, help="CSV of all rows")
    given = parser.parse_args()
    rows, start_s = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        prices = Path(scratch) / "prices.csv"
        lines = [f"{name},{price}" for name, price in PRICES.items()]
        prices.write_text("\n".join(["gpu_profile_id,usd_per_hour", *lines]) + "\n")
        for trace, demand, target, slo in demands(Path(scratch)):
            for llm_id, config in LLMS.items():
                try:
                    offered = offer(config, demand, slo, prices, given.draws + N_TRUE_DRAWS)
                except InputError as error:  # a context that is too short
                    print(trace, llm_id, error, flush=True)
                    continue
                for profile_id, laws in offered.servers.items():
                    for scale in SCALES:
                        scaled_s = (target.window_s or 0.0) / scale
                        own = replace(target, window_s=max(scaled_s, 1.0))
                        faster = demand.at_speed(scale)
                        found = case(laws, offered, profile_id, faster, own, slo, 60 / scale)
                        place = {"trace": trace, "llm": llm_id, "profile": profile_id}
                        rows += [place | {"scale": scale} | row for row in found]
                        print(trace, llm_id, profile_id, scale, len(found), flush=True)
    frame = pd.DataFrame(rows)
    if given.out:
        frame.to_csv(given.out, index=False)
    pd.set_option("display.width", 160)
    keys = ["trace", "llm", "profile", "scale", "truth"]
    n_cases = len(frame.drop_duplicates([*keys, "needed"]))
    print(f"\n{n_cases} cases, {time.perf_counter() - start_s:.0f} s\n")
    print(summary(frame).round(3).to_string())
    for truth, part in frame.groupby("truth"):
        print(f"\n{truth}\n{summary(part).round(3).to_string()}")


if __name__ == "__main__":
    main()
