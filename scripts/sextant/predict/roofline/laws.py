"""The two laws, and which of them describes a point's engine."""

import numpy as np
import pandas as pd

from sextant.points.features import ENCODER_DECODER, Facts
from sextant.predict.roofline import chunked, effects, law
from sextant.predict.roofline.facts import columns_of
from sextant.predict.roofline.posterior import Law


def _tree_columns(X: pd.DataFrame, predicted: np.ndarray) -> pd.DataFrame:
    fits = law.requests_that_fit(np.full(len(X), 0.5), columns_of(X))
    columns = _with_latencies(X, predicted).assign(
        n_gpus=X["n_gpus"].astype(float),
        log_fits=np.log(fits),
        is_paged=X["is_paged"],
        is_encoder_decoder=(X["execution"] == ENCODER_DECODER).astype(float),
    )
    first = ["users", "n_gpus", "log_fits"]  # samples of columns are drawn by position
    return columns[[*first, *columns.columns.drop(first)]]


_KINDS = (
    ("is_16bit", ("bf16", "fp16")),
    ("is_fp8", ("fp8",)),
    ("is_fp4", ("nvfp4", "mxfp4")),
    ("is_integer", ("int4", "int8")),
)


def _chunked_tree_columns(X: pd.DataFrame, predicted: np.ndarray) -> pd.DataFrame:
    kinds = {name: X["served_precision"].isin(which).astype(float) for name, which in _KINDS}
    return _with_latencies(X, predicted).assign(
        log_gpus=np.log2(X["n_gpus"]),
        is_replicated=(X["data_parallel"] > 1).astype(float),
        log_bandwidth=np.log2(X["bytes_per_ms"]),
        log_input=np.log2(X["input_tokens"]),
        log_output=np.log2(X["output_tokens"]),
        is_moe=X["is_moe"],
        **kinds,
    )


def _with_latencies(X: pd.DataFrame, predicted: np.ndarray) -> pd.DataFrame:
    columns = {"users": np.log2(X["users"]), "log_nttft": predicted[:, 0]}
    return pd.DataFrame(columns | {"log_itl": predicted[:, 1]}, index=X.index)


BATCHING = Law(
    law.NAMES,
    law.predict_log,
    effects.effects,
    law.terms,
    _tree_columns,
)
"""Engines that stop to prefill new requests (TGIS), and servers whose engine is not known."""

CHUNKED = Law(
    chunked.NAMES,
    chunked.predict_log,
    chunked.effects,
    chunked.terms,
    _chunked_tree_columns,
    freedom=2.0,
)
"""Engines that mix chunks of prompts into decode steps, on GPUs."""


STOPPING_ENGINE = "tgis"


def is_chunked(keys: pd.DataFrame, facts: Facts) -> np.ndarray:
    """Tell which points the law of chunked prefill describes.

    Those whose engine is named, unless it is TGIS, which stops to prefill; and on GPUs only: on
    CPU cores a step has no floor of CUDA graphs.
    """
    named = keys["engine"] if "engine" in keys else pd.Series(None, keys.index, dtype=object)
    on_gpus = [facts.profiles[name].gpu.kind != "cpu" for name in keys["gpu_profile_id"]]
    return (named.notna() & (named != "") & (named != STOPPING_ENGINE)).to_numpy() & on_gpus
