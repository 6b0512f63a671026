"""Prefix reuse: block ids from the source to the trace, its report, prompts that share them."""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ingest_input import ingest
from test_load_command import load
from test_simulate_command import run

from sextant.ask.traffic import TraceTraffic, demand_of_trace
from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.report.trace_characterize import write_trace_report
from sextant.report.trace_reuse import measure_reuse
from sextant.simulate.cache_depths import cache_depths
from sextant.trace.job import ingest_trace
from sextant.trace.trace_format import HASH_IDS
from sextant.workload.shared_blocks import TraceBlocks, read_shared_blocks
from stub_server import StubServer, answer_tokens

BLOCK = 512
# Two users of one system prompt (block 7); the first comes again, then the second, then a stranger.
TALKS = [[7, 1], [7, 2], [7, 1, 3], [7, 2, 4], [9]]


def mooncake(lists: list[list[int]], step_ms: int = 30_000, spare: int = 12) -> str:
    """Return a row of Mooncake a list of ids; the last block of each lacks `spare` tokens."""
    rows = (
        {"timestamp": step_ms * n, "input_length": BLOCK * len(ids) - spare, "hash_ids": ids}
        for n, ids in enumerate(lists)
    )
    return "".join(json.dumps(row | {"output_length": 3}) + "\n" for row in rows)


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    ingest(tmp_path, mooncake(TALKS), "mooncake", "talks.jsonl")
    return tmp_path / "out" / "t.parquet"


def n_alike(one: list[int], other: list[int]) -> int:
    """Return how many leading tokens two prompts share."""
    n_both = min(len(one), len(other))
    return next((n for n in range(n_both) if one[n] != other[n]), n_both)


def blocks_of(lists: list[list[int]]) -> TraceBlocks:
    n = len(lists)
    ends = np.cumsum([len(ids) for ids in lists])
    ids = np.array([each for ids in lists for each in ids], np.int64)
    tokens = np.array([max(2 * len(ids), 1) for ids in lists])
    return TraceBlocks(np.arange(n) / 1.0, tokens, np.ones(n), ids, ends, 2)


def test_ids_stay_with_their_requests_when_rows_are_sorted(tmp_path):
    lines = mooncake(TALKS).splitlines(keepends=True)
    text = "".join(lines[place] for place in (3, 0, 4, 2, 1))
    trace, _, report = ingest(tmp_path, text, "mooncake", "t.jsonl")
    assert [ids.tolist() for ids in trace[HASH_IDS]] == TALKS and report["n_moved"] == 3
    assert read_provenance(tmp_path / "out" / "t.parquet")["block_tokens"] == BLOCK


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ("[1, 2, 3]", "hash_ids: more than the blocks of the input"),
        ("[1, -2]", "hash_ids: not a list of whole numbers from 0 on"),
        ("[1, 2.5]", "hash_ids: not a list"),
        ("[9223372036854775808]", "hash_ids: not a list"),
        ('"1, 2"', "hash_ids: not a list"),
        ("[true]", "hash_ids: not a list"),
    ],
)
def test_ids_that_cannot_be_are_set_aside(tmp_path, ids, reason):
    text = mooncake([[1], [1, 2]]) + mooncake([[1, 2]]).replace("[1, 2]", ids)
    trace, rejected, _ = ingest(tmp_path, text, "mooncake", "t.jsonl")
    assert len(trace) == 2 and rejected["line"].tolist() == [3]
    assert rejected["reason"][0].startswith(reason)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_a_cache_of_any_size_is_what_one_that_is_played_through_is(seed):
    rng = np.random.default_rng(seed)
    # Few ids, so that one id comes after different others: it is another prefix then.
    lists = [rng.integers(0, 4, rng.integers(0, 7)).tolist() for _ in range(rng.integers(1, 60))]
    blocks = blocks_of(lists)
    depth, used_by = cache_depths(blocks.prefixes(), blocks.ends)
    prefixes = [tuple(ids[: place + 1]) for ids in lists for place in range(len(ids))]
    for size in (1, 3, 10, 1000):
        cache, found, start = OrderedDict[tuple[int, ...], int](), [], 0
        for request, end in enumerate(blocks.ends):
            own = prefixes[start:end]
            found += [cache.get(prefix, -1) for prefix in own]
            for prefix in reversed(own):
                cache[prefix] = request
                cache.move_to_end(prefix)
            while len(cache) > size:
                cache.popitem(last=False)
            start = end
        is_found = (depth >= 0) & (depth < size)
        assert np.where(is_found, used_by, -1).tolist() == found


def test_the_report_says_what_repeats_by_cache_time_and_age(talks):
    found = measure_reuse(talks)
    assert (found["n_blocks"], found["n_distinct_blocks"], found["block_tokens"]) == (11, 6, BLOCK)
    # 7; 7 and 1; 7 and 2.
    assert found["repeated_fraction"] == pytest.approx(5 / 11)
    # All blocks that repeat are whole: in none does one end that came again.
    assert found["repeated_token_fraction"] == pytest.approx(5 * BLOCK / (11 * BLOCK - 5 * 12))
    assert found["repeating_request_fraction"] == pytest.approx(3 / 5)
    by_cache = found["by_cache"]
    assert by_cache["cache_tokens"] == [BLOCK * size for size in (1, 2, 4, 8)]
    # The third finds 7 first, then 1 behind 7 and 2; the fourth 7 first, 2 behind 7, 1 and 3.
    assert by_cache["repeated_fraction"] == pytest.approx([3 / 11, 3 / 11, 5 / 11, 5 / 11])
    assert found["within"] == [{"age_s": 60, "repeated_fraction": pytest.approx(5 / 11)}]
    out = talks.with_suffix(".html")
    report = write_trace_report(talks, [], out, talks.with_suffix(".json"), seed=0)
    assert "45.5 % of the 11 blocks" in report["takeaways"]["prefix-reuse"]
    assert "a cache of 2,048 tokens finds nine tenths" in report["takeaways"]["prefix-reuse"]
    assert "45.9 % of the input tokens that an" in out.read_text()


def test_mooncakes_conversations_repeat_37_percent(tmp_path, mirror):
    outputs = (tmp_path / name for name in ("t.parquet", "r.parquet", "report.json"))
    ingest_trace(mirror / "mooncake/conversation_trace.jsonl", "mooncake", *outputs)
    found = measure_reuse(tmp_path / "t.parquet")
    assert found["n_blocks"] == 288_500
    assert found["repeated_fraction"] == pytest.approx(0.3664, abs=1e-4)
    assert found["by_cache"]["repeated_fraction"] == sorted(found["by_cache"]["repeated_fraction"])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_chains_promise_nothing_that_the_ids_do_not_hold(seed):
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, 3, rng.integers(0, 6)).tolist() for _ in range(rng.integers(1, 40))]
    blocks = blocks_of(lists)
    part = np.sort(rng.choice(len(lists), rng.integers(1, len(lists) + 1), replace=False))
    chain, tokens = blocks.at(part).chains()
    kept = [lists[place] for place in part]
    for one, first in enumerate(kept):
        alike = [n_alike(first, kept[other]) for other in range(len(kept)) if other != one]
        # As far as any other request has it: that far, it may be found.
        assert tokens[one] == 2 * max(alike, default=0) and (chain[one] == -1) == (tokens[one] == 0)
        for other, ids in enumerate(kept):
            if chain[one] == chain[other] != -1:
                assert 2 * n_alike(first, ids) >= min(tokens[one], tokens[other])


def test_simulations_find_what_a_traces_requests_share(talks):
    found = demand_of_trace(talks, window_s=60, has_prefixes=True)
    assert found.prefixes.tokens.tolist() == [2 * BLOCK - 12, 2 * BLOCK - 12, 1024, 1024, 0]
    # Each talk is a chain; their system prompt counts in each by itself.
    assert len(set(found.prefixes.ids[:4])) == 2 and found.prefixes.ids[4] == -1
    shuffled = TraceTraffic(found, None).drawn(3)
    pairs = {(i, n) for i, n in zip(found.input_tokens, found.prefixes.tokens, strict=True)}
    assert pairs == set(zip(shuffled.input_tokens, shuffled.prefixes.tokens, strict=True))
    on, off = (
        json.loads(run("--trace", str(talks), "--format", "json", *options))
        for options in ([], ["--no-prefix-caching"])
    )
    # 63 of the first prompt's blocks of 16 tokens are full; its last one is computed.
    assert on["cached_fraction"] == pytest.approx(2 * 63 * 16 / found.input_tokens.sum())
    assert off["cached_fraction"] == 0 and on["ttft_ms"]["mean"] < off["ttft_ms"]["mean"]
    assert "Prefix caching is on: 36.3 % of the input tokens" in on["text"]
    assert "Prefix caching is off: 36.3 % of the input tokens" in off["text"]


@pytest.mark.parametrize("is_text", [False, True])
def test_a_server_gets_the_prefixes_that_the_trace_has(talks, tmp_path, is_text):
    options = ("--replay", talks, "--batch", 1, "--n-requests", 10, *["--text"] * is_text)
    with StubServer(answer_tokens()) as server:
        frame, written = load(server.url, tmp_path / "load", *options)
    prompts = [request.json["prompt"] for request in server.requests]
    prompts = [text.split() for text in prompts] if is_text else prompts
    first, again = prompts[:5], prompts[5:]
    assert [len(prompt) for prompt in first] == [BLOCK * len(ids) - 12 for ids in TALKS]
    spread = 9 if is_text else 1  # words are few: some are alike by chance
    for (one, other), n_blocks in {(0, 1): 1, (0, 2): 2, (1, 3): 2, (0, 4): 0}.items():
        expected = min(n_blocks * BLOCK, len(first[one]))
        assert expected <= n_alike(first[one], first[other]) <= expected + spread
    # What comes after the last request is not in the cache yet.
    assert max(n_alike(*pair) for pair in zip(first, again, strict=True)) <= spread
    assert set(frame["requested_output_tokens"]) == {3}
    assert written["definition"]["shared_block_tokens"] == BLOCK
    assert written["prompts"].endswith("alike as far as hash_ids are")


def test_a_replay_comes_at_the_traces_own_times(talks, tmp_path):
    with StubServer(answer_tokens()) as server:
        options = ("--replay", talks, "--time-factor", 0.001)
        frame, written = load(server.url, tmp_path / "load", *options)
    frame = frame.sort_values("scheduled_s")
    assert np.diff(frame["scheduled_s"]) == pytest.approx(np.full(4, 0.03), abs=1e-6)
    assert frame["input_tokens"].tolist() == [BLOCK * len(ids) - 12 for ids in TALKS]
    assert written["scenario"]["arrivals"]["trace"] == str(talks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workload", "summarization"), "'--workload'.*--replay"),
        (("--max-input-tokens", 9), "'--max-input-tokens'.*leave it out"),
        (("--users", 1, "--time-factor", 2), "'--time-factor'.*leave it out"),
        (("--vocab-size", 16), "vocab_size"),
    ],
)
def test_options_that_a_replay_does_not_take_are_named(talks, tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        load("http://127.0.0.1:9", tmp_path / "load", "--replay", talks, *options)


def test_a_trace_that_does_not_say_what_its_ids_are_of_is_refused(talks):
    table = pd.read_parquet(talks)
    table.to_parquet(talks)
    with pytest.raises(InputError, match=r"field 'hash_ids': .*block_tokens.*again"):
        read_shared_blocks(talks)


KINDS = ("sys_prompt", "passage", "history", "web_search", "user_input")
RAGPULSE = ",".join(
    ["arrival_s,session,input_tokens,output_tokens", *(f"{kind}_ids" for kind in KINDS)]
    + [f"{kind}_tokens" for kind in KINDS]
)


def test_parts_of_prompts_become_blocks_as_far_as_all_before_are_equal(tmp_path):
    rows = [
        "0,1,565,9",
        '0,1,565,9,"1 2","5 6",7,"",8,522,30,4,0,4\r',
        '0,1,565,9,"1 2,5 6,7,,8,522,30,4,0,4',
        "7, 2,565,9, 1 2,5 9,7,,8, 522,30,4,0,4",
        "7,1,570,9,1 4,5 6,7,,8,522,30,4,0,4",
        "9,3,565,9,1 2,5 6,7,,8,522,30,4,0,4",
        "9,3,565,9,1 2,5 6,7,,8,522,many,4,0,4",
        "9,3,565,9,1 2,5\0 6,7,,8,522,30,4,0,4",
        f"9,3,565,9,1 2,5 6,7,,8,{'9' * 30},30,4,0,4",
        "12,3,500,9,1 2,5 6,7,,8,522,30,4,0,4",
    ]
    trace, rejected, _ = ingest(tmp_path, "\n".join([RAGPULSE, *rows, ""]), "ragpulse")
    assert trace["session_id"].tolist() == ["1", "2", "1", "3"]
    assert trace["request_id"].tolist() == ["3", "5", "6", "7"]
    assert rejected.set_index("line")["reason"].to_dict() == {
        2: "wrong number of columns",
        4: "malformed quotes",
        8: "passage_tokens: not a whole number from 0 to 9999999",
        9: "passage_ids: not letters and digits with spaces between",
        10: "sys_prompt_tokens: not a whole number from 0 to 9999999",
        11: "hash_ids: more than the blocks of the input",
    }
    assert rejected["raw"].tolist()[0] == rows[0]
    first, *others = (ids.tolist() for ids in trace[HASH_IDS])
    # Tokens 0 to 511 are part 1, to 521 part 2, to 536 and 551 the passages, to 559 the others.
    assert len(first) == 35 and len(set(first)) == 4
    assert [n_alike(first, other) for other in others] == [33, 32, 35]
    # Ids do not depend on the lines before: no table of all parts is kept.
    (tmp_path / "alone").mkdir()
    alone, _, _ = ingest(tmp_path / "alone", "\n".join([RAGPULSE, rows[3], ""]), "ragpulse")
    assert alone[HASH_IDS][0].tolist() == others[0]


def test_ragpulses_prompts_repeat_31_percent(tmp_path, mirror):
    source = mirror / "rag/ragpulse.csv"
    if not source.is_file():
        pytest.skip("the mirror has no RAGPulse")
    outputs = [tmp_path / name for name in ("t.parquet", "r.parquet", "report.json")]
    ingest_trace(source, "ragpulse", *outputs)
    found = measure_reuse(outputs[0])
    raw = pd.read_csv(source).sort_values("arrival_s", kind="stable")
    tokens = sum(raw[f"{kind}_tokens"] for kind in KINDS)
    assert found["n_blocks"] == np.ceil(tokens / 16).sum()
    parts = raw[[f"{kind}_ids" for kind in KINDS]].fillna("").astype(str).agg(" ".join, axis=1)
    # How many leading parts an earlier prompt has; the system prompt has three, of 512 tokens.
    seen, n_blocks = set[tuple[str, ...]](), 0
    for own, n_system, n_all in zip(
        parts.str.split(), raw["sys_prompt_tokens"], tokens, strict=True
    ):
        n = max((n for n in range(1, len(own) + 1) if tuple(own[:n]) in seen), default=0)
        n_blocks += min(512 * n, n_system) // 16 if n < len(own) else np.ceil(n_all / 16)
        seen |= {tuple(own[:n]) for n in range(1, len(own) + 1)}
    # Of three prompts a few passages repeat as well.
    assert found["repeated_fraction"] * found["n_blocks"] == pytest.approx(n_blocks, rel=1e-3)
    assert found["repeated_fraction"] == pytest.approx(0.3144, abs=1e-4)
    assert pd.read_parquet(outputs[0], columns=["session_id"])["session_id"].nunique() == 3990
