"""How far off a fit is on LLMs that it has not seen, beside what its effects' spreads say.

General effects are fitted to the LLMs of a fit, so that what they leave to these LLMs is less than
what they leave to another LLM; or more, where a few LLMs are strange. So each LLM of the fit is
left out of it in turn, and the spread that holds for new LLMs is scaled until nine of ten errors
lie within the 90% intervals. Where some points are of the LLM that is asked about (`pair_misfit`)
the same errors say how far its other pairs may be off.
"""

import numpy as np
import pandas as pd

from sextant.law.fit import LawFit
from sextant.law.posterior import unseen_key

_INSIDE = 0.9
"""Share of the points that should lie inside of their intervals."""
_NORMAL = 1.645
"""Half of a 90% interval over a normal standard deviation."""
_OF_ERRORS = 2.132
"""The same over the scale of Student's t of 4 degrees of freedom, as errors are."""
_OF_EFFECTS = 2.920
"""The same of 2 degrees of freedom, as effects of LLMs are."""
_PRIOR_LLMS = 4.0
"""LLMs that the factor 1 counts for."""
_GROUPS = ("support ttft_offset", "support itl_offset")
"""Effects of how well an engine supports an LLM, which are scaled: of nTTFT and of ITL."""


def unseen_factors(fitted: LawFit, X: pd.DataFrame) -> dict[str, float]:
    """Return `Posterior.unseen_factors` of a fit to these fact rows.

    An engine's factor for a latency is the one with which nine of ten of its points are inside,
    each LLM predicted by a fit without it; an engine of few LLMs stays near 1.
    """
    llms = architecture_names(X)
    left_out = fitted.leave_out(llms)
    missed = fitted.problem.observed - left_out.log_latencies
    noise = fitted.problem.by_row(fitted.posterior.noise)
    groups = np.array(fitted.problem.design.groups)
    scales = np.array([fitted.posterior.spread.get(group, 0.0) for group in groups])
    is_scaled = np.isin(groups, _GROUPS)

    others = left_out.squared_scale(np.where(is_scaled, 0.0, scales))
    rest = _NORMAL**2 * left_out.known_variance + _OF_ERRORS**2 * noise**2 + _OF_EFFECTS**2 * others
    left = np.sqrt(np.maximum(missed**2 - rest, 0.0))
    scale = np.sqrt(left_out.squared_scale(np.where(is_scaled, scales, 0.0)))
    needed = np.divide(left, _OF_EFFECTS * scale, out=np.full_like(left, np.nan), where=scale > 0)

    factors = {}
    for kind in np.unique(fitted.problem.kinds):
        for side, group in enumerate(_GROUPS):
            rows = (fitted.problem.kinds == kind) & np.isfinite(needed[:, side])
            if not rows.any():
                continue
            factor = np.quantile(needed[rows, side], _INSIDE)
            n_llms = llms[rows].nunique()
            mean = (n_llms * factor + _PRIOR_LLMS) / (n_llms + _PRIOR_LLMS)
            factors[unseen_key(kind, group)] = float(mean)
    return factors


def pair_misfit(fitted: LawFit, X: pd.DataFrame, pairs: pd.Series) -> dict[str, float]:
    """Return the scale of the pair offsets of an LLM that the fit has not seen, by group.

    The law misses an LLM's pairs by different factors. The scale is the standard deviation of
    these misses within the median LLM, as the scale of Student's t with the same 90% interval. The
    offsets of LLMs in the fit differ by less, since general effects were fitted to them.

    Args:
        fitted: the fit.
        X: its fact rows.
        pairs: the name of each row's pair.
    """
    as_scale = _NORMAL / _OF_EFFECTS
    missed = fitted.problem.observed - fitted.leave_out(X["llm_id"]).log_latencies
    by_pair = pd.DataFrame(missed, X.index, ["ttft", "itl"]).groupby([X["llm_id"], pairs]).mean()
    spread = by_pair.groupby("llm_id").std().median().dropna() * as_scale
    return {f"pair {name}_offset": float(value) for name, value in spread.items()}


def architecture_names(X: pd.DataFrame) -> pd.Series:
    """Return the name of each row's architecture: a fine-tune says nothing new of its LLM."""
    names = ["n_layers", "reduced_bytes", "kv_parts", "n_experts", "experts_per_token"]
    return X[names].map("{:g}".format).agg(" ".join, axis=1)
