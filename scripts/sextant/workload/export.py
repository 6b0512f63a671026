"""Drawn requests in the formats of other tools, so that peers can run the same workload."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, write_parquet
from sextant.trace.trace_format import TRACE_COLUMNS

MOONCAKE_BLOCK_TOKENS = 512
"""Input tokens per entry of `hash_ids` in Mooncake's traces (FAST'25 release)."""
VLLM_BLOCK_TOKENS = 16
"""The same in vLLM's `timed_trace`, unless `--timed-trace-chunk-hash-size` says otherwise."""

FORMATS = ("parquet", "csv", "mooncake", "vllm-timed-trace", "vllm-custom")
"""What `write_trace` writes. The first two are Sextant's own trace contract."""


def check_format(form: str, out: str | Path) -> None:
    """Raise InputError if `write_trace` does not know a format."""
    if form not in FORMATS:
        fix = f"end the file in .parquet or .csv, or give --format: {', '.join(FORMATS)}"
        raise InputError(f"{form!r} is not a format", file=out, field="--format", fix=fix)


def write_trace(
    trace: pd.DataFrame,
    out: str | Path,
    form: str,
    prompts: Sequence[str] | None = None,
    **origin: Any,
) -> None:
    """Write requests, in the order of arrival, for a load tool; docs/workloads.md has the formats.

    `form` is one of `FORMATS`; `vllm-custom` needs `prompts`, the text of each request's input;
    `origin` is for the provenance of a Parquet file. The file is either whole or absent. No two
    requests share a block id, so that no prefix cache answers one with another's work.

    Raises:
        InputError: an unknown format, or `vllm-custom` without prompts.
    """
    check_format(form, out)
    if form == "parquet":
        table = pa.Table.from_pandas(trace, pa.schema(TRACE_COLUMNS), preserve_index=False)
        write_parquet(out, table.replace_schema_metadata(None), origin)
        return
    if form == "vllm-custom" and prompts is None:
        fix = "give a text and the LLM's tokenizer, or use vllm-timed-trace, which needs neither"
        raise InputError("vllm-custom needs prompts as text", field="format", fix=fix)
    with atomic_path(out) as temporary:
        if form == "csv":
            trace.to_csv(temporary, index=False)
        else:
            with temporary.open("w", encoding="utf-8") as handle:
                for line in _lines(trace, form, prompts):
                    handle.write(json.dumps(line, ensure_ascii=False) + "\n")


def _lines(trace: pd.DataFrame, form: str, prompts: Sequence[str] | None) -> Iterator[dict]:
    if form == "mooncake":
        # Mooncake's times are whole milliseconds.
        return _timed(trace, MOONCAKE_BLOCK_TOKENS, lambda time_s: round(time_s * 1000))
    if form == "vllm-timed-trace":
        return _timed(trace, VLLM_BLOCK_TOKENS, float)
    pairs = zip(prompts or (), trace["output_tokens"].tolist(), strict=True)
    return ({"prompt": prompt, "output_tokens": tokens} for prompt, tokens in pairs)


def _timed(
    trace: pd.DataFrame, block_tokens: int, timestamp: Callable[[float], float]
) -> Iterator[dict]:
    inputs = trace["input_tokens"].to_numpy()
    ends = np.cumsum(-(-inputs // block_tokens))
    columns = (trace["arrival_s"], trace["input_tokens"], trace["output_tokens"])
    first = 0
    for end, arrival_s, n_input, n_output in zip(
        ends.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        yield {
            "timestamp": timestamp(arrival_s),
            "input_length": n_input,
            "output_length": n_output,
            "hash_ids": list(range(first, end)),
        }
        first = end
