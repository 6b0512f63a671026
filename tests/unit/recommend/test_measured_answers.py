"""Answers from the LLM's own points: likely enough, at measured rates, and with their doubts."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from sextant.base.errors import InputError
from sextant.cli.app import app
from sextant.points.export import write_published
from sextant.points.folder_sheets import Description
from support import ROOT

LLM = "meta-llama/Llama-3.1-8B-Instruct"


def folder(path, rows):
    """Write points of one LLM as a characterization; return its path."""
    about = Description(
        source="own", licence="CC0-1.0", attribution="a test", statistic="median",
        load="closed_loop", lengths="varying", defaults={"engine": "vllm"},
    )  # fmt: skip
    shared = {
        "model": LLM, "gpu_profile_id": "1xH100-80GB", "input_tokens": 1000.0,
        "output_tokens": 200.0, "n_ok": 500, "n_failed": 0,
    }  # fmt: skip
    points = pd.DataFrame([shared | row for row in rows])
    write_published(path, about, points, str(ROOT / "resources" / "llms"), len(points))
    return path


def asked(path, *options):
    command = ["recommend", "--source", str(path), "--llm", LLM, *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code in (0, 3), done.exception
    return done


def near(users, times_limit, spread=1.5):
    """Return a point whose TTFT and TPOT are so many times 1,000 and 40 ms, with intervals."""
    row = {"users": users}
    for name, limit_ms in (("ttft", 1000.0), ("tpot", 40.0)):
        value = times_limit * limit_ms
        ends = {"": value, "_lo": value / spread, "_hi": value * spread}
        row |= {f"median_{name}{end}_ms": latency for end, latency in ends.items()}
    return row


USERS_20 = ("--users", "20", "--ttft-ms", "1000", "--tpot-ms", "40")


def test_an_unlikely_number_of_replicas_gives_way_to_a_likely_one(tmp_path):
    """Both limits hold at 10 users by the points, but together with a probability of 0.3."""
    alone = folder(tmp_path / "a", [near(10, 0.99)])
    done = asked(alone, *USERS_20)
    assert done.exit_code == 3
    first, *rest = done.output.splitlines()
    assert "no option is likely to meet both limits (measured)" in first
    assert any(line.startswith("Nearest: 2 replicas × 1xH100-80GB") for line in rest)
    assert "unsure: 2 replicas" in done.output

    likely = folder(tmp_path / "b", [near(4, 0.4), near(10, 0.99)])
    done = asked(likely, *USERS_20, "--format", "json")
    answer = json.loads(done.output)
    assert done.exit_code == 0 and answer["replicas"] == 5
    assert answer["probability_met"] > 0.9
    # The points alone would have taken 2 replicas.
    assert answer["is_success"] is True and answer["overspend"] == pytest.approx(1.5)


def test_points_without_intervals_are_judged_as_they_are(tmp_path):
    bare = {"users": 10, "median_ttft_ms": 990.0, "median_tpot_ms": 39.0}
    done = asked(folder(tmp_path, [bare]), *USERS_20)
    assert "2 replicas × 1xH100-80GB" in done.output and "probability" not in done.output


RATES = [
    {"request_rate_rps": rate, "median_ttft_ms": ttft_ms, "median_tpot_ms": 20.0}
    for rate, ttft_ms in ((4.0, 100.0), (8.0, 300.0), (12.0, 4000.0))
]
AT_A_RATE = ("--request-rate", "20", "--ttft-ms", "1000", "--tpot-ms", "40")


def test_a_request_rate_is_answered_by_measured_rates(tmp_path):
    doubtful = [row | {"doubt": "even arrivals (requests at random wait longer)"} for row in RATES]
    done = asked(folder(tmp_path, doubtful), *AT_A_RATE)
    assert done.exit_code == 0
    assert "3 replicas × 1xH100-80GB = " in done.output and "(measured)" in done.output
    bears = "On 1xH100-80GB 12 requests/s missed the limits (TTFT 4,000 ms): a replica bears"
    assert f"{bears} between 8 and 12 requests/s." in done.output
    said = f"3 of 23 points of {LLM.replace('/', '__')} are doubtful: even arrivals (3 points)."
    assert said in done.output
    assert "3 replicas of up to 8 requests/s" in done.output


def test_no_recommendation_goes_against_a_rate_that_missed_its_limits(tmp_path):
    own = folder(tmp_path, RATES)
    tight = (*AT_A_RATE[:3], "80", *AT_A_RATE[4:])  # 4 requests/s had a TTFT of 100 ms
    done = asked(own, *tight, "--gpu-profiles", "1xH100-80GB")
    assert done.exit_code == 3 and "a replica bears less" in done.output
    done = asked(own, *tight, "--format", "json")
    answer = json.loads(done.output)
    by_profile = {row["gpu_profile_id"]: row for row in answer["alternatives"]}
    assert answer["gpu_profile_id"] != "1xH100-80GB"
    assert "missed the limits (TTFT 100 ms)" in by_profile["1xH100-80GB"]["reason"]


def test_points_that_move_the_law_of_the_llm_are_among_the_nearest(tmp_path):
    """The answer is another GPU, because of what was measured on this one."""
    done = asked(folder(tmp_path, RATES), *AT_A_RATE, "--risk", "0.1", "--format", "json")
    answer = json.loads(done.output)
    assert answer["basis"] == "roofline" and answer["gpu_profile_id"] != "1xH100-80GB"
    first, *others = answer["evidence"]
    assert (first["llm_id"], first["gpu_profile_id"]) == (LLM.replace("/", "__"), "1xH100-80GB")
    assert others and all(row["gpu_profile_id"] == answer["gpu_profile_id"] for row in others)


def test_users_are_answered_beside_points_at_rates(tmp_path):
    """A sweep of guidellm has one run of a single user; the others come at rates."""
    alone = {"users": 1, "median_ttft_ms": 50.0, "median_tpot_ms": 10.0}
    limits = ("--users", "1", "--ttft-ms", "1000", "--tpot-ms", "40")
    done = asked(folder(tmp_path, [alone, *RATES]), *limits)
    assert "1 replica × 1xH100-80GB" in done.output and "(measured)" in done.output


def test_answers_of_one_token_have_no_tpot_to_miss(tmp_path):
    one = {"users": 20, "median_ttft_ms": 120.0, "output_tokens": 1.0}
    done = asked(folder(tmp_path, [one]), *USERS_20)
    assert done.exit_code == 0 and "1 replica × 1xH100-80GB" in done.output
    assert "Answers have one token: they have no TPOT, and none to miss." in done.output
    assert "TPOT ≤" not in done.output


def test_of_runs_at_the_same_load_the_slowest_counts(tmp_path):
    fast = {"users": 10, "median_ttft_ms": 200.0, "median_tpot_ms": 20.0}
    slow = fast | {"median_ttft_ms": 1200.0}
    alone = {"users": 5, "median_ttft_ms": 100.0, "median_tpot_ms": 15.0}
    for rows, replicas in (([alone, fast, fast], 2), ([alone, fast, slow], 4)):
        done = asked(folder(tmp_path / str(replicas), rows), *USERS_20)
        assert f"{replicas} replicas × 1xH100-80GB" in done.output
        assert "Some loads were measured several times" in done.output


def test_rates_that_few_requests_make_unlikely_give_way_to_a_prediction(tmp_path):
    """Few requests leave the upper ends open: the only rate meets both limits with 0.25."""
    few = RATES[0] | {"median_ttft_lo_ms": 90.0, "median_tpot_lo_ms": 19.0}
    done = asked(folder(tmp_path, [few]), *AT_A_RATE)
    assert done.exit_code == 0 and "(predicted by roofline)" in done.output
    assert "By the measured rates alone: 5 replicas × 1xH100-80GB = " in done.output


FAILED = [near(users, 0.1) | {"n_ok": 14, "n_failed": 14} for users in (1, 4)]
AT_10 = ("--request-rate", "10", "--ttft-ms", "1000", "--tpot-ms", "40")
ON_H100 = ("--gpu-profiles", "1xH100-80GB")


@pytest.mark.parametrize("load", [AT_10, USERS_20], ids=["rate", "users"])
def test_a_server_that_fails_half_of_its_requests_meets_nothing(tmp_path, load):
    own = folder(tmp_path, FAILED)
    done = asked(own, *load, *ON_H100)
    first, second, *_ = done.output.splitlines()
    assert done.exit_code == 3 and "no GPU profile meets both limits" in first
    assert "1xH100-80GB with 1 user: 14 of 28 requests failed" in second
    assert "50 % of the requests failed with 1 user, 1 % allowed" in done.output


def test_other_gpus_are_predicted_where_a_server_failed_and_that_is_said_first(tmp_path):
    done = asked(folder(tmp_path, FAILED), *AT_10, "--gpu-profiles", "1xH100-80GB,1xH200-141GB")
    first, second, *_ = done.output.splitlines()
    assert "1 replica × 1xH200-141GB" in first and "14 of 28 requests failed" in second


def test_what_a_failing_server_still_answered_moves_no_other_gpu(tmp_path):
    """Its other requests took 0.1 or 0.01 times the limits, from which the law learned."""
    expected = []
    for times in (0.1, 0.01):
        rows = [near(users, times) | {"n_ok": 14, "n_failed": 14} for users in (1, 4)]
        own = folder(tmp_path / str(times), rows)
        done = asked(own, *AT_10, "--gpu-profiles", "1xH200-141GB", "--format", "json")
        answer = json.loads(done.output)
        expected.append(answer["latency"])
        said = f"Set aside: 2 points of {LLM.replace('/', '__')} on 1xH100-80GB, where too many"
        assert answer["warnings"][0].startswith(said)
    assert expected[0] == expected[1]


def test_where_all_servers_failed_no_prediction_is_possible_and_that_is_why(tmp_path):
    failed = ["explain", "--source", str(folder(tmp_path, FAILED)), "--llm", LLM]
    with pytest.raises(InputError, match=r"0 LLMs with points.*servers that failed even at the l"):
        asked = [*failed, "--gpu-profile", "1xH200-141GB", "--users-per-replica", "4"]
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_failures_that_are_allowed_or_only_at_higher_loads_leave_a_rate_to_prediction(tmp_path):
    allowed = asked(folder(tmp_path / "a", FAILED), *AT_10, *ON_H100, "--max-failed", "0.6")
    assert allowed.exit_code == 0 and "14 of 28" not in allowed.output
    more = [near(1, 0.1), FAILED[1]]
    done = asked(folder(tmp_path / "b", more), *AT_10, *ON_H100)
    first, second, *_ = done.output.splitlines()
    assert "1 replica × 1xH100-80GB" in first
    assert "1xH100-80GB with 4 users: 14 of 28 requests failed" in second


def test_capacity_refuses_a_server_that_fails_half_of_its_requests(tmp_path):
    command = ["capacity", "--source", str(folder(tmp_path, FAILED)), "--llm", LLM]
    with pytest.raises(InputError, match=r"50 % of the requests failed with 1 user.*--max-failed"):
        CliRunner().invoke(app, [*command, *AT_10, *ON_H100], catch_exceptions=False)


def test_answers_of_one_token_have_no_tpot_to_miss_at_a_rate_either(tmp_path):
    one = [near(users, 0.1) | {"output_tokens": 1.0} for users in (1, 4)]
    rows = [{k: v for k, v in row.items() if "tpot" not in k} for row in one]
    own = folder(tmp_path, rows)
    done = asked(own, *AT_10, *ON_H100)
    assert done.exit_code == 0 and "nan" not in done.output
    assert "Answers have one token: they have no TPOT, and none to miss." in done.output
    assert "TPOT ≤" not in done.output
    command = ["recommend", "--source", str(own), "--llm", LLM, *AT_10[:2], "--tpot-ms", "40"]
    with pytest.raises(InputError, match=r"--tpot-ms.*no time between tokens"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_queue_that_grows_without_end_has_no_factor_on_its_limits():
    """It said "TPOT inf ms" and "with both limits nan times as high"."""
    llm = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
    load = ("--request-rate", "1e6", "--input-tokens", "1000", "--output-tokens", "200")
    command = ["recommend", "--hf-config", str(llm), *load, *AT_10[2:], *ON_H100]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 3 and "Its queue grows without end" in done.output
    assert " inf " not in done.output and " nan " not in done.output
