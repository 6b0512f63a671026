"""Sessions: turns that wait for answers, from a publisher's file to servers that follow them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import sextant
from plain_simulator import LAW
from sextant.ask.traffic import (
    TraceTraffic,
    demand_notes,
    demand_of_trace,
    multiplied_demand,
)
from sextant.base.errors import InputError
from sextant.capacity.sessions import SessionTraffic
from sextant.facts.startup import Startup
from sextant.simulate.scaling import Autoscaler, Reactive, Trigger, simulate_scaled
from sextant.simulate.server import OK, REFUSED, Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.workload.requests import RequestStream
from support import ROOT

PLAN = Scheduler(60_000, max_num_seqs=64, max_num_batched_tokens=2048)


def turns(n_sessions: int, n_turns: int, seed: int) -> RequestStream:
    """Return sessions whose inputs grow by what was said; some turns have two that follow."""
    rng = np.random.default_rng(seed)
    rows = []
    for session, start_s in enumerate(rng.uniform(0, 60, n_sessions)):
        for turn in range(n_turns):
            parent = -1 if turn == 0 else turn - 1 - (turn % 3 == 0 and turn > 1)
            rows.append((start_s + 10 * turn, session, turn, parent))
    rows.sort()
    place = {row[1:3]: at for at, row in enumerate(rows)}
    parent = [place[session, before] if before >= 0 else -1 for _, session, _, before in rows]
    at_s, session, turn, _ = np.array(rows).T
    inputs = 500 + 300 * turn
    think_s = rng.uniform(0.05, 8, len(rows))
    return RequestStream.of(at_s, inputs, np.full(len(rows), 50), session, inputs, parent, think_s)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.sampled_from(["round_robin", "least_requests", "prefix"]),
)
def test_a_turn_comes_when_the_answer_was_thought_about(seed, n_replicas, router):
    requests = turns(12, 6, seed)
    made = simulate(requests, PLAN, LAW, n_replicas=n_replicas, router=router)
    assert (made.status == OK).all()
    waits = requests.turns.parent >= 0
    end_s = (made.arrival_s + made.e2e_s)[requests.turns.parent[waits]]
    assert made.arrival_s[waits] == pytest.approx(end_s + requests.turns.think_s[waits])
    assert (made.arrival_s[~waits] == requests.arrival_s[~waits]).all()
    # As requests that arrive at these times whatever is answered, they see the same.
    order = np.argsort(made.arrival_s, kind="stable")
    columns = requests.input_tokens, requests.output_tokens, *requests.prefixes
    alone = RequestStream.of(made.arrival_s[order], *(column[order] for column in columns))
    again = simulate(alone, PLAN, LAW, n_replicas=n_replicas, router=router)
    assert again.e2e_s == pytest.approx(made.e2e_s[order])
    assert (again.cached_tokens == made.cached_tokens[order]).all()


def test_slower_servers_have_turns_come_later():
    requests = turns(10, 6, 0)
    slow = StepLaw(20, 50, 0.5, 2e-4, 0.2, 1e-6, 0.0, 40, 0.05, 1.0, 3.0)
    assert simulate(requests, PLAN, slow).end_s > 1.2 * simulate(requests, PLAN, LAW).end_s


def test_a_session_goes_on_after_a_refusal_and_a_timeout():
    arrival_s, how = np.array([0.0, 1.0]), {"parent": [-1, 0], "think_s": [0, 2.0]}
    made = simulate(RequestStream.of(arrival_s, [90_000, 100], [10, 10], **how), PLAN, LAW)
    assert made.status.tolist() == [REFUSED, OK]
    assert made.arrival_s[1] == 2.0
    late = RequestStream.of(arrival_s, [100, 100], [2000, 1], **how)
    made = simulate(late, Scheduler(60_000, timeout_s=3.0), LAW)
    assert made.arrival_s[1] == pytest.approx(5.0, abs=0.1)


def test_without_room_for_the_prefixes_blocks_are_evicted():
    requests = turns(12, 6, 0)
    roomy, small = (
        simulate(requests, Scheduler(tokens, max_num_seqs=16), LAW) for tokens in (200_000, 6_000)
    )
    assert roomy.use.n_evicted == 0 < small.use.n_evicted
    assert small.cached_tokens.sum() < 0.8 * roomy.cached_tokens.sum()


def test_a_policy_follows_sessions():
    requests = turns(30, 6, 0)
    policy = Reactive((Trigger("requests_in_flight", 1.0),), 4)
    autoscaler = Autoscaler(policy, Startup(5.0, 0.0))
    made, scaling = simulate_scaled(requests, PLAN, LAW, autoscaler, duration_s=200.0)
    assert (made.status == OK).all()
    assert scaling.ready.max() > 1


def test_a_request_that_waits_for_a_later_one_is_an_error():
    with pytest.raises(InputError, match="waits for a later one"):
        RequestStream.of(np.array([0.0, 1.0]), [1, 1], [1, 1], parent=[1, -1], think_s=[0, 0])


def turn(t: float, inputs: int, outputs: int, took_s: float, run: tuple[int, int]) -> dict:
    return {"t": t, "in": inputs, "out": outputs, "api_time": took_s, "hash_runs": [run]}


TURNS = [
    turn(0.0, 640, 20, 4.0, (1, 10)) | {"type": "n"},
    turn(9.0, 960, 30, 2.0, (1, 15)) | {"type": "n"},
    {"t": 12.0, "type": "subagent", "requests": [turn(0.0, 128, 5, 20.0, (90, 2))]},
    turn(15.0, 960, 30, 2.0, (1, 15)) | {"type": "n"},
]
OTHER = {"id": "b", "requests": [turn(3.0, 640, 7, 1.0, (1, 10))]}
SESSIONS = [{"id": "a", "requests": TURNS}, OTHER]


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sessions")
    with gzip.open(folder / "s.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(session) + "\n" for session in SESSIONS)
    out = folder / "s.parquet"
    sextant("ingest", folder / "s.jsonl.gz", "--format", "kv-cache-tester", "--out", out)
    return out


def test_trees_of_sessions_become_requests(trace):
    table = pq.read_table(trace).to_pandas()
    assert table["arrival_s"].tolist() == [0.0, 3.0, 9.0, 12.0, 15.0]
    assert table["session_id"].tolist() == ["a", "b", "a", "a", "a"]
    assert table["e2e_ms"].tolist() == [4000, 1000, 2000, 20_000, 2000]
    first, other, second = table["hash_ids"][:3]
    assert list(second[:10]) == list(first)
    assert not {*first} & {*other}  # ids are those of one session


def demand_of(trace: Path) -> RequestStream:
    return demand_of_trace(trace, window_s=300.0, has_prefixes=True, has_turns=True)


def test_a_turn_follows_the_last_answer_that_was_there(trace):
    demand = demand_of(trace)
    # The agent at 12 s and the turn at 15 s both follow the answer at 11 s.
    assert demand.turns is not None
    assert demand.turns.parent.tolist() == [-1, -1, 0, 2, 2]
    assert demand.turns.think_s.tolist() == [0, 0, 5.0, 1.0, 4.0]
    part = demand.at(np.array([2, 3]))
    assert part.turns is not None
    assert part.turns.parent.tolist() == [-1, 0]  # the first one's answer is not there


def test_copies_of_sessions_wait_for_their_own_answers(trace):
    once = demand_of(trace)
    twice = multiplied_demand(once, 2)
    assert twice.turns is not None
    assert twice.prefixes is not None
    # A session is copied whole, at one later time: all its turns keep their order and their gaps.
    parent, ids = twice.turns.parent, twice.prefixes.ids
    waits = np.flatnonzero(parent >= 0)
    assert len(waits) == 2 * 3 and len(np.unique(twice.turns.session)) == 2 * 2
    assert (twice.turns.session[waits] == twice.turns.session[parent[waits]]).all()
    assert (parent[waits] < waits).all()
    copied = twice.at(np.flatnonzero(twice.turns.session >= 2))
    assert np.diff(copied.arrival_s) == pytest.approx(np.diff(once.arrival_s))
    twice.check()
    own = twice.input_tokens[waits] >= 960
    assert (ids[waits] == ids[parent[waits]])[own].all()


def test_sessions_an_hour_are_drawn_from_the_trace(trace):
    traffic = SessionTraffic(demand_of(trace), 1200.0, 3600.0, 1)
    demand = traffic.drawn(0)
    # Half of 1,200 sessions have four requests, half have one.
    assert demand.n == pytest.approx(3000, rel=0.1)
    assert (demand.arrival_s[1:] >= demand.arrival_s[:-1]).all()
    assert demand.turns is not None
    assert (demand.turns.parent >= 0).sum() == pytest.approx(1800, rel=0.1)
    assert (demand.turns.parent < np.arange(demand.n)).all()
    again, other = traffic.drawn(0), traffic.drawn(1)
    assert (again.arrival_s == demand.arrival_s).all()
    assert other.n != demand.n


def test_more_traffic_is_more_sessions_an_hour(trace):
    """The what-if of 1.5 times the traffic copied single turns, of which many waited for nobody."""
    demand = demand_of(trace)
    more = SessionTraffic(demand, 200.0, 3600.0, 1).scaled(1.5)
    assert more == SessionTraffic(demand, 300.0, 3600.0, 1)
    kept = TraceTraffic(demand, 300.0).scaled(0.5).drawn(0)
    assert kept.n in (0, 1, 4, 5)  # whole sessions, of one turn and of four


def test_a_turn_that_is_too_long_leaves_out_itself_and_what_waits_for_it(trace):
    demand = demand_of(trace)
    # Its turns have 660, 647, 990, 133 and 990 tokens. The last two wait for the third.
    fits = demand.without_long_turns(900)
    assert fits.input_tokens.tolist() == [640, 640]
    long_turns = fits.origin.long_turns
    assert (long_turns.n_turns, long_turns.n_too_long, long_turns.n_following) == (5, 2, 1)
    assert demand.without_long_turns(1000) is demand
    said = demand_notes(fits, None)
    assert any("2 of 5 turns of the trace have more than 900 tokens" in text for text in said)
    assert any("left out, with 1 turn that would wait" in text for text in said)
    with pytest.raises(InputError, match="every session begins with more than 100 tokens"):
        demand.without_long_turns(100)


LLM = ("--hf-config", "resources/llms/meta-llama__Llama-3.1-70B-Instruct.json")


def test_an_answer_about_sessions_leaves_out_what_the_llm_cannot_take(trace):
    """Such a turn was refused at every try, and with it the question or most of its windows."""
    sent = ("--trace", trace, "--sessions", "trace", "--max-model-len", "900")
    asked = (*sent, *LLM, "--draws", "0", "--format", "json")
    made = json.loads(sextant("simulate", *asked, "--gpu-profile", "4xH100-80GB"))
    assert made["load"]["n_requests"] == 2 and made["failed_fraction"] == 0
    assert any("2 of 5 turns" in text for text in made["warnings"])
    limits = ("--gpu-profiles", "4xH100-80GB", "--ttft-ms", "p95:2000", "--traffic", "1.5")
    answer = json.loads(sextant("capacity", *asked, *limits))
    assert answer["replicas"] == 1 and answer["demand"]["n_requests"] in (2, 3, 4)
    assert any("turns of the trace have more than 900 tokens" in t for t in answer["warnings"])


def test_the_growth_of_sessions_is_the_answer_for_so_many_more(trace):
    asked = ("capacity", "--trace", trace, *LLM, "--gpu-profiles", "4xH100-80GB", "--draws", "0")
    asked += ("--duration", "10min", "--ttft-ms", "p95:300", "--tpot-ms", "p95:30")
    few, many = (
        json.loads(sextant(*asked, "--sessions", str(n), "--format", "json"))
        for n in (30_000, 45_000)
    )
    scaled = json.loads(
        sextant(*asked, "--sessions", "30000", "--traffic", "1.5", "--format", "json")
    )
    assert scaled == many
    assert few["growth"]["replicas_needed"] == many["replicas"] > few["replicas"]


def test_capacity_and_simulate_follow_sessions(trace):
    sent = ("--trace", trace, "--sessions", "600", "--duration", "10min")
    asked = ("capacity", *sent, *LLM, "--gpu-profiles", "4xH100-80GB", "--draws", "8")
    limits = ("--ttft-ms", "p95:2000", "--tpot-ms", "p95:60", "--router", "prefix")
    answer = json.loads(sextant(*asked, *limits, "--risk", "0.2", "--format", "json"))
    assert answer["replicas"] >= 1
    assert any("turns of" in text for text in answer["warnings"])
    profile = ("--gpu-profile", "4xH100-80GB", "--draws", "0", "--format", "json")
    made = json.loads(sextant("simulate", *sent, *LLM, *profile))
    assert made["load"]["n_requests"] == answer["demand"]["n_requests"]
    assert made["cached_fraction"] > 0.2
    own = json.loads(sextant("simulate", "--trace", trace, "--sessions", "trace", *LLM, *profile))
    assert own["load"]["n_requests"] == 5


def test_turns_wait_for_answers_under_a_policy_of_capacity_too(tmp_path, monkeypatch):
    made = []

    def watched(requests, *scheduler, **how):
        found = simulate_scaled(requests, *scheduler, **how)
        made.append((requests, *found))
        return found

    monkeypatch.setattr("sextant.decide.replicas.simulate_scaled", watched)
    out, policy = tmp_path / "agents.parquet", tmp_path / "ready.csv"
    policy.write_text("t_s,ready\n0,2\n100,0\n160,1\n")
    sample = ROOT / "resources" / "traces" / "sessions-sample.jsonl"
    sextant("ingest", sample, "--format", "kv-cache-tester", "--out", out)
    asked = ("--trace", out, "--sessions", "trace", "--policy", policy, "--draws", "0")
    limits = ("--ttft-ms", "p95:8000", "--tpot-ms", "p95:60", "--gpu-profiles", "4xH100-80GB")
    answer = json.loads(sextant("capacity", *asked, *limits, *LLM, "--format", "json"))
    ((requests, followed, scaling),) = made
    waits = requests.turns.parent >= 0
    assert waits.sum() == 318 and len(followed.status) == 334
    end_s = (followed.arrival_s + followed.e2e_s)[requests.turns.parent[waits]]
    assert followed.arrival_s[waits] == pytest.approx(end_s + requests.turns.think_s[waits])
    # Nobody is answered while nobody serves, and then all are.
    assert (followed.status == OK).all()
    first_s = followed.arrival_s + followed.ttft_s
    late = (followed.arrival_s > 100) & (followed.arrival_s < 160)
    assert late.any() and (first_s[late] > 160).all()
    found = answer["scaling"]
    hours = {row["policy"]: row["replica_hours"] for row in found["policies"]}
    assert list(hours) == ["fixed", "schedule", "policy", "foresight"]
    assert min(hours.values()) >= 0 and hours["policy"] == scaling.replica_s / 3600
    assert sum(found["timeline"]["n_requests"]) == 334


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"session_id": ["a", "b"], "e2e_ms": [1, 1]}, ("trace",), "no session has two requests"),
        ({"session_id": ["a", "a"]}, ("trace",), "e2e_ms"),
        ({"session_id": ["a", "a"], "e2e_ms": [1, 1]}, ("many",), "'many' is neither"),
        ({}, ("trace", "--duration", "1h"), "the trace has its own"),
        ({}, ("200", "--speed", "2"), "sessions start at their own rate"),
    ],
)
def test_what_has_no_sessions_is_said(tmp_path, columns, options, words):
    table = {"arrival_s": [0.0, 5.0], "input_tokens": [10, 20], "output_tokens": [5, 5], **columns}
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "t.parquet"
    sextant("ingest", tmp_path / "t.csv", "--format", "sextant", "--out", out)
    asked = ("--trace", out, *LLM, "--gpu-profile", "4xH100-80GB", "--sessions", *options)
    with pytest.raises(InputError, match=words):
        sextant("simulate", *asked)


def trees(seed: int, think_s: float) -> RequestStream:
    """Return requests of which most wait for the answer of another, each for one of its own."""
    rng = np.random.default_rng(seed)
    at_s = np.sort(rng.uniform(0, 20, 40))
    parent = np.full(40, -1)
    for turn in range(1, 40):
        if rng.random() < 0.6:
            free = [other for other in range(turn) if other not in parent]
            parent[turn] = free[rng.integers(0, len(free))]
    inputs, outputs = rng.integers(10, 800, 40), rng.integers(1, 60, 40)
    thinks_s = think_s + rng.uniform(0, 1e-4, 40)  # no two turns come at one time
    return RequestStream.of(at_s, inputs, outputs, parent=parent, think_s=thinks_s)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.001, 0.01]),
    st.sampled_from([2, 64]),
    st.booleans(),
    st.integers(1, 3),
)
def test_a_turn_that_follows_at_once_joins_the_step_that_others_join(
    seed, think_s, max_num_seqs, is_asynchronous, n_replicas
):
    plan = Scheduler(
        60_000, max_num_seqs, max_num_batched_tokens=2048, is_asynchronous=is_asynchronous
    )
    requests = trees(seed, think_s)
    made = simulate(requests, plan, LAW, n_replicas=n_replicas)
    order = np.argsort(made.arrival_s, kind="stable")
    lengths = (requests.input_tokens[order], requests.output_tokens[order])
    again = simulate(
        RequestStream.of(made.arrival_s[order], *lengths), plan, LAW, n_replicas=n_replicas
    )
    assert again.ttft_s == pytest.approx(made.ttft_s[order])
    assert again.e2e_s == pytest.approx(made.e2e_s[order])
