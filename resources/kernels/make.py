"""Make resources/kernels.csv: what kernels reach on each GPU, from tables of their measured times.

    python resources/kernels/make.py FOLDER

FOLDER holds the tables of the package aiconfigurator-core 0.12.0 (Apache-2.0), as
`<op>/<gpu>__<engine>__<version>__<table>.parquet`. Each kind of kernel gets one row per GPU, engine
and precision: the constants of `facts.kernels.kernel_ms`, fitted to the logarithm of the times by
least squares with soft tails. Of several kernels for one shape the fastest counts, as engines
choose it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sextant.base.files import write_text
from sextant.base.resources import resource
from sextant.facts.gpu import GPU, GPUS, load_gpu
from sextant.facts.kernels import (
    KERNELS,
    MOST_SHARE,
    KernelRow,
    Reached,
    kernel_ms,
    peak_gb_s,
    peak_tflops,
)
from sextant.facts.llm import EXPERT_MATRICES

SYSTEMS = {
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100-80GB",
    "h200_sxm": "H200-141GB",
    "b200_sxm": "B200-180GB",
    "b300_sxm": "B300-288GB",
    "gb200": "GB200-186GB",
    "gb300": "GB300-288GB",
    "l40s": "L40S-48GB",
    "rtx_pro_6000_server": "RTX-PRO-6000-96GB",
    "b60": "B60-24GB",
}
PRECISIONS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
    "int4_wo": "int4",
}
"""Precisions by the tables' names; other rows are left out, and said."""
WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 9 / 16,
    "mxfp4": 17 / 32,
    "mxfp4_mxfp8": 17 / 32,
    "int4": 17 / 32,
}
"""Bytes of a weight with its share of the scales."""
LEAST_ROWS = 15
LEAST_FIXED_US = 2.5
"""No kernel takes less: its launch within a CUDA graph alone is about as long."""
MOST_FIXED_US = 50.0
"""A product that takes longer at least is timed with work of the host in it (FP8 in blocks of vLLM
0.24): the row is left out."""
MOST_OVER_16_BITS = 1.5
"""Quantized experts that take longer than this many times those of 16 bits, in the median of the
same work, are of kernels that were not tuned, and that no server would keep (FP8 of vLLM 0.24 on
Hopper: 2.2 and 2.5): they are left out."""
ABSORBED = ("flash_attention", "triton")
"""SGLang's tables of latent attention on Hopper and on cards are of kernels that multiply a prompt
with the latent vectors: 1,088 numbers a head for 320. Its servers do so behind a cached prefix only
(github.com/sgl-project/sglang, models/deepseek_common/attention_backend_handler.py)."""
QUANTIZED_STATES = ("fp8", "fp8_block", "nvfp4")
"""Precisions of dense products that tokens' states are quantized for, as the weights are."""
LEAST_SIDE = 2048
"""Smaller matrices than any of an LLM's are left out."""
_SOFT = 0.1
"""Errors of the logarithm beyond which least squares count less."""
_OF_BEST = 0.93
"""What the fit gives of what products reach at their best shape, on H100, A100 and B200."""
_MAMF = "github.com/stas00/ml-engineering, compute/accelerator, MAMF"
BEST_SHARES = {
    "MI300X-192GB": (781.9 / 1300, _MAMF),
    "Gaudi-3-128GB": (1288.8 / 1677, _MAMF),
    "RTX-4090-24GB": (178.4 / 165.2, "github.com/mag-/gpu_benchmark"),
}
"""Share of the 16-bit peak that products reach at their best shape, of GPUs without tables."""
ALIKE = {
    "MI300X-192GB": "MI300X-192GB",
    "MI325X-256GB": "MI300X-192GB",
    "MI355X-288GB": "MI300X-192GB",
    "Gaudi-3-128GB": "Gaudi-3-128GB",
}
"""GPUs of makers without tables, and the one that says how far their kernels are behind."""


class Measured(NamedTuple):
    """Times of kernels of one kind, and their work; one value per row."""

    kind: str
    precision: pd.Series  #: Of `PRECISIONS`.
    n_gpus: pd.Series
    bytes_moved: pd.Series  #: Of memory; of an all-reduce, over the links.
    flop: pd.Series
    experts: pd.Series  #: In use.
    state_bytes: pd.Series
    """Of tokens' states that move beside the products: into and out of attention, into a quantized
    form, to experts and back, once for each that a token chose."""
    ms: pd.Series


def dense(table: pd.DataFrame) -> Measured:
    """Products of m tokens with an n × k matrix.

    The tables time what quantizes the tokens' states beside a product, by a kernel of its own: it
    reads 16-bit numbers and writes quantized ones. Servers do this within norms and activations.
    """
    table = table[(table["n"] >= LEAST_SIDE) & (table["k"] >= LEAST_SIDE)]
    m, n, k = (table[name].astype(float) for name in ("m", "n", "k"))
    precision = table["gemm_dtype"].map(PRECISIONS)
    weight_bytes = precision.map(WEIGHT_BYTES)
    moved = n * k * weight_bytes + m * k * weight_bytes.clip(lower=1) + m * n * 2
    states = (m * k * (2 + weight_bytes)).where(precision.isin(QUANTIZED_STATES), 0.0)
    return _measured("dense", table, precision, moved, 2 * m * n * k, states)


def decode_attention(table: pd.DataFrame) -> Measured:
    """One token per request looks back on `isl + step` tokens: grouped heads, no window."""
    table = _plain_heads(table)
    tokens = table["batch_size"] * (table["isl"] + table["step"]).astype(float)
    precision = table["kv_cache_dtype"].map(PRECISIONS)
    numbers = 2 * tokens * table["num_key_value_heads"] * table["head_dim"]
    flop = 4 * tokens * table["num_heads"] * table["head_dim"]
    return _measured(
        "decode_attention", table, precision, numbers * precision.map(WEIGHT_BYTES), flop
    )


def prefill_attention(table: pd.DataFrame) -> Measured:
    """Prompts of `isl` tokens, each of which looks back on those before it.

    Queries, keys, values and outputs are the states.
    """
    table = _plain_heads(table)
    table = table[table["isl"] >= 256]
    tokens = table["batch_size"] * table["isl"].astype(float)
    heads = table["num_heads"] + table["num_key_value_heads"]
    flop = 2 * tokens * table["isl"] * table["num_heads"] * table["head_dim"]
    states = 4 * tokens * heads * table["head_dim"]
    precision = table["attn_dtype"].map(PRECISIONS)
    return _measured("prefill_attention", table, precision, 0.0, flop, states)


def decode_mla(table: pd.DataFrame) -> Measured:
    """As `decode_attention`: one vector of 576 numbers per token, of which 512 are values too."""
    tokens = table["batch_size"] * (table["isl"] + table["step"]).astype(float)
    precision = table["kv_cache_dtype"].map(PRECISIONS)
    flop = 2 * tokens * table["num_heads"] * (576 + 512)
    moved = tokens * 576 * precision.map(WEIGHT_BYTES)
    return _measured("decode_mla", table, precision, moved, flop)


def prefill_mla(table: pd.DataFrame) -> Measured:
    """As `prefill_attention`: heads of 192 numbers, 128 of values."""
    table = table[(table["isl"] >= 256) & ~table["kernel_source"].isin(ABSORBED)]
    tokens = table["batch_size"] * table["isl"].astype(float)
    flop = tokens * table["isl"] * table["num_heads"] * (192 + 128)
    states = 4 * tokens * table["num_heads"] * (192 + 128)
    precision = table["mla_dtype"].map(PRECISIONS)
    return _measured("prefill_mla", table, precision, 0.0, flop, states)


def experts(table: pd.DataFrame) -> Measured:
    """One layer's routed experts, of gate, up and down, with what sorts tokens by expert."""
    table = _without_slow_precisions(table)
    is_balanced = table["distribution"] == "balanced"
    table = table[is_balanced] if is_balanced.any() else table
    held = table["num_experts"] / table["moe_ep_size"]
    chosen = table["num_tokens"] * table["topk"] / table["moe_ep_size"].astype(float)
    # Balanced loads spread over all experts; others are drawn.
    drawn = held * (1 - (1 - table["topk"] / table["num_experts"]) ** table["num_tokens"])
    in_use = np.minimum(held, chosen) if is_balanced.any() else drawn
    width = table["inter_size"] / table["moe_tp_size"]
    matrices = EXPERT_MATRICES * table["hidden_size"] * width
    precision = table["moe_dtype"].map(PRECISIONS)
    moved = in_use * matrices * precision.map(WEIGHT_BYTES)
    flop = 2 * chosen * matrices
    # However experts or matrices are divided, a device handles all tokens' choices.
    states = 2.0 * table["num_tokens"] * table["topk"] * table["hidden_size"]
    measured = _measured("experts", table, precision, moved, flop, states)
    return measured._replace(experts=in_use.astype(float))


def all_reduce(table: pd.DataFrame) -> Measured:
    """Sums of 16-bit numbers over GPUs of one node, as a ring moves them; in CUDA graphs."""
    table = table[~table["kernel_source"].str.contains("eager")]
    n = table["num_gpus"]
    numbers = table["message_size"].astype(float)
    precision = table["allreduce_dtype"].map({"bfloat16": "bf16", "half": "bf16"})
    measured = _measured("all_reduce", table, precision, 2 * (n - 1) / n * 2 * numbers, 0.0)
    return measured._replace(n_gpus=n)


TABLES = {
    "gemm/*__gemm_perf.parquet": dense,
    "attention/*__generation_attention_perf.parquet": decode_attention,
    "attention/*__context_attention_perf.parquet": prefill_attention,
    "mla/*__generation_mla_perf.parquet": decode_mla,
    "mla/*__context_mla_perf.parquet": prefill_mla,
    "moe/*__moe_perf.parquet": experts,
    "comm/*__custom_allreduce_perf.parquet": all_reduce,
}


def _without_slow_precisions(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of experts whose precision is not far slower than 16 bits, and say the rest.

    In 16 bits there may be none to compare with.
    """
    shape = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts"]
    work = [*shape, "moe_tp_size", "moe_ep_size", "distribution"]
    ms = table.pivot_table("latency", work, "moe_dtype", aggfunc="min")
    if "bfloat16" not in ms:
        return table
    ratios = ms.div(ms["bfloat16"], axis=0).median()
    slow = ratios[ratios > MOST_OVER_16_BITS]
    for precision, ratio in slow.items():
        gpu = table["device"].iloc[0]
        print(f"left out: experts in {precision} on {gpu}, {ratio:.1f} times as long as 16 bits")
    return table[~table["moe_dtype"].isin(slow.index)]


def _plain_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows of whole attention with heads of 128; tables without a column have only those."""
    plain = {"window_size": 0, "head_dim": 128}
    table = table.assign(**{name: v for name, v in plain.items() if name not in table})
    table = table[(table["window_size"] == 0) & (table["head_dim"] == 128)]
    absent = {"kv_cache_dtype", "attn_dtype"} - {*table}
    return table.assign(**dict.fromkeys(absent, "bfloat16"))


def _measured(
    kind: str,
    table: pd.DataFrame,
    precision: pd.Series,
    moved: pd.Series | float,
    flop: pd.Series | float,
    states: pd.Series | float = 0.0,
) -> Measured:
    one = pd.Series(1, table.index)
    none = one * 0.0
    bytes_moved, flops, state_bytes = (none + each for each in (moved, flop, states))
    return Measured(kind, precision, one, bytes_moved, flops, none, state_bytes, table["latency"])


START = Reached(
    fixed_ms=5e-3, expert_ms=1e-4, bandwidth_share=0.7, flops_share=0.5, states_share=0.5
)
ABSENT = Reached(fixed_ms=0.0, expert_ms=0.0, bandwidth_share=1.0, flops_share=1.0)
"""Constants of work that a kernel does not have."""


def fit(measured: pd.DataFrame, bytes_per_ms: float, flop_per_ms: float) -> tuple[Reached, float]:
    """Return the constants of a kernel, and the spread of the times around them."""
    work = [measured[name].any() for name in ("experts", "bytes_moved", "flop", "state_bytes")]
    is_fitted = [True, *work]
    start = np.array(START)[is_fitted]
    least = np.full(len(start), -np.inf)
    least[0] = np.log(LEAST_FIXED_US / 1e3)
    most = np.full(len(start), np.inf)
    if measured["state_bytes"].any():
        most[-1] = np.log(MOST_SHARE)
    moved_ms = measured["bytes_moved"].to_numpy() / bytes_per_ms
    product_ms = measured["flop"].to_numpy() / flop_per_ms
    in_use = measured["experts"].to_numpy()
    states_ms = measured["state_bytes"].to_numpy() / bytes_per_ms
    ms = measured["ms"].to_numpy()

    def constants(logs: np.ndarray) -> Reached:
        values = np.array(ABSENT)
        values[is_fitted] = np.exp(logs)
        return Reached(*values.tolist())

    def missed(logs: np.ndarray) -> np.ndarray:
        return np.log(kernel_ms(constants(logs), moved_ms, product_ms, in_use, states_ms) / ms)

    found = least_squares(
        missed, np.log(start), bounds=(least, most), loss="soft_l1", f_scale=_SOFT
    )
    return constants(found.x), float(missed(found.x).std())


def rows_of(path: Path, measured: Measured, gpu: GPU) -> Iterator[KernelRow]:
    """Yield a row per precision and number of GPUs of a table."""
    _, engine, version, _ = path.name.split("__")
    columns = measured._asdict()
    kind = columns.pop("kind")
    frame = pd.DataFrame(columns).dropna()
    # The fastest of several kernels for the same work.
    work = ["precision", "n_gpus", "bytes_moved", "flop", "experts", "state_bytes"]
    frame = frame.groupby(work, as_index=False)["ms"].min()
    for (precision, n_gpus), part in frame.groupby(["precision", "n_gpus"]):
        if len(part) < LEAST_ROWS:
            continue
        tflops = peak_tflops(gpu, kind, str(precision))
        found, spread = fit(part, peak_gb_s(gpu, kind) * 1e6, tflops * 1e9)
        if kind == "dense" and found.fixed_ms * 1e3 > MOST_FIXED_US:
            print(f"left out: {path.name} {precision}, {found.fixed_ms * 1e3:.0f} us at least")
            continue
        # Above its peak no time of the table was bound by products.
        is_bound = part["flop"].any() and found.flops_share < 1
        yield KernelRow(
            gpu_id=gpu.gpu_id,
            engine=engine,
            engine_version=version,
            kind=kind,
            precision=str(precision),
            n_gpus=int(n_gpus),
            fixed_us=round(found.fixed_ms * 1e3, 2),
            expert_us=round(found.expert_ms * 1e3, 3) if part["experts"].any() else None,
            bandwidth_share=round(found.bandwidth_share, 3) if part["bytes_moved"].any() else None,
            flops_share=round(found.flops_share, 4) if is_bound else None,
            states_share=round(found.states_share, 4) if part["state_bytes"].any() else None,
            spread=round(spread, 2),
            rows=len(part),
        )


def published_rows() -> Iterator[KernelRow]:
    """Yield what is published of products on GPUs without tables."""
    for gpu_id, (share, source) in BEST_SHARES.items():
        yield KernelRow(
            gpu_id=gpu_id,
            kind="dense",
            precision="bf16",
            flops_share=round(_OF_BEST * share, 3),
            source=source,
        )


def rows_of_other_makers(measured: pd.DataFrame) -> Iterator[KernelRow]:
    """Yield rows of makers without tables: all kernels are behind as far as products in 16 bits.

    Shares are the median of all GPUs with tables, times the ratio of what products reach; least
    times are divided by it.
    """
    constants = ["fixed_us", "expert_us", "bandwidth_share", "flops_share", "states_share"]
    usual = measured.groupby(["kind", "precision", "n_gpus"])[constants].median()
    for gpu_id, alike in ALIKE.items():
        ratio = _OF_BEST * BEST_SHARES[alike][0] / usual.loc[("dense", "bf16", 1), "flops_share"]
        for (kind, precision, n_gpus), row in usual.iterrows():
            if (kind, precision, gpu_id) == ("dense", "bf16", alike):
                row = row.drop("flops_share")  # published
            scaled = {name: value / ratio for name, value in row.items() if name.endswith("_us")}
            scaled |= {name: value * ratio for name, value in row.items() if name not in scaled}
            yield KernelRow(
                gpu_id=gpu_id,
                kind=kind,
                precision=precision,
                n_gpus=int(n_gpus),
                source=f"the median of all, as far behind as products of {alike}",
                **{name: round(value, 3) for name, value in scaled.items() if value == value},
            )


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows = [*published_rows()]
    for pattern, read in TABLES.items():
        for path in sorted(folder.glob(pattern)):
            gpu = load_gpu(GPUS, SYSTEMS[path.name.split("__")[0]])
            rows += rows_of(path, read(pd.read_parquet(path)), gpu)
    rows += rows_of_other_makers(pd.DataFrame(rows))
    rows.sort(key=lambda row: (row.kind, row.gpu_id, row.engine or "", row.precision, row.n_gpus))
    frame = pd.DataFrame(rows).astype({"rows": "Int64"})
    write_text(resource(KERNELS), frame.to_csv(index=False, lineterminator="\n"))
    print(f"{len(frame)} rows, {frame['rows'].sum():,} times of kernels")


if __name__ == "__main__":
    main()
