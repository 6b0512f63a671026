"""Request models built from the distributions of single parameters."""

import numpy as np
import pandas as pd

from sextant.workload.request_model import RequestModel, bin_starts


def in_bins(
    values: np.ndarray, probabilities: np.ndarray, n_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring lengths into at most `n_bins` bins of about equal probability.

    A bin's value is the mean of what is in it, rounded, so that the mean is kept; a length
    that is frequent by itself keeps a bin of its own.

    Args:
        values: ascending lengths.
        probabilities: of each.
        n_bins: most bins.

    Returns:
        The bins' lengths (ascending, distinct) and their probabilities.
    """
    starts = bin_starts(np.rint(probabilities * 1e12).astype(np.int64), n_bins)
    mass = np.add.reduceat(probabilities, starts)
    sums = np.add.reduceat(probabilities * values, starts)
    is_kept = mass > 0
    means = np.rint(sums[is_kept] / mass[is_kept]).astype(np.int32)
    return means, mass[is_kept]


def independent_model(
    inputs: tuple[np.ndarray, np.ndarray], outputs: tuple[np.ndarray, np.ndarray]
) -> RequestModel:
    """Return the request model of independent input and output lengths.

    Args:
        inputs: distinct lengths and their probabilities.
        outputs: likewise.
    """
    (input_tokens, p_input), (output_tokens, p_output) = inputs, outputs
    frame = pd.DataFrame(
        {
            "input_tokens": np.repeat(input_tokens, len(output_tokens)).astype(np.int32),
            "output_tokens": np.tile(output_tokens, len(input_tokens)).astype(np.int32),
            "probability": np.outer(p_input, p_output).ravel(),
        }
    )
    return RequestModel(frame)
