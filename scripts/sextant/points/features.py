"""Features of LLMs and GPU profiles: computed from facts, or published with a characterization."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM

if TYPE_CHECKING:
    from sextant.experiment.experiment import Experiment

_LLM_FACTS = (
    "llm_type",
    "dtype",
    "n_parameters",
    "n_layers",
    "hidden_size",
    "ffn_size",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "vocab_size",
    "context_tokens",
    "weight_bytes",
    "kv_bytes_per_token",
)


class Features(NamedTuple):
    """What is known of each LLM and each GPU profile before anything is measured."""

    llms: pd.DataFrame
    """One row per LLM, indexed by `llm_id`."""
    profiles: pd.DataFrame
    """One row per GPU profile, indexed by `gpu_profile_id`."""

    @classmethod
    def of_facts(cls, llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]) -> Self:
        """Return the features computed from facts."""
        return cls(llm_table(llms), profile_table(profiles))

    @classmethod
    def published(
        cls,
        llm_rows: Sequence[Mapping[str, Any]],
        gpu_rows: Sequence[Mapping[str, Any]],
        profiles: Mapping[str, GPUProfile],
    ) -> Self:
        """Return features that came with a characterization, from its two sheets.

        Profiles get those of their device, the number of devices and their memory together
        (`memory_capacity_gb_total`), as LLM-Pilot's features do. A `note` is not a feature.
        """
        gpus = _table(gpu_rows, "gpu_id")
        each = gpus.loc[[profile.gpu.gpu_id for profile in profiles.values()]]
        n_gpus = pd.Series({name: profile.n_gpus for name, profile in profiles.items()})
        each = each.set_axis(n_gpus.index.rename("gpu_profile_id")).assign(n_gpus=n_gpus)
        total = each["n_gpus"] * each["memory_capacity_gb"]
        return cls(_table(llm_rows, "llm_id"), each.assign(memory_capacity_gb_total=total))


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
        """What predictors learn from that need no facts of their own.

        Published features serve where all LLMs and GPU profiles have some.
        """
        computed = Features.of_facts(self.llms, self.profiles)
        if self.published is None:
            return computed
        pairs = zip(self.published, computed, strict=True)
        is_complete = all(mine.index.isin(its.index).all() for its, mine in pairs)
        return self.published if is_complete else computed


def _table(rows: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    rows = [{name: value for name, value in row.items() if name != "note"} for row in rows]
    # A row lacks the columns it has no value in: the fullest rows tell the columns' order.
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    return pd.DataFrame(rows, columns=list(columns)).set_index(key)


def llm_table(llms: Mapping[str, LLM]) -> pd.DataFrame:
    """Return one row of facts per LLM, indexed by `llm_id`."""
    rows = [{name: getattr(llm, name) for name in _LLM_FACTS} for llm in llms.values()]
    return pd.DataFrame(rows, index=pd.Index(llms, name="llm_id"), columns=list(_LLM_FACTS))


def profile_table(profiles: Mapping[str, GPUProfile]) -> pd.DataFrame:
    """Return one row of facts per GPU profile, indexed by `gpu_profile_id`.

    `total_*` sum over the devices of the profile. The price is left out: it moves no token.
    """
    rows = [_profile_facts(profile) for profile in profiles.values()]
    return pd.DataFrame(rows, index=pd.Index(profiles, name="gpu_profile_id"))


def _profile_facts(profile: GPUProfile) -> dict[str, str | float]:
    gpu, n = profile.gpu, profile.n_gpus
    return {
        "gpu_id": gpu.gpu_id,
        "architecture": gpu.architecture,
        "n_gpus": n,
        "memory_gib": gpu.memory_gib,
        "memory_bandwidth_gb_s": gpu.memory_bandwidth_gb_s,
        "dense_16bit_tflops": gpu.dense_16bit_tflops,
        "total_memory_gib": n * gpu.memory_gib,
        "total_memory_bandwidth_gb_s": n * gpu.memory_bandwidth_gb_s,
        "total_dense_16bit_tflops": n * gpu.dense_16bit_tflops,
    }


def published_features(experiment: "Experiment") -> Features | None:
    """Return the features that came with an experiment's characterization, if any did."""
    if not experiment.features:
        return None
    rows = experiment.features
    return Features.published(rows["llms"], rows["gpus"], experiment.profiles)


def feature_rows(source: str, features: Features | None) -> list[dict[str, str]]:
    """Return the rows of table `feature`; `characterization` reads them back."""
    return [
        {"source": source, "kind": kind, "id": name, "facts": facts.to_json(double_precision=15)}
        for kind, table in zip(("llm", "gpu_profile"), features or (), strict=bool(features))
        for name, facts in table.astype(object).iterrows()
    ]


ENCODER_DECODER, PAGED, PADDED = "encoder-decoder", "paged", "padded"
"""How an engine executes an LLM: padded to the longest request, with or without an encoder, or
with attention over a paged (unpadded) KV cache."""


def execution_classes(llms: Mapping[str, LLM], published: Features | None) -> dict[str, str]:
    """Return how each LLM is executed: `paged`, `padded` or `encoder-decoder`.

    A characterization whose features say `is_flash_attention` tells which decoders ran padded,
    and so of others of the same type. All others are taken for paged, as current engines do.
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
