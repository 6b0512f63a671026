"""Scenarios and variants: what their sheets may say, and what is refused."""

import json
import math

import pytest

from sextant.base.errors import InputError
from sextant.base.files import write_json
from sextant.base.sheets import Row
from sextant.experiment.scenarios import OpenLoop, Scenario, plain, scenario_from_row, scenario_of
from sextant.experiment.servers import Variant, without_defaults
from sextant.workload.arrivals import fit_arrivals
from sextant.workload.generators import Gamma
from sextant.workload.trace_arrivals import Replay, arrivals_to_json, arrivals_to_plain


def scenario(**values) -> Scenario:
    return scenario_from_row(Row({"scenario_id": "s", **values}, 7, "scenarios.tsv"))


CLOSED = {"kind": "closed_loop", "levels": "1,2,16", "duration_s": 120.0}
FITTED = {"kind": "open_loop", "levels": "2,4", "duration_s": 60.0, "arrivals": "fitted"}


def test_each_kind_takes_its_own_fields():
    assert scenario(**CLOSED, cooldown_s=5.0).levels == (1.0, 2.0, 16.0)
    rates = scenario(kind="open_loop", levels="0.5,2,inf", n_requests=500, burstiness=0.25)
    assert rates.levels == (0.5, 2.0, math.inf) and rates.burstiness == 0.25
    assert scenario(kind="batch", levels="1,512", n_requests=500).n_requests == 500
    burst = scenario(kind="burst", levels="1,4", duration_s=60.0, warmup_s=30.0)
    assert burst.timeout_s == 30.0  # BurstGPT's
    assert scenario(kind="burst", levels="1", duration_s=60.0, timeout_s=5.0).timeout_s == 5.0


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (CLOSED | {"burstiness": 2.0}, "burstiness"),
        (CLOSED | {"n_requests": 5}, "n_requests"),
        (CLOSED | {"levels": "2,1"}, "levels"),
        (CLOSED | {"levels": "1,1"}, "levels"),
        (CLOSED | {"levels": "0,1"}, "levels"),
        (CLOSED | {"levels": "1.5"}, "levels"),
        (CLOSED | {"levels": "1,inf"}, "levels"),
        (CLOSED | {"stop_itl_ms": 50.0}, "stop_nttft_ms"),
        (CLOSED | {"stop_nttft_ms": 0.0, "stop_itl_ms": 50.0}, "stop_nttft_ms"),
        (CLOSED | {"stop_factor": 0.5}, "stop_factor"),
        ({"kind": "closed_loop", "levels": "1"}, "duration_s"),
        ({"kind": "open_loop", "levels": "1"}, "duration_s"),
        ({"kind": "open_loop", "levels": "1", "duration_s": 9.0, "n_requests": 5}, "duration_s"),
        ({"kind": "open_loop", "levels": "1,inf", "duration_s": 9.0}, "levels"),
        (FITTED | {"arrivals": "bursts"}, "arrivals"),
        (FITTED | {"burstiness": 0.5}, "burstiness"),
        (FITTED | {"duration_s": None}, "duration_s"),
        (FITTED | {"levels": "inf", "duration_s": None, "n_requests": 9}, "levels"),
        (CLOSED | {"arrivals": "fitted"}, "arrivals"),
        ({"kind": "batch", "levels": "4", "duration_s": 9.0}, "duration_s"),
        ({"kind": "burst", "levels": "1"}, "duration_s"),
        ({"kind": "burst", "levels": "1,7", "duration_s": 9.0}, "levels"),
    ],
)
def test_what_a_kind_does_not_heed_or_lacks_is_refused(values, field):
    with pytest.raises(InputError) as caught:
        scenario(**values)
    for part in ("scenarios.tsv", "line 7", f"'{field}'"):
        assert part in str(caught.value)


def test_a_definition_is_json_and_says_only_what_is_not_the_default():
    rates = scenario(kind="open_loop", levels="0.5,inf", n_requests=500)
    text = json.dumps(plain(rates), allow_nan=False)
    assert json.loads(text) == {"kind": "open_loop", "levels": [0.5, "inf"], "n_requests": 500}
    assert scenario_of(json.loads(text)) == rates
    assert without_defaults(Variant()) == {}
    assert without_defaults(Variant("pair", replicas=2)) == {"variant_id": "pair", "replicas": 2}


def test_a_definition_names_an_arrival_process(tmp_path):
    process = Replay(str(tmp_path / "trace.parquet"), llm="a", time_factor=0.5)
    replayed = OpenLoop(levels=(3.0,), arrivals=process, max_in_flight=8)
    text = json.dumps(plain(replayed), allow_nan=False)
    assert json.loads(text)["arrivals"]["kind"] == "replay"
    assert scenario_of(json.loads(text)) == replayed


def test_a_workloads_arrivals_reach_each_level(tmp_path):
    own = Gamma(8.0, 0.5)
    models = {"gamma": {"process": arrivals_to_plain(own), "reason": None}}
    choice = {"model": "gamma", "why": "it is the simplest", "models": models}
    fit = fit_arrivals(own.times(n=5000, seed=1))
    write_json(tmp_path / "arrivals.json", arrivals_to_json(fit, {}, choice))
    for level in (16.0, 4.0):
        asked = scenario(**FITTED)
        assert scenario_of(json.loads(json.dumps(plain(asked)))) == asked
        times = asked.with_arrivals_of(tmp_path, level).arrivals_at(level).times(duration_s=2000)
        assert len(times) / 2000 == pytest.approx(level, rel=0.05)
    steady = scenario(**{name: value for name, value in FITTED.items() if name != "arrivals"})
    assert steady.with_arrivals_of(tmp_path, 2.0) is steady
    for name, why in (("replay", "not in its folder"), ("rescaled", "no such model")):
        with pytest.raises(InputError, match=f"it has no {name} arrivals .*{why}"):
            scenario(**FITTED | {"arrivals": name}).with_arrivals_of(tmp_path, 2.0)


def test_the_time_that_levels_may_take_counts_their_last_requests():
    closed = scenario(**CLOSED, warmup_s=10.0, cooldown_s=5.0)
    assert closed.longest_s(100.0) == 3 * (10 + 120 + 5 + 200)
    rates = scenario(kind="open_loop", levels="2,inf", n_requests=500, timeout_s=30.0)
    assert rates.longest_s(100.0) == 2 * 60 + 250
    batches = scenario(kind="batch", levels="1,250", n_requests=500)
    assert batches.longest_s(100.0) == 2 * 200 + 500 * 10 + 2 * 10
