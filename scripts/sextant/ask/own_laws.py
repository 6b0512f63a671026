"""Laws of a step through what the sources measured of the LLM itself.

Answers to users rest on draws of latencies that are moved to the LLM's own measurements
(`Calibration`). Here the laws of a step are scaled until the closed form gives the latencies so
moved: an answer to a request rate, or a simulation, rests on the same measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sextant.ask.probe_laws import LEAST_DRAWS
from sextant.decide.latency_surface import ReplicaLaws
from sextant.law.calibration import Calibration
from sextant.law.means import BatchLimits, MeanLoad, broadcast_laws, closed_loop
from sextant.law.probed_server import ProbeResult, match_laws
from sextant.points.frame import SLOTS, STEP_TOKENS, TARGETS, WAIT

_N_LOADS = 6
"""Loads at which a law is to give the moved latencies."""
_UNCROWDED = 0.5
"""Share of the requests that a replica holds. Above it users queue, which no term of a step
tells of."""
_LEAST_USERS = 4.0
"""Users up to whom laws are compared in any case."""


@dataclass(frozen=True, eq=False)
class OwnMeasurements:
    """What was measured of an LLM, and the laws of the servers that were measured."""

    points: pd.DataFrame
    """As `Calibration.points`."""
    at_points_ms: np.ndarray
    """nTTFT and ITL of the servers that were measured, by the law, (1 + draws, points, 2)."""
    load: MeanLoad  #: The asked requests.
    seed: int

    def scaled(self, asked: Mapping[str, ReplicaLaws]) -> dict[str, np.ndarray]:
        """Return laws, (1 + draws, terms) by GPU profile, that give what was measured.

        Each draw is moved by its own errors, as `Calibration.corrected` moves latencies. The
        likeliest law gives the median of the first `LEAST_DRAWS` draws: it is the same however
        many are drawn. `asked` are the laws of the servers that are asked about, of as many draws.
        """
        rows = self._rows(asked)
        by_law = latencies_ms(asked, rows, self.load)
        of_draws = self._corrected(rows, by_law, None)
        of_few = self._corrected(rows, by_law, LEAST_DRAWS)
        likeliest = np.exp(np.median(np.log(of_few), axis=0))
        wanted = np.concatenate([likeliest[None], of_draws])

        scaled = {}
        for name, laws in asked.items():
            is_of_profile = (rows["gpu_profile_id"] == name).to_numpy()
            wanted_ms = wanted[:, is_of_profile]
            scaled[name] = laws.terms
            # On other profiles nothing moves unless measurements lie beyond the law.
            if not np.array_equal(wanted_ms[1:], by_law[1:, is_of_profile]):
                users = rows.loc[is_of_profile, "users"].to_numpy(float)
                scaled[name] = self._matched(laws, users, wanted_ms)
        return scaled

    def _rows(self, asked: Mapping[str, ReplicaLaws]) -> pd.DataFrame:
        """Return the loads at which laws are compared, `gpu_profile_id, users`."""
        pairs = []
        for name, laws in asked.items():
            held = _UNCROWDED * float(BatchLimits.of(laws.scheduler).most_decoding(self.load))
            levels = np.geomspace(1.0, max(held, _LEAST_USERS), _N_LOADS).round()
            pairs += [(name, users) for users in np.unique(levels).tolist()]
        return pd.DataFrame(pairs, columns=["gpu_profile_id", "users"])

    def _corrected(self, rows: pd.DataFrame, by_law: np.ndarray, n: int | None) -> np.ndarray:
        """Return the latencies at rows as the first n draws have them, moved; (n, rows, 2)."""
        calibration = Calibration(self.points, self.at_points_ms[1:][:n], self.seed)
        return calibration.corrected(rows, by_law[1:][:n])

    def _matched(self, laws: ReplicaLaws, users: np.ndarray, wanted_ms: np.ndarray) -> np.ndarray:
        """Return laws whose closed form gives latencies, (1 + draws, users, 2), at these users."""
        ttft_ms = wanted_ms[..., 0] * self.load.input_tokens
        goals = np.log(np.concatenate([ttft_ms, wanted_ms[..., 1]], axis=1))
        loads = ProbeResult(self.load, ttft_ms[0], wanted_ms[0, :, 1], users)
        return match_laws(laws.terms, BatchLimits.of(laws.scheduler), loads, goals).values


def latencies_ms(
    replicas: Mapping[str, ReplicaLaws], rows: pd.DataFrame, load: MeanLoad
) -> np.ndarray:
    """Return nTTFT and ITL by the closed form, (1 + draws, rows, 2).

    Args:
        replicas: by GPU profile.
        rows: `gpu_profile_id, users`, and the settings of servers that were measured.
        load: the requests.
    """
    n_laws = len(next(iter(replicas.values())).terms)
    latencies_ms = np.empty((n_laws, len(rows), len(TARGETS)))
    for name, indices in rows.groupby("gpu_profile_id").indices.items():
        replica = replicas[str(name)]
        limits = BatchLimits.of(replica.scheduler)
        if WAIT in rows:
            at = rows.iloc[indices]
            tokens = at[STEP_TOKENS].fillna(limits.max_num_batched_tokens)
            limits = limits._replace(
                max_num_seqs=at[SLOTS].fillna(np.inf).to_numpy(float),
                wait_steps=at[WAIT].fillna(0.0).to_numpy(float),
                max_num_batched_tokens=tokens.to_numpy(float),
            )
        users = rows["users"].to_numpy(float)[indices]
        means = closed_loop(broadcast_laws(replica.terms), limits, load, users)
        latencies_ms[:, indices, 0] = means.ttft_ms / load.input_tokens
        latencies_ms[:, indices, 1] = means.itl_ms
    return latencies_ms
