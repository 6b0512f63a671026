"""From joint draws of latencies to the options of a demand."""

from collections.abc import Mapping

import numpy as np

from sextant.decide.decision import sustained
from sextant.decide.recommend import load_served
from sextant.experiment.slo import SLO
from sextant.fleet.problem import Demand, Option
from sextant.hardware.gpu import GPUProfile
from sextant.predict.draws import Draws


def options_of_draws(
    demand: Demand, draws: Draws, profiles: Mapping[str, GPUProfile], slo: SLO | None = None
) -> list[Option]:
    """Return an option for each GPU profile that serves the demand in some draw.

    Args:
        demand: what is wanted.
        draws: joint draws of the latencies of its LLM, on these profiles.
        profiles: facts of the profiles; their prices play no part.
        slo: limits in place of the demand's own.
    """
    limits = slo or demand.slo
    served = sustained(draws, limits, load_served)
    loads = limits.load * np.array(demand.load_shares)
    return [
        Option(
            demand.demand_id,
            name,
            profiles[name].gpu.gpu_id,
            profiles[name].n_gpus,
            served[llm_id, name].to_numpy(float),
            loads,
        )
        for llm_id, name in served.columns
        if served[llm_id, name].any()
    ]
