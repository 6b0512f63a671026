"""A server that was measured: simulations give it back, and answers at nearby loads agree."""

import pytest

import sextant
from support import ROOT

ASKED = {
    "hf_config": str(ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"),
    "input_tokens": "500",
    "output_tokens": "66",
}
USERS = 16
SERVERS = {
    "faster": (0.7, 0.7),
    "slower": (1.4, 1.4),
    "batched": (3.0, 1.2),
    "unbatched": (0.7, 1.1),
}
"""TTFT and TPOT over the likeliest ones. Of a law whose terms are all scaled both are scaled alike;
prompts that are computed together wait for each other."""


@pytest.fixture(scope="module")
def likeliest() -> tuple[float, float]:
    """Return the mean TTFT and TPOT of the likeliest law."""
    return simulated()


def simulated(**more) -> tuple[float, float]:
    answer = sextant.simulate(
        **ASKED, gpu_profile="1xH100-80GB", users=USERS, duration="1min", draws=0, **more
    ).to_dict()
    return answer["ttft_ms"]["mean"], answer["tpot_ms"]["mean"]


def replicas(probe, **load) -> int:
    """Return the replicas that a load needs, by an answer that rests on the measurement."""
    return answered(probe, risk=0.5, **load).to_dict()["replicas"] or 10**6


def answered(probe, gpu_profiles="1xH100-80GB", **more):
    limits = {"ttft_ms": "400", "tpot_ms": "40", "gpu_profiles": gpu_profiles}
    return sextant.recommend(**ASKED, **limits, **more, probe=probe)


def written(folder, ttft_ms: float, tpot_ms: float) -> str:
    """Write a probe of one load; return its path."""
    probe = folder / f"probe-{ttft_ms:.0f}.csv"
    row = f"1xH100-80GB,{USERS},{ttft_ms:.2f},{tpot_ms:.3f}"
    probe.write_text(f"gpu_profile_id,users,ttft_ms,tpot_ms\n{row}\n")
    return str(probe)


@pytest.fixture
def measured(request, likeliest, tmp_path):
    """Write what was measured of a server; return the file, TTFT and TPOT."""
    ttft_ms, tpot_ms = (
        times * ms for times, ms in zip(SERVERS[request.param], likeliest, strict=True)
    )
    return written(tmp_path, ttft_ms, tpot_ms), ttft_ms, tpot_ms


@pytest.mark.slow
@pytest.mark.parametrize("measured", SERVERS, indirect=True)
def test_a_simulation_of_what_was_measured_gives_it_back(measured) -> None:
    probe, ttft_ms, tpot_ms = measured
    found_ttft_ms, found_tpot_ms = simulated(probe=probe)
    assert found_ttft_ms == pytest.approx(ttft_ms, rel=0.1)
    assert found_tpot_ms == pytest.approx(tpot_ms, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("measured", ["slower", "batched"], indirect=True)
def test_more_load_never_takes_fewer_replicas_and_rates_agree_with_users(measured) -> None:
    probe, ttft_ms, tpot_ms = measured
    rate = USERS / (ttft_ms + 65 * tpot_ms) * 1e3
    needed = [replicas(probe, users=users) for users in (16, 26, 64)]
    assert needed == sorted(needed)
    # Half the measured rate has fewer users at once than 16.
    assert replicas(probe, request_rate=0.5 * rate) <= needed[0]


@pytest.mark.slow
def test_another_gpu_is_less_certain_where_the_measurement_is_far_from_the_law(
    likeliest, tmp_path
) -> None:
    as_told, slow = (written(tmp_path, *(times * ms for ms in likeliest)) for times in (1, 3))
    other = {"gpu_profiles": "1xA100-80GB", "risk": 0.1}
    for load, times in (({"users": 64}, 2), ({"request_rate": 60}, 1.5)):
        expected, wary = (answered(probe, **other, **load) for probe in (as_told, slow))
        assert wary.to_dict()["replicas"] >= times * expected.to_dict()["replicas"]
        assert "is far from what the law says" in str(wary)
        assert "on other GPU profiles, the intervals are wider" in str(wary)
    widths = [
        latency["tpot_hi_ms"] / latency["tpot_lo_ms"]
        for probe in (as_told, slow)
        for latency in [answered(probe, **other, users=8).to_dict()["latency"]]
    ]
    assert widths[1] > 1.2 * widths[0]
