"""`--vary`: what it may list, and the questions that it makes."""

import pytest

from sextant.ask.variation import Variant, parse_variants
from sextant.base.errors import InputError
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import SLO
from sextant.workload.lengths import Length, RequestLengths

ASKED = SLO(
    "asked",
    percentile=50,
    ttft_ms=1000.0,
    ttft_percentile=95,
    tpot_ms=40.0,
    request_rate_rps=8.0,
)
REQUESTS = RequestLengths(Length(1500.0, 6000.0), Length(250.0, 250.0))


def profiles() -> dict[str, GPUProfile]:
    gpu = {
        name: GPU(name, "gpu", "Hopper", 80.0, 3350.0, 989.0, 450.0, "a data sheet")
        for name in ("H200-141GB", "H100-80GB")
    }
    return {
        f"{n}x{name}": GPUProfile(f"{n}x{name}", gpu[name], n, 4.0 * n)
        for name in gpu
        for n in (1, 2)
    }


def test_all_combinations_are_listed_in_order() -> None:
    variants = parse_variants(["traffic=0.8,1", "ttft-ms=500, 1000"])
    assert [dict(variant.values) for variant in variants] == [
        {"traffic": 0.8, "ttft-ms": 500.0},
        {"traffic": 0.8, "ttft-ms": 1000.0},
        {"traffic": 1.0, "ttft-ms": 500.0},
        {"traffic": 1.0, "ttft-ms": 1000.0},
    ]
    assert parse_variants([]) == []


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["rate=1"], "'rate=1' does not say what is varied"),
        (["price:=1"], "'price:=1' does not say what is varied"),
        (["traffic"], "'' in 'traffic' is not a number above 0"),
        (["traffic=1,x"], "'x' in 'traffic=1,x' is not a number above 0"),
        (["traffic=1,1.0"], "'traffic=1,1.0' lists a value twice"),
        (["traffic=0"], "'0' in 'traffic=0' is not a number above 0"),
        (["traffic=nan"], "'nan' in 'traffic=nan' is not a number above 0"),
        (["traffic=inf"], "'inf' in 'traffic=inf' is not a number above 0"),
        (["price:H100=1e308"], "'1e308' in 'price:H100=1e308' is not a number above 0, up to"),
        (["traffic=1", "traffic=2"], "traffic is varied twice"),
        (["traffic=1,2,3,4,5,6,7,8,9", "ttft-ms=1,2,3,4,5,6,7,8"], "72 combinations"),
    ],
)
def test_what_cannot_be_varied_is_refused(texts, said) -> None:
    with pytest.raises(InputError) as error:
        parse_variants(texts)
    assert said in str(error.value) and "--vary" in str(error.value)


def test_a_varied_question_out_of_range_names_the_option() -> None:
    for values in ({"traffic": 1e-9}, {"ttft-ms": 1e-8}):
        with pytest.raises(InputError, match=r"'--vary': .* should be greater"):
            Variant(values).slo(ASKED)
    with pytest.raises(
        InputError, match=r"--vary input-tokens': 0\.5 tokens are no .* Fix: give 1"
    ):
        Variant({"input-tokens": 0.5}).requests(REQUESTS)


def test_limits_keep_their_percentiles_and_the_load_is_multiplied() -> None:
    varied = Variant({"traffic": 1.5, "ttft-ms": 500.0}).slo(ASKED)
    assert varied.request_rate_rps == 12.0
    assert varied.limits["ttft"] == (500.0, 95)
    assert varied.limits["tpot"] == ASKED.limits["tpot"]
    assert Variant({"price:H200": 0.8}).slo(ASKED) is ASKED
    with pytest.raises(InputError, match="no limit on E2E is asked for"):
        Variant({"e2e-ms": 5000.0}).slo(ASKED)


def test_long_requests_stay_as_many_times_as_long() -> None:
    varied = Variant({"input-tokens": 3000.0}).requests(REQUESTS)
    assert varied == RequestLengths(Length(3000.0, 12000.0), REQUESTS.outputs)
    assert Variant({"traffic": 2.0}).requests(None) is None
    with pytest.raises(InputError, match="no lengths are stated"):
        Variant({"output-tokens": 100.0}).requests(None)


def test_a_price_is_that_of_a_profile_or_of_all_with_a_gpu() -> None:
    def usd_of(name: str) -> list[float]:
        return [p.usd_per_hour for p in Variant({name: 0.5}).priced(profiles()).values()]

    assert usd_of("price:H200") == [2.0, 4.0, 4.0, 8.0]
    assert usd_of("price:2xH100-80GB") == [4.0, 8.0, 4.0, 4.0]
    with pytest.raises(InputError, match=r"'A100' is none of the candidates.*H100-80GB, H200"):
        usd_of("price:A100")
