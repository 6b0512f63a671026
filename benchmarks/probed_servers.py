"""How well laws that are fitted to one or three measured loads give back a server of known law.

    python benchmarks/probed_servers.py

Servers are a law of an 8B LLM on an H100 with some terms scaled, or another scheduler than the fit
takes. Each is simulated, the fit sees its mean TTFT and ITL, and both are simulated at what was
measured, at half the users and at twice. Prints how many come back within 10%, and the errors.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.law.means import MeanLoad
from sextant.law.measured_server import simulated_means_ms
from sextant.law.probed_server import ProbeResult, fit_laws_to_probe
from sextant.simulate.server import NAMES, Scheduler, StepLaw
from sextant.simulate.simulation import on_threads, simulate_closed
from sextant.workload.requests import RequestStream

SEED = 42
LAW = StepLaw(2, 8, 0.05, 2e-5, 0.02, 1e-7, 3, request_ms=5)
SCHEDULER = Scheduler(1_000_000, 256, 2048)
LENGTHS = ((1000, 200), (300, 600))
USERS = (4, 16, 64, 256)
SEVERAL = ((1, 16, 64), (4, 32, 128))
"""Numbers of users that are measured together."""
DURATION_S = 200
CLOSE = 0.1


class Server(NamedTuple):
    """A server that is measured."""

    law: StepLaw
    scheduler: Scheduler = SCHEDULER

    def means_ms(self, lengths: tuple[int, int], users: int) -> np.ndarray:
        """Return the mean TTFT and ITL of users."""
        n = 1000 * users
        inputs, outputs = (np.full(n, tokens) for tokens in lengths)
        stream = RequestStream.of_users(users, inputs, outputs, SEED)
        served = simulate_closed(users, stream, self.scheduler, self.law, duration_s=DURATION_S)
        return simulated_means_ms(served)


def scaled(factor: float, *names: str) -> Server:
    """Return a server some of whose times are longer; without names, all of them."""
    terms = LAW.array()
    terms[[NAMES.index(name) for name in names or NAMES if name.endswith("_ms")]] *= factor
    return Server(StepLaw.of(terms))


SERVERS = {
    "twice as fast": scaled(0.5),
    "twice as slow": scaled(2.0),
    "three times as slow": scaled(3.0),
    "front end of 25 ms": scaled(5.0, "request_ms"),
    "front end of 100 ms": scaled(20.0, "request_ms"),
    "slow prompts": scaled(2.0, "prefill_token_ms", "prompt_step_ms"),
    "very slow prompts": scaled(3.0, "prefill_token_ms", "prompt_step_ms"),
    "slow sequences": scaled(4.0, "sequence_ms", "kv_token_ms"),
    "slow cache": scaled(3.0, "kv_token_ms"),
    "steps of 8,192 tokens": Server(LAW, replace(SCHEDULER, max_num_batched_tokens=8192)),
    "steps of 512 tokens": Server(LAW, replace(SCHEDULER, max_num_batched_tokens=512)),
    "prompts first": Server(LAW, replace(SCHEDULER, prompts_first=True)),
}


class Probe(NamedTuple):
    """What is measured of a server."""

    server: str
    lengths: tuple[int, int]
    users: tuple[int, ...]

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield a row per number of users: the errors of the fitted law."""
        server = SERVERS[self.server]
        ttft_ms, itl_ms = np.transpose([server.means_ms(self.lengths, it) for it in self.users])
        load = MeanLoad(*(np.full(len(self.users), float(tokens)) for tokens in self.lengths))
        probe = ProbeResult(load, ttft_ms, itl_ms, np.array(self.users, float))
        fitted = fit_laws_to_probe(LAW.array()[None], SCHEDULER, probe, SEED).values[0]
        found = Server(StepLaw.of(fitted))
        for users in sorted({*self.users, self.users[0] // 2 or 1, self.users[-1] * 2}):
            ratios = found.means_ms(self.lengths, users) / server.means_ms(self.lengths, users)
            ttft, itl = np.abs(ratios - 1)
            load_asked = "measured" if users in self.users else "half or twice"
            yield self._asdict() | {"load": load_asked, "ttft": ttft, "itl": itl}


def main() -> None:
    """Print the errors."""
    measured = [(it,) for it in USERS] + [*SEVERAL]
    probes = [
        Probe(name, each, users) for name in SERVERS for each in LENGTHS for users in measured
    ]
    rows = pd.DataFrame(
        [row for found in on_threads(lambda probe: [*probe.rows()], probes) for row in found]
    )
    rows["loads"] = rows["users"].str.len()
    rows["scheduler"] = [
        "another" if SERVERS[name].scheduler != SCHEDULER else "the same" for name in rows["server"]
    ]
    rows["within"] = (rows[["ttft", "itl"]] < CLOSE).all(axis=1)
    keys = ["scheduler", "loads", "load"]
    figures = {
        "n": ("within", "size"),
        "both within 10%": ("within", "sum"),
        "TTFT median %": ("ttft", lambda errors: 100 * errors.median()),
        "TTFT most %": ("ttft", lambda errors: 100 * errors.max()),
        "ITL median %": ("itl", lambda errors: 100 * errors.median()),
        "ITL most %": ("itl", lambda errors: 100 * errors.max()),
    }
    print(rows.groupby(keys).agg(**figures).round(1).to_string())


if __name__ == "__main__":
    main()
