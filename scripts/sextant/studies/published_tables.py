"""Tables of the papers, shown beside what is computed and measured here."""

import pandas as pd

OPT_BATCH_SIZES = {
    "facebook__opt-125m": 512,
    "facebook__opt-1.3b": 256,
    "facebook__opt-2.7b": 128,
    "facebook__opt-6.7b": 64,
    "facebook__opt-13b": 16,
}
"""Largest batch size, a power of two up to 512, on an A100 of 40 GB for requests of 512 input and
256 output tokens. Recasens et al.: Towards Pareto Optimal Throughput in Small Language Model
Serving, EuroMLSys 2024, Table 1."""

LARGEST_OPT_BATCH = 512
OPT_INPUT_TOKENS, OPT_OUTPUT_TOKENS = 512, 256

PODS_THROUGHPUT_TOK_S = pd.DataFrame(
    [
        [47.1, 78.1, 118.2, 174.2, 237.8, 288.6, 314.7, 292.6],
        [23.5, 44.4, 74.7, 114.3, 171.1, 229.8, 282.7, 286.3],
        [11.6, 23.3, 43.0, 73.5, 113.0, 169.5, 231.4, 283.4],
        [5.7, 11.7, 22.8, 42.3, 72.6, 112.9, 169.2, 231.1],
    ],
    index=pd.Index([1, 2, 4, 8], name="replicas"),
    columns=pd.Index([1, 2, 4, 8, 16, 32, 64, 128], name="users"),
)
"""Output tokens per second and pod, Llama-2-13b, each pod on an A100 of 80 GB, by pods and users.
Lazuka et al.: LLM-Pilot, SC 2024, Table I."""
