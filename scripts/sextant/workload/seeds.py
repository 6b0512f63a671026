"""Seeds of independent random streams; needs no data frames, as the load client does."""

import numpy as np

Seed = int | np.random.SeedSequence


def child_seed(seed: Seed, number: int) -> np.random.SeedSequence:
    """Return the `number`-th independent stream of `seed`, the same at every call."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, number))
