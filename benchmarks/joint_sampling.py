"""What it changes on a real server to draw requests jointly or parameter by parameter.

    .venv/bin/python benchmarks/joint_sampling.py MODEL [--llm-config FILE] [--repetitions 5]

LLM-Pilot's ablation (section V-A) on vLLM: one server on one CPU core, random weights, closed
loop. MODEL is a fitted workload or a published histogram. In each repetition every number of
users is loaded with both samplers, one right after the other, and the one that goes first
alternates, so that a machine's drift meets both. Prints, for throughput, median TTFT and median
ITL, the independent sampler's change against the joint one: the mean over repetitions, its 95%
interval (Student's t), and the noise, which is the spread of the same sampler over repetitions.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
import yaml

from sextant.bench.cell import model_folder
from sextant.engine.devices import pick_devices
from sextant.engine.http import ServerAddress
from sextant.engine.protocol import ServerSpec
from sextant.engine.vllm import VLLMServer
from sextant.experiment.servers import engine_settings
from sextant.facts.gpu import Devices
from sextant.facts.llm import load_llm
from sextant.load.measure import LoadTargets
from sextant.load.schedules import run_closed_loop
from sextant.load.source import RequestSource, drawn_from
from sextant.workload.prompts import RandomTokens
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel

SAMPLERS = ("joint", "independent")
USERS = (1, 2, 4, 8, 16)
METRICS = ("throughput_tok_s", "median_ttft_ms", "median_itl_ms")


def server(config: Path, caps: tuple[int, int], log: Path) -> VLLMServer:
    """Return a server of one CPU core that holds 16 of the longest requests."""
    settings = engine_settings(yaml.safe_load(Path("config/config.yaml").read_text("utf-8")))
    llm, devices, longest = (
        load_llm(config / "config.json", settings.dtype),
        Devices("cpu", 1, 4.0),
        sum(caps),
    )
    spec = ServerSpec(
        model=config,
        load_format="dummy",
        devices=devices,
        batch_weight_tokens=max(USERS) * longest,
        kv_bytes_per_token=llm.kv_bytes_per_token,
        max_request_tokens=longest,
        device_indices=pick_devices(devices)[0],
        seed=0,
    )
    return VLLMServer(spec, settings, log)


def capped(model: RequestModel, caps: tuple[int, int]) -> RequestModel:
    """Return the model with lengths that the LLM's context holds."""
    lengths = {
        name: model.frame[name].clip(upper=cap)
        for name, cap in zip(("input_tokens", "output_tokens"), caps, strict=True)
    }
    return RequestModel(model.frame.assign(**lengths))


def measure(
    target: ServerAddress,
    model: RequestModel,
    sampler: str,
    users: int,
    seed: int,
    duration_s: float,
) -> dict[str, float]:
    """Load the server for a while; return throughput, median TTFT and median ITL."""
    source = RequestSource(target.model, drawn_from(model, RandomTokens(8192), sampler), seed)
    targets = LoadTargets([target], timeout_s=120.0, epoch_ns=time.monotonic_ns())
    run_closed_loop(targets, source, users, 1.0)
    result = run_closed_loop(targets, source, users, duration_s)
    rows = result.table().to_pandas()
    assert (rows["status"] == "ok").all(), rows["error"].dropna().iloc[0]
    gaps = np.concatenate([np.diff(offsets) for offsets in rows["token_offsets_ms"]])
    return {
        "n_requests": len(rows),
        "throughput_tok_s": float(rows["output_tokens"].sum() / result.run.duration_s),
        "median_ttft_ms": float((rows["first_token_s"] - rows["sent_s"]).median() * 1e3),
        "median_itl_ms": float(np.median(gaps)),
    }


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a number of users and metric: change, its interval, noise."""
    rows = []
    for users, of_users in runs.groupby("users"):
        for metric in METRICS:
            table = of_users.pivot(index="repetition", columns="sampler", values=metric)
            change = 100 * (table["independent"] / table["joint"] - 1)
            half = scipy.stats.t.ppf(0.975, len(change) - 1) * change.sem()
            noise = 100 * table.std() / table.mean()
            rows.append(
                {
                    "users": users,
                    "metric": metric,
                    "joint": table["joint"].mean(),
                    "independent": table["independent"].mean(),
                    "change_percent": change.mean(),
                    "lo_percent": change.mean() - half,
                    "hi_percent": change.mean() + half,
                    "noise_joint_percent": noise["joint"],
                    "noise_independent_percent": noise["independent"],
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="workload's folder or published histogram")
    parser.add_argument(
        "--llm-config", type=Path, default=Path("resources/llms/demo-llama-16m.json")
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--duration", type=float, default=12.0, help="seconds a run")
    parser.add_argument("--caps", type=int, nargs=2, default=(1024, 256), help="longest lengths")
    options = parser.parse_args()
    caps = tuple(options.caps)
    model, runs = capped(load_request_model(options.model), caps), []
    with (
        tempfile.TemporaryDirectory() as scratch,
        model_folder(options.llm_config) as folder,
        server(folder, caps, Path(scratch) / "server.log") as running,
    ):
        target = running.target
        for repetition, users in itertools.product(range(options.repetitions), USERS):
            for sampler in SAMPLERS if repetition % 2 == 0 else SAMPLERS[::-1]:
                seed = 1_000_003 * users + repetition
                got = measure(target, model, sampler, users, seed, options.duration)
                runs.append({"repetition": repetition, "users": users, "sampler": sampler, **got})
                print(runs[-1], flush=True)
    table = summary(pd.DataFrame(runs))
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    print(table.groupby("metric")["change_percent"].mean().to_string())


if __name__ == "__main__":
    main()
