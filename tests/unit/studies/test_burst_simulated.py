"""The study `burst`: its phases, simulated with the law of the server's closed loop."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cells import blocks_of, column, request, study_data, text_of, write_cell
from sextant.pages.blocks import Chart
from sextant.points.run import LevelConditions, ServerFacts
from sextant.simulate.server import STATUS, Scheduler, StepLaw
from sextant.simulate.simulation import simulate, simulate_closed
from sextant.studies.burst import analyse
from sextant.workload.requests import RequestStream

TRUTH = StepLaw(3, 2, 0.9, 4e-4, 0.15, 0, 1.5, request_ms=4)
SCHEDULER = Scheduler(80 * 32, 8, 2048, 600, 32, has_prefix_caching=False, is_asynchronous=False)
OPTIONS = ("--max-model-len", "600", "--max-num-seqs", "8", "--block-size", "32")
COMMAND = ("vllm", *OPTIONS, "--num-gpu-blocks-override", "81")
KEY = {"gpu_profile_id": "1xcpu-core", "workload_id": "chat"}
RUN = {"server": ServerFacts("vllm", "0.32.0", command=COMMAND)}
EVERY, TIMEOUT_S, BETA = 60, 2.0, 5.0


def lengths(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(20, 400, n), generator.integers(5, 60, n)


def rows_of(level, made) -> Iterator[dict]:
    """Yield what a cell has of simulated requests."""
    columns = (made.arrival_s, made.ttft_s, made.e2e_s, made.input_tokens, made.output_tokens)
    for status, values in zip(made.status, np.array(columns).T.tolist(), strict=True):
        due_s, ttft_s, e2e_s, inputs, outputs = values
        asked = {"requested_input_tokens": inputs, "requested_output_tokens": outputs}
        asked |= {"scheduled_s": due_s, "sent_s": due_s, "input_tokens": inputs}
        made = (due_s + ttft_s, due_s + e2e_s, outputs) if STATUS[status] == "ok" else [None] * 3
        got = zip(("first_token_s", "last_token_s", "output_tokens"), made, strict=True)
        # The simulator has no single tokens.
        yield request(level, status=STATUS[status], token_offsets_ms=[], **asked, **dict(got))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A sweep of beta and a closed loop, as a server that follows `TRUTH` would answer them."""
    folder = tmp_path_factory.mktemp("cells")
    users = []
    requests = RequestStream.of(np.zeros(2000), *lengths(2000, 1))
    for n in (1, 2, 4, 8):
        users += rows_of(n, simulate_closed(n, requests, SCHEDULER, TRUTH, duration_s=20))
    betas = np.repeat(np.linspace(0.5, 0.1, 9), EVERY)
    arrival_s = np.random.default_rng(2).gamma(0.5, betas).cumsum()
    limited = replace(SCHEDULER, timeout_s=TIMEOUT_S)
    made = simulate(RequestStream.of(arrival_s, *lengths(len(betas), 3)), limited, TRUTH)
    settings = [
        {"start_s": arrival_s[k * EVERY], "alpha": 0.5, "beta_s": betas[k * EVERY]}
        | {"rate_rps": 2 / betas[k * EVERY], "theta": 1.1}
        for k in range(9)
    ]
    phase = {"name": "beta", "rate_rps": 4.0, "mean_kv_cache_usage": 0.3, "settings": settings}
    conditions = LevelConditions(timeout_s=TIMEOUT_S)
    levels = {BETA: {"phase": phase | {"n_per_change": EVERY}, "conditions": conditions}}
    how = {"levels": levels, "kind": "burst", "scenario_id": "burst", "run": RUN}
    return (
        write_cell(folder / "burst", [*rows_of(BETA, made)], **how, **KEY),
        write_cell(folder / "users", users, scenario_id="users", run=RUN, **KEY),
    )


def test_failures_and_latency_follow_the_bursts(cells, tmp_path) -> None:
    analysis = analyse(study_data(tmp_path, cells))
    (numbers,) = analysis.numbers["cells"]
    assert numbers["simulated"]["scheduler"] == vars(SCHEDULER)
    rows: pd.DataFrame = numbers["simulated"]["rows"]
    whole, blocks = rows.iloc[0], rows.iloc[1:]
    assert (whole["n_requests"], blocks["n_requests"].sum()) == (540, 540)
    assert blocks["failure_rate"].max() > 0.3 > 0.02 > blocks["failure_rate"].min()
    assert whole["simulated_failure_rate"] == pytest.approx(whole["failure_rate"], abs=0.03)
    off = blocks["simulated_failure_rate"] - blocks["failure_rate"]
    assert off.abs().max() < 0.15
    assert whole["simulated_mean_ttft_ms"] == pytest.approx(whole["mean_ttft_ms"], rel=0.1)
    (section,) = (each for each in analysis.sections if each.title.startswith("Simulated"))
    assert "its share of failures is off by" in text_of(section)
    assert blocks_of(section, Chart)
    assert column(section, "Phase") == ["beta"]


def test_nothing_is_simulated_without_the_closed_loop(cells, tmp_path) -> None:
    analysis = analyse(study_data(tmp_path, cells[:1]))
    assert analysis.numbers["cells"][0]["simulated"] is None
    assert not [each for each in analysis.sections if each.title.startswith("Simulated")]
