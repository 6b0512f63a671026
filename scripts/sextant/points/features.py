"""Features of LLMs and GPU profiles: computed from facts, or published with a characterization."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM

if TYPE_CHECKING:
    from sextant.experiment.experiment import Experiment

_LLM_FACTS = (
    *("llm_type", "dtype", "n_parameters", "n_layers", "hidden_size", "ffn_size", "n_heads"),
    *("n_kv_heads", "head_dim", "vocab_size", "context_tokens", "weight_bytes"),
    "kv_bytes_per_token",
)
_GPU_RATES = ("memory_gib", "memory_bandwidth_gb_s", "dense_16bit_tflops")
ENCODER_DECODER, PAGED, PADDED = "encoder-decoder", "paged", "padded"
"""How an engine executes an LLM: padded to the longest request, with or without an encoder, or
with attention over a paged (unpadded) KV cache."""


class Features(NamedTuple):
    """What is known of each LLM and each GPU profile before anything is measured."""

    llms: pd.DataFrame
    """One row per LLM, indexed by `llm_id`."""
    profiles: pd.DataFrame
    """One row per GPU profile, indexed by `gpu_profile_id`."""


class Facts(NamedTuple):
    """What is known before anything is measured: all that a predictor sees of a new LLM."""

    llms: Mapping[str, LLM]
    """By `llm_id`."""
    profiles: Mapping[str, GPUProfile]
    """By `gpu_profile_id`."""
    published: Features | None = None
    """Features that came with a characterization; None: they are computed from the facts."""

    @property
    def features(self) -> Features:
        """What predictors without physics learn from.

        Published features are used if all LLMs and GPU profiles have some.
        """
        computed = computed_features(self.llms, self.profiles)
        if self.published is None:
            return computed
        pairs = zip(computed, self.published, strict=True)
        is_complete = all(own.index.isin(published.index).all() for own, published in pairs)
        return self.published if is_complete else computed


def computed_features(llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]) -> Features:
    """Return features computed from facts; `total_*` sum over the devices of a profile.

    The price is left out: no latency depends on it.
    """
    llm_rows = [{name: getattr(llm, name) for name in _LLM_FACTS} for llm in llms.values()]
    profile_rows = []
    for profile in profiles.values():
        rates = {name: getattr(profile.gpu, name) for name in _GPU_RATES}
        total = {f"total_{name}": profile.n_gpus * rate for name, rate in rates.items()}
        of = {"gpu_id": profile.gpu.gpu_id, "architecture": profile.gpu.architecture}
        profile_rows.append({**of, "n_gpus": profile.n_gpus, **rates, **total})
    return Features(
        pd.DataFrame(llm_rows, index=pd.Index(llms, name="llm_id"), columns=list(_LLM_FACTS)),
        pd.DataFrame(profile_rows, index=pd.Index(profiles, name="gpu_profile_id")),
    )


def features_of_sheets(
    llm_rows: Sequence[Mapping[str, Any]],
    gpu_rows: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, GPUProfile],
) -> Features:
    """Return features that came with a characterization, from its two sheets.

    Profiles get those of their device, the number of devices and their memory together
    (`memory_capacity_gb_total`), as LLM-Pilot's features do. A `note` is not a feature.
    """
    gpus = _table(gpu_rows, "gpu_id")
    each = gpus.loc[[profile.gpu.gpu_id for profile in profiles.values()]]
    n_gpus = pd.Series({name: profile.n_gpus for name, profile in profiles.items()})
    each = each.set_axis(n_gpus.index.rename("gpu_profile_id")).assign(n_gpus=n_gpus)
    total = each["n_gpus"] * each["memory_capacity_gb"]
    return Features(_table(llm_rows, "llm_id"), each.assign(memory_capacity_gb_total=total))


def _table(rows: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    rows = [{name: value for name, value in row.items() if name != "note"} for row in rows]
    # A row lacks the columns it has no value in: the fullest rows have the columns' order.
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    return pd.DataFrame(rows, columns=list(columns)).set_index(key)


def published_features(experiment: "Experiment") -> Features | None:
    """Return the features that came with an experiment's characterization, if any did."""
    rows = experiment.features
    return features_of_sheets(rows["llms"], rows["gpus"], experiment.profiles) if rows else None


def feature_rows(source: str, features: Features | None) -> list[dict[str, str]]:
    """Return the rows of table `feature`."""
    return [
        {"source": source, "kind": kind, "id": name, "facts": facts.to_json(double_precision=15)}
        for kind, table in zip(("llm", "gpu_profile"), features or (), strict=bool(features))
        for name, facts in table.astype(object).iterrows()
    ]


def execution_classes(llms: Mapping[str, LLM], published: Features | None) -> dict[str, str]:
    """Return how each LLM is executed: `paged`, `padded` or `encoder-decoder`.

    The published feature `is_flash_attention` says which decoders ran padded; others of the same
    type are assumed to run alike. All others are assumed to run paged, as in current engines.
    """
    flash: dict[str, float] = {}
    if published is not None and "is_flash_attention" in published.llms:
        flash = published.llms["is_flash_attention"].astype(float).to_dict()
    by_type = {llms[llm_id].llm_type: value for llm_id, value in flash.items() if llm_id in llms}
    classes = {}
    for llm_id, llm in llms.items():
        is_padded = flash.get(llm_id, by_type.get(llm.llm_type)) == 0
        decoder = PADDED if is_padded else PAGED
        classes[llm_id] = ENCODER_DECODER if llm.is_encoder_decoder else decoder
    return classes
