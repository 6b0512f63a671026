"""What to know before an answer is used: where the question lies outside of the measurements, which
values are estimated, and which points failed."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from sextant.ask.question import Question
from sextant.ask.serving import PRECISIONS
from sextant.ask.source import SIDES, Source
from sextant.base.errors import InputError
from sextant.facts.engine import DEFAULT_ENGINE, is_known_engine
from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import LLM, Speculating, precision_in_name
from sextant.facts.nodes import NETWORK_GB_S
from sextant.facts.slo import MAX_FAILED, METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.words import joined, percent, plural, under_load
from sextant.points import frame
from sextant.points.frame import GRAPHS, LENGTHS
from sextant.points.tool_points import doubt_kinds

_FAR_LENGTHS = 2
"""Lengths beyond this many times the measured ones are outside of the measurements."""
_SIXTEEN_BIT = {"fp16": "bf16", "bf16": "fp16"}
"""Precisions of one speed and size."""
_DECIDES = {"nttft_ms": {"ttft", "nttft", "e2e"}, "itl_ms": {"itl", "tpot", "e2e"}}
"""The limits that each of the two predicted latencies decides."""
_KINDS: tuple[tuple[str, Callable[[LLM], str]], ...] = (
    ("an LLM with", lambda llm: "an encoder" if llm.n_encoder_layers else "a decoder alone"),
    ("attention", lambda llm: llm.attention),
    ("layers that are", lambda llm: "a mixture of experts" if llm.n_experts else "dense"),
)
_SIZES: tuple[tuple[str, Callable[[LLM], float]], ...] = (
    ("GiB of weights", lambda llm: llm.weight_bytes / GIB),
    ("layers", lambda llm: llm.n_layers + llm.n_encoder_layers),
    ("KiB of KV cache per token", lambda llm: llm.kv_bytes_per_token / 1024),
)
_MOST_FAILURES = 5
"""Points with failures that are listed, and servers that are named."""
_SERVER_COLUMNS = ["source", "llm_id", "gpu_profile_id", "engine", "precision"]
"""Columns that tell servers apart."""


def note_named_precision(question: Question, llm_id: str, llm: LLM) -> list[str]:
    """Say where an LLM's name has a precision that its configuration and the question lack."""
    precision = precision_in_name(llm_id, llm)
    if question.hf_config is None or question.dtype is not None or precision is None:
        return []
    return [
        f"{llm_id} says {precision} in its name, but its config quantizes nothing: {llm.dtype} is "
        f"assumed. Put its hf_quant_config.json beside it, or give --dtype {precision}."
    ]


def note_uncounted_drafts(llm_id: str, llm: Speculating) -> list[str]:
    """Say whose prompts the accepted drafts are taken from, and how to count one's own."""
    from sextant.facts.speculation import accepted_interval, coding_tokens  # few questions need it

    coding = 1 + coding_tokens(llm_id, llm.method, llm.draft_tokens)[-1]
    low, high = accepted_interval(llm)
    return [
        "Nobody counted how many drafts your prompts accept: a step is taken to emit "
        f"{llm.accepted_length:.2f} tokens (90% interval {low:.2f} to {high:.2f}). Coding "
        f"prompts emit {coding:.2f} (resources/speculation.csv), others fewer. Give yours "
        "(--acceptance): 1 + vllm:spec_decode_num_accepted_tokens_total / "
        "vllm:spec_decode_num_drafts_total, as vLLM's log reports it."
    ]


def length_factors(source: Source, lengths: Mapping[str, float]) -> dict[str, float]:
    """Return by what factor each length lies beyond the measured ones, at least 1."""
    factors = {}
    for name in LENGTHS:
        measured = source.characterization.points[name].dropna()
        factors[name] = max(lengths[name] / measured.max(), measured.min() / lengths[name], 1.0)
    return factors


def outside_of_measurements(
    question: Question,
    source: Source,
    llm: LLM,
    lengths: Mapping[str, float],
    gpu_profiles: Mapping[str, GPUProfile],
    users: int | None = None,
) -> list[str]:
    """Return in what the question lies outside of what was measured, one clause each.

    Args:
        question: what is asked.
        source: the measurements.
        llm: the LLM in the precisions of the question.
        lengths: mean tokens of a request, by column.
        gpu_profiles: the candidates.
        users: of a replica, where a latency is explained. An answer offers no more users than
            were measured.

    Raises:
        InputError: the question is strict, and something lies outside.
    """
    points = source.characterization.points
    clauses: list[tuple[str, str]] = []  # option, clause
    factors = length_factors(source, lengths)
    for side, (name, factor) in zip(SIDES, factors.items(), strict=True):
        if factor > _FAR_LENGTHS:
            ends = f"{points[name].min():.0f} to {points[name].max():.0f}"
            text = f"{plural(round(lengths[name]), f'{side} token')}, where {ends} were measured"
            clauses.append((f"--{side}-tokens", text))

    engines = sorted(points["engine"].dropna().unique())
    if question.engine is not None and question.engine not in engines:
        measured = ", ".join(engines) or "an engine that is not named"
        what = f"the engine {question.engine}"
        if not is_known_engine(question.engine):
            what += f" (scheduled as {DEFAULT_ENGINE}: resources/engines does not know it)"
        clauses.append(("--engine", f"{what}, where {measured} was measured"))
    if (question.data_parallel or 1) > 1 and not (points["data_parallel"] > 1).any():
        clauses.append(("--data-parallel", "copies of attention, where none were measured"))

    if question.enforce_eager and points[GRAPHS].fillna(True).all():
        text = "an engine without its CUDA graphs, where all were measured with them"
        clauses.append(("--enforce-eager", text))

    clauses += _outside_llms(source, llm)
    gpu_ids = {gpu_profile.gpu.gpu_id for gpu_profile in gpu_profiles.values()}
    if unmeasured := sorted(gpu_ids - source.gpu_ids):
        text = f"{joined(unmeasured)}, where {joined(sorted(source.gpu_ids))} were measured"
        clauses.append(("--gpu-profiles", text))
    clauses += _outside_nodes(source, gpu_profiles)
    if users is not None and users > (most := points["users"].max()):
        text = f"{users:,} users a replica, where up to {most:,} were measured"
        clauses.append(("--users-per-replica", text))

    if clauses and question.is_strict:
        field, text = clauses[0]
        fix = "ask about what was measured, name another --source, or leave --strict out"
        raise InputError(f"{text} ({source.characterization.source})", field=field, fix=fix)
    return [text for _, text in clauses]


def _outside_nodes(source: Source, gpu_profiles: Mapping[str, GPUProfile]) -> list[tuple[str, str]]:
    """Return which candidates span more nodes, or have more GPUs on one, than any measured one."""
    measured_ids = source.characterization.points["gpu_profile_id"].unique()
    measured = [source.characterization.profiles[profile_id] for profile_id in measured_ids]
    most_gpus = max(profile.n_gpus for profile in measured)
    candidates = sorted(gpu_profiles.items())
    clauses = []

    wide = [
        profile_id
        for profile_id, profile in candidates
        if profile.n_nodes == 1 and profile.n_gpus > most_gpus and profile.gpu.kind != "cpu"
    ]
    if wide:
        text = f"{joined(wide)}, where replicas on up to {plural(most_gpus, 'GPU')} were measured"
        clauses.append(("--gpu-profiles", text))

    spans = [
        f"{profile_id} on {profile.n_nodes} nodes of {profile.gpu.n_gpus_per_node} GPUs"
        for profile_id, profile in candidates
        if profile.n_nodes > 1
    ]
    if spans and all(profile.n_nodes == 1 for profile in measured):
        text = f"{joined(spans)}, tensor parallel over a network of {NETWORK_GB_S:g} GB/s a GPU, "
        clauses.append(("--gpu-profiles", text + "where single nodes were measured"))
    return clauses


def _outside_llms(source: Source, llm: LLM) -> list[tuple[str, str]]:
    """Return in what an LLM as it is served differs from all measured ones, with the option."""
    clauses: list[tuple[str, str]] = []
    points = source.characterization.points
    llms = source.characterization.llms
    measured_llms = [llms[llm_id] for llm_id in points["llm_id"].unique()]

    def add_new(option: str, what: str, value: str, measured: set[str]) -> None:
        if not {value, _SIXTEEN_BIT.get(value)} & measured:
            text = f"{what} {value}, where {joined(sorted(measured))} were measured"
            clauses.append((option, text))

    for precision in PRECISIONS:
        by_llm = {llm_id: precision.of_llm(measured) for llm_id, measured in llms.items()}
        measured_precisions = set(points[precision.column].fillna(points["llm_id"].map(by_llm)))
        option = f"--{precision.option.replace('_', '-')}"
        add_new(option, f"{precision.what} in", precision.of_llm(llm), measured_precisions)
    for what, kind_of in _KINDS:
        measured_kinds = {kind_of(measured) for measured in measured_llms}
        add_new("--hf-config", what, kind_of(llm), measured_kinds)
    for unit, size_of in _SIZES:
        size = size_of(llm)
        measured_sizes = [size_of(measured) for measured in measured_llms]
        if not min(measured_sizes) <= size <= max(measured_sizes):
            ends = f"{min(measured_sizes):.4g} to {max(measured_sizes):.4g}"
            clauses.append(("--hf-config", f"{size:.4g} {unit}, where {ends} were measured"))
    return clauses


def outside_warning(clauses: Sequence[str], source: Source) -> list[str]:
    """Return the one warning on what lies outside of the measurements; nothing without clauses."""
    text = f"Outside of what {source.label} measured: {'; '.join(clauses)}. "
    return [text + "The answer is less certain than it says."] if clauses else []


def estimates(points: pd.DataFrame, slo: SLO) -> list[str]:
    """Return which percentiles are estimated, and from what, one sentence each.

    Only latencies that have a limit, or that a request rate needs.
    """
    names = {"nttft_ms": "TTFT", "itl_ms": "time per token"}
    percentiles = dict(zip(names, slo.percentiles, strict=True))
    used = [name for name in names if slo.users is None or _DECIDES[name] & slo.limits.keys()]
    latencies = frame.at_percentile(points, slo.percentiles, slo.first_token)
    missing = [name for name in used if not (latencies[name] > 0).any()]
    sentences = [
        f"No {names[name]} was measured: its values are the law's assumption alone."
        for name in missing
    ]
    for target, columns in frame.estimated(points, percentiles).items():
        if target in used and target not in missing:
            sentences += _estimate(f"the {names[target]}", percentiles[target], columns)
    return sentences


def _estimate(what: str, percentile: int, columns: Sequence[str]) -> list[str]:
    asked_prefix = PERCENTILE_PREFIX[percentile]
    prefixes = [name.split("_")[0] for name in columns]
    if percentile == 50 and set(prefixes) <= {"mean", "median"}:
        return []
    others = [prefix for prefix in prefixes if prefix != asked_prefix]
    how = f"estimated from the {' or '.join(others)} with a factor of other sources"
    if others == ["p90", "p99"]:
        how = "interpolated between p90 and p99"
    if asked_prefix in prefixes:
        return [f"Some points lack the p{percentile} of {what}: there it is {how}."]
    return [f"The p{percentile} of {what} is not among the points: it is {how}."]


def judgements(points: pd.DataFrame, latencies: pd.DataFrame, slo: SLO) -> list[str]:
    """Return what to know of a measured answer, one sentence each.

    That is: limits that are judged by a derived or estimated latency. `latencies` are the points'
    latencies at the SLO's percentiles (`points.frame.judged`).
    """
    sentences = []
    n_points = len(latencies)
    for metric, (_, percentile) in slo.limits.items():
        if n_derived := int(latencies[f"{metric}_is_derived"].sum()):
            where = "" if n_derived == n_points else f" at {n_derived} of {n_points} points"
            text = f"{METRICS[metric]} was not measured{where}: it is derived from "
            sentences.append(f"{text}{frame.FORMULAS[metric]}.")
        columns = frame.estimated(points, {f"{metric}_ms": percentile}).get(f"{metric}_ms", [])
        sentences += _estimate(METRICS[metric], percentile, columns) if columns else []

    return sentences


def failure_notes(points: pd.DataFrame, slo: SLO) -> list[str]:
    """Return at which loads more requests failed than the SLO allows, one sentence each."""
    failing = points[frame.failed_share(points) > slo.allowed_failures]
    failing = failing.sort_values(["users", "request_rate_rps", "gpu_profile_id"])
    sentences = []
    for _, row in failing.head(_MOST_FAILURES).iterrows():
        where = f"{row['gpu_profile_id']} {load_words(row)}"
        n_failed, n_ok = int(row["n_failed"]), int(row["n_ok"])
        failed = f"{n_failed:,} of {n_ok + n_failed:,} requests failed"
        allowed = f"more than the {percent(slo.allowed_failures)} allowed"
        sentences.append(f"{where}: {failed}, {allowed}. That load does not meet the SLO.")
    if (n_more := len(failing) - _MOST_FAILURES) > 0:
        sentences.append(f"{plural(n_more, 'more point')} with too many failures.")
    return sentences


def failing_profiles(points: pd.DataFrame, slo: SLO) -> dict[str, str]:
    """Return on which GPU profiles one LLM's requests failed even at the lightest load, and why.

    Where loads were measured several times, or with several servers, all of the lightest count.
    """
    reasons = {}
    for profile_id, part in points.groupby("gpu_profile_id"):
        if len(lightest := _lightest_failed(part, slo)):
            allowed = percent(slo.allowed_failures)
            least = float(frame.failed_share(lightest).min())
            where = load_words(lightest.iloc[0])
            reasons[str(profile_id)] = (
                f"{percent(least)} of the requests failed {where}, {allowed} allowed"
            )
    return reasons


def failing_servers(points: pd.DataFrame, slo: SLO) -> pd.Series:
    """Return which points are of servers whose requests failed even at the lightest load.

    What their other requests took says nothing of the GPU: the server did less than its work.
    """
    is_failing = pd.Series(False, points.index)
    is_failed = frame.failed_share(points) > slo.allowed_failures
    servers = points.groupby(_SERVER_COLUMNS, dropna=False).ngroup()
    suspects = points[is_failed.groupby(servers).transform("any")]
    for _, part in suspects.groupby(_SERVER_COLUMNS, dropna=False):
        if len(_lightest_failed(part, slo)):
            is_failing[part.index] = True
    return is_failing


def failing_servers_notes(points: pd.DataFrame) -> list[str]:
    """Return how many points of failing servers no law learns from; nothing where none are."""
    if points.empty:
        return []
    servers = points[["llm_id", "gpu_profile_id"]].drop_duplicates().astype(str)
    named = [f"{llm_id} on {profile_id}" for llm_id, profile_id in servers.to_numpy()]
    if (n_more := len(named) - _MOST_FAILURES) > 0:
        named = [*named[:_MOST_FAILURES], f"{n_more} more"]
    return [
        f"Set aside: {plural(len(points), 'point')} of {joined(named)}, where too many requests "
        "failed even at the lightest load: nothing is predicted from them."
    ]


def _lightest_failed(points: pd.DataFrame, slo: SLO) -> pd.DataFrame:
    """Return the points of the lightest load if each has more failures than the SLO allows, else
    none."""
    lightest = points[points["users"] == points["users"].min()]
    if lightest.empty:
        lightest = points[points["request_rate_rps"] == points["request_rate_rps"].min()]
    is_failed = frame.failed_share(lightest) > slo.allowed_failures
    return lightest if is_failed.all() else lightest[:0]


def load_words(point: pd.Series) -> str:
    """Return the load of a point, e.g. `with 4 users` or `at 2 requests/s`."""
    users = None if pd.isna(point["users"]) else int(point["users"])
    return under_load(users, point["request_rate_rps"])


def doubt_notes(points: pd.DataFrame, llm_id: str) -> list[str]:
    """Return that points are doubtful, and why; nothing where none are.

    They are those of the LLM, or all where it was not measured. Why is their column `doubt`, and
    that many of the LLM's own requests failed.
    """
    of_llm = points[points["llm_id"].isin([llm_id, llm_id.replace("/", "__")])]
    used = of_llm if len(of_llm) else points
    doubts = used.reindex(columns=["doubt"])["doubt"].astype(object)
    if len(of_llm) and {"n_ok", "n_failed"} <= {*used}:
        share = frame.failed_share(used)
        is_new = (share > MAX_FAILED) & ~doubts.fillna("").str.contains("failures", regex=False)
        said = share.map(lambda value: f"failures ({percent(value)} of the requests)")
        doubts = doubts.mask(is_new, (doubts + "; ").fillna("") + said)
    doubts = doubts.dropna()
    if doubts.empty:
        return []
    why = str(doubts.iloc[0])
    if len(doubts) > 1:
        kinds = pd.Series([kind for doubt in doubts for kind in doubt_kinds(doubt)], dtype=object)
        counts = kinds.value_counts(sort=False)
        why = ", ".join(f"{kind} ({plural(n, 'point')})" for kind, n in counts.items())
    whose = f" of {llm_id}" if len(of_llm) else ""
    are = "are" if len(doubts) > 1 else "is"
    return [f"{len(doubts)} of {plural(len(used), 'point')}{whose} {are} doubtful: {why}."]
