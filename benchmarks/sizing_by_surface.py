"""Compare the probability that the sizing reads from its surface with every draw simulated.

Questions are drawn at random: LLM, lengths, rate, limits and percentiles. Of each, the recommended
number of replicas, and one fewer, is simulated in every draw of the law, each with its requests.
Printed are both probabilities, their difference, and the share of draws that both judge alike.

    python benchmarks/sizing_by_surface.py --questions 40 --draws 1000
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np

from sextant.answer.rate_sizer import RateSizer, target_of
from sextant.ask.case import read_case
from sextant.ask.forecast import fit_medians
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.decide.asked_limits import asked_of
from sextant.decide.replica_sizing import enough_replicas
from sextant.facts.slo import SLO
from sextant.simulate.simulation import on_threads
from sextant.workload.lengths import Length, RequestLengths

LLMS = Path("resources/llms")
NAMES = (
    "meta-llama__Llama-3.1-8B-Instruct",
    "meta-llama__Llama-3.3-70B-Instruct",
    "Qwen__Qwen3-30B-A3B-Instruct-2507",
    "Qwen__Qwen3-32B",
    "openai__gpt-oss-120b",
    "google__gemma-3-27b-it",
)
PROBABILITY = 0.9


def draw_question(rng: np.random.Generator) -> Question:
    """Return a question at random."""
    lengths = []
    for low, high in ((200, 8000), (50, 1000)):
        mean = float(np.exp(rng.uniform(np.log(low), np.log(high))).round())
        lengths.append(Length(mean, round(mean * float(rng.choice([1.0, 2.0, 4.0])))))
    metrics = rng.choice(["ttft tpot", "ttft", "tpot", "e2e", "nttft itl", "ttft tpot goodput"])
    limits: dict[str, float | int | None] = {}
    for metric in str(metrics).split():
        match metric:
            case "ttft":
                limits["ttft_ms"] = float(rng.choice([300, 1000, 3000]))
                limits["ttft_percentile"] = int(rng.choice([50, 90, 95, 99]))
            case "nttft":
                limits["nttft_ms"] = float(rng.choice([0.5, 2.0]))
                limits["nttft_percentile"] = 50
            case "tpot":
                limits["tpot_ms"] = float(rng.choice([15, 30, 60, 100]))
                limits["tpot_percentile"] = int(rng.choice([50, 90, 95]))
            case "itl":
                limits["itl_ms"] = float(rng.choice([15, 30, 60]))
                limits["itl_percentile"] = 50
            case "e2e":
                limits["e2e_ms"] = 30 * lengths[1].mean + float(rng.choice([1000, 4000]))
                limits["e2e_percentile"] = int(rng.choice([50, 95]))
            case "goodput":
                limits["goodput"] = 0.95
    rate_rps = float(np.exp(rng.uniform(np.log(0.5), np.log(60))).round(2))
    slo = SLO("asked", request_rate_rps=rate_rps, **limits)  # type: ignore[arg-type]
    return Question(
        slo,
        hf_config=LLMS / f"{rng.choice(NAMES)}.json",
        sources=("archive:inferencex",),
        requests=RequestLengths(*lengths),
    )


def describe(question: Question) -> str:
    """Return a question in a few words."""
    slo = question.slo
    requests = question.requests
    assert requests is not None and question.hf_config is not None
    limits = " ".join(f"{m} p{lim.percentile}:{lim.limit_ms:g}" for m, lim in slo.limits.items())
    lengths = f"{requests.inputs.mean:g}/{requests.inputs.high:g} in "
    lengths += f"{requests.outputs.mean:g}/{requests.outputs.high:g} out"
    name = question.hf_config.stem.partition("__")[2][:16]
    return f"{name} {slo.load:g}/s {lengths} {limits}{' goodput' if slo.goodput else ''}"


def compare(question: Question, n_draws: int) -> list[tuple[float, float, float]]:
    """Print and return both probabilities, and the share of draws that are judged alike."""
    try:
        case = read_case(question)
        sizer = RateSizer.of(case, fit_medians(case), 1 - PROBABILITY)
    except InputError as error:
        print(f"{describe(question)}: {error}")
        return []
    slo = question.slo
    target = target_of(slo)
    started_s = time.process_time()
    needed = sizer.needed(slo, [*sizer.servers])
    took_s = time.process_time() - started_s
    options = []
    for name in needed:
        replicas = enough_replicas(needed[name].to_numpy(), PROBABILITY)
        if replicas is not None:
            options.append((sizer.servers[name].usd_per_hour(replicas), name, replicas))
    how = "read" if sizer.surface.is_close(asked_of(target)) else "read from twice the points"
    if not options:
        print(f"{describe(question)}: no option ({how})")
        return []

    _, name, replicas = min(options)
    server = sizer.servers[name]
    traffic = sizer.traffic_of(slo)

    def is_met(count: int, draw: int) -> bool:
        return not server.judge(traffic.drawn(draw), count, target, draw).n_missed

    results = []
    for count in sorted({max(replicas - 1, 1), replicas}):
        draws = range(1, n_draws + 1)
        simulated = np.array(on_threads(partial(is_met, count), draws))
        read = needed[name].to_numpy()[:n_draws] <= count
        result = float(read.mean()), float(simulated.mean()), float((read == simulated).mean())
        results.append(result)
        print(
            f"{describe(question)}: {count} x {name}: {how} {result[0]:.3f}, simulated "
            f"{result[1]:.3f}, difference {result[0] - result[1]:+.3f}, alike {result[2]:.3f}, "
            f"{took_s:.2f} s",
            flush=True,
        )
    return results


def main() -> None:
    """Compare all questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    results = []
    for _ in range(options.questions):
        results += compare(draw_question(rng), options.draws)
    read, simulated, alike = np.array(results).T
    errors = np.abs(read - simulated)
    print(
        f"{len(errors)} numbers of replicas: difference median {np.median(errors):.3f}, 95% within "
        f"{np.quantile(errors, 0.95):.3f}, largest {errors.max():.3f}; mean "
        f"{np.mean(read - simulated):+.3f}; alike {alike.mean():.3f}"
    )


if __name__ == "__main__":
    main()
