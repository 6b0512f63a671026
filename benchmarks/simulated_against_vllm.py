"""What the simulator predicts of a real vLLM server on one CPU core, against what is measured.

The step law is calibrated on closed loops of 1 to 16 users. Requests come at 30, 60 and 85%
(and at more rates around the SLO) of the capacity that the law tells, with Gamma gaps of shape 1
and 0.5 and as in the Azure sample, compressed in time. The same arrivals and lengths are simulated.
Two settings are measured three times with the same requests: their differences are the noise. A
first closed loop tells the capacity; a second one is measured among the open ones, all in random
order, so that a machine that drifts does not look like a load. The law is calibrated on both.

    .venv/bin/python benchmarks/simulated_against_vllm.py --seconds 40 --out measured
    .venv/bin/python benchmarks/simulated_against_vllm.py --out measured --again   # simulate again

Needs `.venv-vllm`. Two quiet cores: the server has one, the client another.
"""

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real_vllm import SETTINGS, random_weights
from sextant.bench.cell import model_folder
from sextant.engine.vllm import VLLMServer
from sextant.facts.llm import load_llm
from sextant.law.means import BatchLimits, MeanLoad, saturation_rps
from sextant.law.measured_server import calibrate, closed_loop_requests
from sextant.load.measure import LevelResult, LoadTargets
from sextant.load.schedules import ArrivalSchedule, run_closed_loop, run_open_loop
from sextant.load.source import RequestSource, draw_in_order
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.workload.prompts import RandomTokens
from sextant.workload.requests import RequestStream
from support import ROOT

CONFIG = ROOT / "resources" / "llms" / "demo-llama-16m.json"
LLM = load_llm(CONFIG, "bfloat16")
USERS = (1, 2, 4, 8, 16)
SHARES = (0.3, 0.45, 0.6, 0.72, 0.85, 0.95)
ASKED = (0.3, 0.6, 0.85)
SHAPES = (1.0, 0.5)
REPEATED = ((1.0, 0.6), (0.5, 0.85))
SHORTER = 8
"""By which the trace's lengths are divided, so that a level has hundreds of requests."""
KV_TOKENS, LONGEST = 65_536, 1024
# vLLM schedules synchronously on CPUs.
SCHEDULER = Scheduler(KV_TOKENS, 64, 1024, has_prefix_caching=False, is_asynchronous=False)
ENGINE = replace(
    SETTINGS,
    max_num_seqs=SCHEDULER.max_num_seqs,
    extra_arguments=("--max-num-batched-tokens", str(SCHEDULER.max_num_batched_tokens)),
)
STATISTICS = ("TTFT p50", "TTFT p90", "TTFT p99", "ITL mean", "E2E mean")


def trace() -> pd.DataFrame:
    """Return the shipped sample of Azure's conversations, its requests made shorter."""
    rows = pd.read_csv(ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv")
    rows = rows[["arrival_s", "input_tokens", "output_tokens"]]
    tokens = (rows[["input_tokens", "output_tokens"]] // SHORTER).clip(lower=2)
    return rows.assign(**tokens, arrival_s=rows["arrival_s"] - rows["arrival_s"].iloc[0])


def gaps(shape: float, rate_rps: float, seconds: float, seed: int) -> np.ndarray:
    """Return arrivals in seconds, their gaps Gamma distributed."""
    n = int(2 * rate_rps * seconds) + 50
    drawn = np.random.default_rng(seed).gamma(shape, 1 / (shape * rate_rps), n).cumsum()
    # The mean rate is the asked one, whatever was drawn.
    within = drawn[: int(rate_rps * seconds)]
    return within * (seconds / within[-1])


@contextlib.contextmanager
def server(folder: Path, core: int) -> Iterator[VLLMServer]:
    with model_folder(CONFIG) as model:
        spec = random_weights(model, LLM, KV_TOKENS, LONGEST, core, gib=8.0)
        with VLLMServer(spec, ENGINE, folder / "server.log") as running:
            yield running


def requests_of(rows: pd.DataFrame, arrival_s: np.ndarray) -> RequestStream:
    """Return requests of the trace's lengths, in its order, at these times."""
    places = np.arange(len(arrival_s)) % len(rows)
    tokens = rows[["input_tokens", "output_tokens"]].to_numpy()[places]
    return RequestStream.of(arrival_s, *tokens.T)


class Client:
    """Loads one server and keeps every request."""

    def __init__(self, target: VLLMServer, out: Path, rows: pd.DataFrame) -> None:
        self.target, self.out, self.rows = target.target, out, rows
        self.n_levels = 0
        self.epoch = time.monotonic_ns()
        self.tables: list[pd.DataFrame] = []

    def source(self) -> RequestSource:
        self.n_levels += 1
        lengths = (self.rows["input_tokens"].to_numpy(), self.rows["output_tokens"].to_numpy())
        draw = draw_in_order(*lengths, RandomTokens(LLM.vocab_size))
        return RequestSource("sextant", draw, self.n_levels)

    def targets(self) -> LoadTargets:
        return LoadTargets([self.target], timeout_s=60.0, epoch_ns=time.monotonic_ns())

    def users(self, users: int, seconds: float) -> None:
        """Measure a level of the closed loop, and keep its requests as those of a cell."""
        run_closed_loop(self.targets(), self.source(), users, 2.0)
        result = run_closed_loop(self.targets(), self.source(), users, seconds)
        # All from one start: levels that are measured twice must not lie on each other.
        self.tables.append(
            pd.concat(it.to_pandas() for it in result.log.batches(users, self.epoch))
        )
        pd.concat(self.tables).to_parquet(self.out / "requests.parquet")
        self.say(f"{users} users", result)

    def arrivals(self, name: str, arrival_s: np.ndarray, warmup_s: float) -> None:
        """Measure an open loop, its requests in the order of their arrival."""
        schedule = ArrivalSchedule(arrival_s, warmup_s)
        result = run_open_loop(self.targets(), self.source(), schedule)
        rows = result.table().to_pandas().sort_values("user")
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(folder / "requests.parquet")
        np.savez(folder / "arrivals.npz", arrival_s=arrival_s, warmup_s=warmup_s)
        self.say(name, result)

    def say(self, name: str, result: LevelResult) -> None:
        lag = result.run.client.client_lag_ms.p99
        print(f"{name}: {result.log.n_ok} requests, client lag p99 {lag:.1f} ms", flush=True)


def measured(folder: Path) -> np.ndarray:
    """Return what `STATISTICS` names of one level, in ms, and the p95 of TTFT."""
    rows = pd.read_parquet(folder / "requests.parquet").query("status == 'ok'")
    ttft_ms = 1e3 * (rows["first_token_s"] - rows["scheduled_s"])
    e2e_ms = 1e3 * (rows["last_token_s"] - rows["scheduled_s"])
    itl_ms = (e2e_ms - ttft_ms).sum() / (rows["output_tokens"] - 1).sum()
    quantiles = np.quantile(ttft_ms, (0.5, 0.9, 0.99))
    return np.array([*quantiles, itl_ms, e2e_ms.mean(), np.quantile(ttft_ms, 0.95)])


def simulated(folder: Path, law: StepLaw, rows: pd.DataFrame) -> np.ndarray:
    """Return the same of the same requests, as simulated."""
    with np.load(folder / "arrivals.npz") as kept:
        arrival_s, warmup_s = kept["arrival_s"], float(kept["warmup_s"])
    result = simulate(requests_of(rows, arrival_s), SCHEDULER, law, warmup_s=warmup_s)
    counted = result.is_counted
    ttft_ms, e2e_ms = 1e3 * result.ttft_s[counted], 1e3 * result.e2e_s[counted]
    itl_ms = (e2e_ms - ttft_ms).sum() / (result.output_tokens[counted] - 1).sum()
    quantiles = np.quantile(ttft_ms, (0.5, 0.9, 0.99))
    return np.array([*quantiles, itl_ms, e2e_ms.mean(), np.quantile(ttft_ms, 0.95)])


def rate_at_slo(rates: Sequence[float], p95_ms: Sequence[float], limit_ms: float) -> float:
    """Return the rate at which p95 of TTFT reaches its limit; NaN if at none between these.

    Of its logarithm at the rates the closest rising values are taken (isotonic regression), with
    straight lines between: one level that is off counts no more than the others.
    """
    rising = isotonic_regression(np.log(p95_ms)).x
    if not rising[0] <= np.log(limit_ms) <= rising[-1]:
        return float("nan")
    return float(np.interp(np.log(limit_ms), rising, rates))


def level_name(shape: float, share: float, number: int = 0) -> str:
    return f"shape-{shape:g}-load-{share:g}" + (f"-again-{number}" if number else "")


def measure(out: Path, seconds: float, core: int) -> None:
    """Run the closed loop, then the open ones."""
    rows, warmup_s = trace(), 4.0
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), core) as running:
        client = Client(running, out, rows)
        for users in USERS:
            client.users(users, seconds / 2)
        law = calibrate(closed_loop_requests(out), SCHEDULER, 2, 0).law
        load = MeanLoad(rows["input_tokens"].mean(), rows["output_tokens"].mean())
        limits = BatchLimits(
            SCHEDULER.max_num_seqs,
            SCHEDULER.max_num_batched_tokens,
            KV_TOKENS,
            is_asynchronous=False,
        )
        capacity = float(saturation_rps(law, limits, load))
        (out / "capacity.json").write_text(json.dumps({"rps": capacity}))
        print(f"capacity {capacity:.2f} requests/s; {law}", flush=True)
        span_s = seconds + warmup_s
        runs = [partial(client.users, users, seconds / 2) for users in USERS]
        settings = [(shape, share, 0) for shape, share in itertools.product(SHAPES, SHARES)]
        settings += [(*setting, number) for number in (1, 2) for setting in REPEATED]
        for shape, share, number in settings:
            arrival_s = gaps(shape, share * capacity, span_s, seed=int(100 * share + 10 * shape))
            name = level_name(shape, share, number)
            runs.append(partial(client.arrivals, name, arrival_s, warmup_s))
        for share in ASKED:
            n = int(share * capacity * span_s)
            arrival_s = rows["arrival_s"].to_numpy()[:n]
            arrival_s = arrival_s * span_s / arrival_s[-1]
            runs.append(partial(client.arrivals, level_name(0, share), arrival_s, warmup_s))
        for place in np.random.default_rng(7).permutation(len(runs)):
            runs[place]()
        (out / "server.log").write_text((Path(folder) / "server.log").read_text())


def report(out: Path) -> None:
    """Print errors beside the noise, and rates at SLO."""
    rows = trace()
    found = calibrate(closed_loop_requests(out), SCHEDULER, 200, 0)
    print(found.law)
    print("calibration, simulated over measured TTFT and ITL − 1:")
    print(np.round(np.expm1(found.errors), 3).tolist())
    capacity = json.loads((out / "capacity.json").read_text())["rps"]
    noise = []
    for shape, share in REPEATED:
        three = np.log([measured(out / level_name(shape, share, n)) for n in range(3)])
        pairs = itertools.combinations(three, 2)
        noise += [np.abs(one - other) for one, other in pairs]
    noise_of = np.mean(noise, axis=0)
    table, errors = [], []
    for shape, share in [*itertools.product(SHAPES, ASKED), *((0, share) for share in ASKED)]:
        folder = out / level_name(shape, share)
        real, made = measured(folder), simulated(folder, found.law, rows)
        errors.append(np.abs(made / real - 1)[:5])
        name = f"{'replay' if not shape else f'Gamma {shape:g}'}, {share:.0%}"
        table.append([name, *real[:5], *np.expm1(np.log(made / real))[:5]])
    columns = ["level", *(f"{name}, ms" for name in STATISTICS), *(f"err {n}" for n in STATISTICS)]
    frame = pd.DataFrame(table, columns=columns).round(3)
    print(frame.to_string(index=False))
    is_below = np.array([not row[0].endswith("85%") for row in table])
    for name, each, of_repeat in zip(STATISTICS, np.array(errors).T, noise_of, strict=False):
        parts = f"mean error {each.mean():.1%}, up to 60% of capacity {each[is_below].mean():.1%}"
        print(f"{name}: {parts}, of a repeat {np.expm1(of_repeat):.1%}")
    alone = measured_alone_ms(out)
    for shape in SHAPES:
        folders = [out / level_name(shape, share) for share in SHARES]
        rates = [share * capacity for share in SHARES]
        real = [measured(folder)[5] for folder in folders]
        made = [simulated(folder, found.law, rows)[5] for folder in folders]
        for factor in (4, 5, 6, 7):
            limit_ms = factor * alone
            pair = [rate_at_slo(rates, values, limit_ms) for values in (real, made)]
            print(
                f"Gamma {shape:g}, p95 TTFT <= {limit_ms:.0f} ms: measured {pair[0]:.2f}, "
                f"simulated {pair[1]:.2f} requests/s ({pair[1] / pair[0] - 1:+.1%})"
            )


def measured_alone_ms(out: Path) -> float:
    """Return the mean TTFT of one user."""
    rows = closed_loop_requests(out)
    return float(rows[rows["users"] == 1]["ttft_ms"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of an open loop's level")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="of what was measured before")
    options = parser.parse_args()
    if not options.again:
        measure(options.out, options.seconds, options.core)
    report(options.out)


if __name__ == "__main__":
    main()
