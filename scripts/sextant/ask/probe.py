"""A probe: the file with measurements of the LLM that is asked about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field

from sextant.ask.candidates import find_gpu_profile
from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import Latencies
from sextant.points.frame import LATENCIES, LENGTHS


@dataclass(frozen=True, kw_only=True)
class ProbeRow(Latencies):
    """`sextant recommend --probe`: each row is what was measured of the LLM on a GPU profile.

    At least one latency, each at the percentile that is asked for.
    """

    gpu_profile_id: str  #: the GPU profile it was measured on, e.g. 1xA100-40GB
    users: Annotated[int, Field(ge=1, le=10**6)]
    """give the concurrent users of the measurement, 1 to 1,000,000"""


def read_probe(
    path: Path, llm_id: str, gpu_profiles: Mapping[str, GPUProfile], lengths: Sequence[float]
) -> pd.DataFrame:
    """Return measurements of an LLM, from a CSV or TSV.

    nTTFT is TTFT / input tokens, TPOT is taken for ITL, and two of TTFT, ITL and E2E give the
    third.

    Args:
        path: the file.
        llm_id: the LLM's name.
        gpu_profiles: those that are known.
        lengths: mean input and output tokens, where the file has none.

    Returns:
        One row per measurement: `llm_id, gpu_profile_id, users, input_tokens, output_tokens,
        nttft_ms, itl_ms, e2e_ms`, NaN where a latency was not measured and does not follow, and
        the latencies of the file with `own_` before their names.

    Raises:
        InputError: a row is wrong, is repeated, has no latency or names an unknown profile.
    """
    rows = load_sheet(path, ProbeRow, delimiter=None)
    lines: dict[tuple[str, int], int] = {}
    for row in rows:
        field = "gpu_profile_id"
        find_gpu_profile(row[field], gpu_profiles, file=path, row=row.line, field=field)
        key = row[field], row["users"]
        if key in lines:
            problem = f"{key[0]} with {key[1]} users is already in line {lines[key]}"
            raise InputError(problem, file=path, row=row.line, field=field, fix="keep one of them")
        lines[key] = row.line

    keys = ["llm_id", "gpu_profile_id", "users", *LENGTHS]
    frame = pd.DataFrame(rows).reindex(columns=[*keys, *LATENCIES]).assign(llm_id=llm_id)
    frame = frame.fillna(dict(zip(LENGTHS, lengths, strict=True)))
    steps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    ttft = frame["ttft_ms"].fillna(frame["nttft_ms"] * frame["input_tokens"])
    itl = frame["itl_ms"].fillna(frame["tpot_ms"])
    e2e = frame["e2e_ms"]

    def refuse(is_wrong: pd.Series, field: str, problem: str, fix: str) -> None:
        if is_wrong.any():
            line = rows[int(is_wrong.to_numpy().argmax())].line
            raise InputError(problem, file=path, row=line, field=field, fix=fix)

    fix = "give one or more of them, in milliseconds"
    refuse(ttft.fillna(itl).fillna(e2e).isna(), ", ".join(LATENCIES), "no latency", fix)
    problem = "E2E is not above TTFT, or not above ITL × (output tokens - 1)"
    fix = "correct it, or give input_tokens and output_tokens of the requests"
    refuse((e2e <= ttft) | (e2e <= itl * steps), "e2e_ms", problem, fix)

    ttft = ttft.fillna(e2e - itl * steps)
    itl = itl.fillna((e2e - ttft) / steps)
    targets = {"nttft_ms": ttft / frame["input_tokens"], "itl_ms": itl}
    in_file = frame[[*LATENCIES]].add_prefix("own_")
    return frame[[*keys, "e2e_ms"]].assign(**targets).join(in_file)
