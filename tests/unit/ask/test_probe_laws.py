"""What an answer says of measured loads that no law gives back."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from made_up_laws import made_up_laws
from sextant.ask.probe import other_lengths_notes, queue_notes
from sextant.ask.probe_laws import missed_notes
from sextant.decide.missed_rates import MissedLatency, MissedLoad

LAWS = made_up_laws(3, 2, 0.1)
SLOW = MissedLoad(16, None, 15.0, (MissedLatency("tpot", 40.0, 13.0),))


def test_a_missed_load_is_one_line_with_its_size_and_what_to_give() -> None:
    at_rate = MissedLoad(None, 2.5, math.nan, (MissedLatency("ttft", 100.0, 112.0),))
    assert missed_notes({"a": LAWS}) == []
    (note,) = missed_notes({"a": replace(LAWS, missed=(SLOW, at_rate)), "b": LAWS})
    assert note.startswith(
        "No law found gives what was measured on a: with 16 users the closest has TPOT 13 ms, "
        "measured 40 ms (-68%); 1 more load is off by over 10%. "
    )
    assert "--max-num-batched-tokens" in note
    (note,) = missed_notes({"a": replace(LAWS, missed=(at_rate,))})
    assert "at 2.5 requests/s the closest has TTFT 112 ms, measured 100 ms (+12%). " in note


def test_requests_that_wait_while_few_decode_ask_for_the_servers_own_limit() -> None:
    most = LAWS.scheduler.max_num_seqs
    full = MissedLoad(4 * most, None, most / 2, SLOW.latencies)
    (note,) = missed_notes({"a": replace(LAWS, missed=(full,))})
    assert f"Only about {most / 2:.0f} requests decoded at once there" in note
    assert f"is taken to decode {most:,}: give the --max-num-seqs" in note
    bound = replace(full, decoding=float(most))  # the server's limit is the one that is assumed
    (note,) = missed_notes({"a": replace(LAWS, missed=(bound,))})
    assert "decoded at once" not in note


def test_loads_of_requests_unlike_the_asked_ones_are_said() -> None:
    columns = ["gpu_profile_id", "input_tokens", "output_tokens"]
    probe = pd.DataFrame([["a", 1000.0, 250.0], ["b", 300.0, 250.0]], columns=columns)
    (note,) = other_lengths_notes(probe, np.array([[1100.0, 220.0]]), "they join the fit alone")
    assert note.startswith(
        "1 of 2 loads of --probe has requests more than 25% shorter or longer than the asked ones "
        "(300 input and 250 output tokens on b; 1,100 and 220 asked about): they join the fit alone"
    )
    assert other_lengths_notes(probe[:1], np.array([[1100.0, 220.0]]), "") == []


def test_measured_users_most_of_whom_wait_are_told_from_users_who_decode() -> None:
    probe = pd.DataFrame(
        {
            "gpu_profile_id": "a",
            "users": [64, 64],
            "input_tokens": 800.0,
            "output_tokens": 201.0,
            "nttft_ms": [0.2, 10.5],
            "itl_ms": [14.0, 14.0],
        }
    )
    assert not queue_notes(probe[:1])
    (note,) = queue_notes(probe)
    # 200 tokens of 14 ms take 2.8 s, a first token 8.4 s: a quarter of 64 users decode.
    assert "Of 64 users measured on a about 16 decoded at once" in note and "--max-num-seqs" in note
