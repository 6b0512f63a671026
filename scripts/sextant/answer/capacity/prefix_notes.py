"""What an answer says of the prefixes that a trace's requests share."""

import numpy as np
import pandas as pd

from sextant.answer.capacity.demand import Demand
from sextant.pages.wording import percent


def prefix_notes(demand: Demand, has_prefix_caching: bool) -> list[str]:
    """Return what prefix caching makes of the requests, in a sentence; none if not known."""
    if demand.prefix_id is None:
        return []
    tokens = pd.Series(demand.prefix_tokens)
    before = tokens.groupby(demand.prefix_id).transform(lambda own: own.cummax().shift())
    again = np.minimum(before.fillna(0), tokens).sum() / demand.input_tokens.sum()
    if has_prefix_caching:
        return [
            f"Prefix caching is on: {percent(again)} of the input tokens repeat the beginning of "
            "an earlier request by the trace's hash_ids, and are found while they are kept."
        ]
    return [
        f"Prefix caching is off: {percent(again)} of the input tokens, which repeat the beginning "
        "of an earlier request by the trace's hash_ids, are computed again."
    ]
