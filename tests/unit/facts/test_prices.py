"""Tables of providers' prices: what ships, what is refused, and what a GPU profile costs there."""

from dataclasses import replace
from pathlib import Path

import pytest

from sextant.ask.candidates import find_candidates
from sextant.base.errors import InputError
from sextant.facts.gpu import (
    PRICES,
    load_prices,
    old_price_lines,
    origin_line,
    price_origins,
    priced,
    profile_of_id,
    providers,
    rental,
    share_lines,
)

HEADER = "instance,gpu_id,n_gpus,region,usd_per_hour,as_of,source"
ROW = "big,H100-80GB,8,east,80,2026-01-31,https://example.org/prices"


def table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join([header, *rows, ""]))
    return path


@pytest.mark.parametrize("provider", providers())
def test_a_table_that_ships_is_valid_and_its_readme_names_it(provider):
    rows = load_prices(PRICES / f"{provider}.csv")
    assert f"| `{provider}` |" in (PRICES / "README.md").read_text()
    # USD of one device: a slip of the decimal point would be seen.
    assert all(0.3 < row["usd_per_hour"] / row["n_gpus"] < 20 for row in rows)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([ROW.replace(",80,", ",0,")], "line 2, field 'usd_per_hour'.*above 0"),
        ([ROW.replace(",80,", ",cheap,")], "line 2, field 'usd_per_hour'.*valid number"),
        ([ROW.replace(",8,", ",0,")], "line 2, field 'n_gpus'.*1 to 9,999"),
        ([ROW.replace("2026-01-31", "31.1.2026")], "line 2, field 'as_of'.*YYYY-MM-DD"),
        ([ROW.replace("2026-01-31", "2026-13-01")], "line 2, field 'as_of'.*YYYY-MM-DD"),
        ([ROW.replace("2026-01-31", "")], "line 2, field 'as_of'.*missing.*YYYY-MM-DD"),
        ([ROW.replace("https://example.org", "a page")], "line 2, field 'source'.*https"),
        ([ROW.replace("H100-80GB", "H1000")], "line 2, field 'gpu_id': no facts of GPU 'H1000'"),
        ([ROW, ROW], "line 3, field 'instance': big in east is already in line 2"),
        ([ROW + ",more"], "line 2: 8 cells under 7 columns"),
    ],
)
def test_a_wrong_row_is_one_error_with_its_place_and_fix(tmp_path, rows, said):
    with pytest.raises(InputError, match=f"mine\\.csv, {said}"):
        load_prices(table(tmp_path, *rows))


def test_the_smallest_machine_that_has_the_devices_counts_and_is_shared(tmp_path, monkeypatch):
    other = ROW.replace("big", "other").replace(",80,", ",72,").replace("2026-01-31", "2025-06-30")
    small = ROW.replace("big,H100-80GB,8", "small,H100-80GB,2").replace(",80,", ",30,")
    table(tmp_path, ROW, other, small)
    monkeypatch.setattr("sextant.facts.gpu.PRICES", tmp_path)

    def price(name):
        found = priced(profile_of_id(name), "mine")
        return found and (found.usd_per_hour, found.price_as_of)

    assert price("2xH100-80GB") == (30, "2026-01-31")
    assert price("1xH100-80GB") == (15, "2026-01-31")
    # The cheaper one of two that have eight; four of them cost half.
    assert price("8xH100-80GB") == (72, "2025-06-30")
    assert price("4xH100-80GB") == (36, "2025-06-30")
    assert price("1xL4-24GB") is None
    # A replica of more than a node's devices takes several machines of a node.
    assert price("16xH100-80GB") == (144, "2025-06-30")
    assert rental(priced(profile_of_id("9xH100-80GB"), "mine")) == ("other", 2, 16, 1, 144)
    small_only = ROW.replace("big,H100-80GB,8", "small,H100-80GB,2")
    table(tmp_path, small_only)
    load_prices.cache_clear()
    assert price("2xH100-80GB") == (80, "2026-01-31")
    assert price("4xH100-80GB") is price("16xH100-80GB") is None, "two of them are no node"


@pytest.mark.parametrize(
    ("name", "replicas", "whole"),
    [
        ("1xH100-80GB", 1, "8 at a time as p5.48xlarge, 1 of which cost 55.04 USD/h"),
        ("1xH100-80GB", 9, "2 of which cost 110.08 USD/h"),
        # Three devices leave two of eight unused.
        ("3xH100-80GB", 2, "1 of which cost 55.04 USD/h"),
        ("4xH100-80GB", 2, None),
        ("16xH100-80GB", 3, None),
        ("12xH100-80GB", 2, "8 at a time as p5.48xlarge, 4 of which cost 220.16 USD/h"),
        ("1xT4-16GB", 3, None),
    ],
)
def test_a_share_of_a_machine_says_what_whole_ones_cost(name, replicas, whole):
    lines = share_lines(priced(profile_of_id(name), "aws"), replicas)
    assert [whole in line for line in lines] == [True] * (whole is not None)


def test_a_price_of_a_pipeline_s_sheet_holds_before_the_tables_that_it_was_taken_from():
    """A request rate was priced at the cheapest provider's 1.99, users at the sheet's 2.74."""
    profile = replace(
        profile_of_id("1xA100-40GB"),
        usd_per_hour=2.744705,
        price_source="aws on demand, us-east-1",
    )
    sheet = {"1xA100-40GB": profile}
    (imported,) = find_candidates(sheet, (), None).values()
    (measured,) = find_candidates(sheet, (), None, priced_by_sheet=sheet).values()
    assert imported.usd_per_hour == 1.99 and measured == profile


def test_a_provider_offers_what_it_sells():
    names = ("1xT4-16GB", "1xA10-24GB", "4xH100-80GB")
    known = {name: replace(profile_of_id(name), usd_per_hour=1.0) for name in names}
    found = find_candidates(known, (), Path("aws"))
    usd = {name: each.usd_per_hour for name, each in found.items()}
    assert usd == {"1xT4-16GB": 0.752, "4xH100-80GB": 27.52}
    assert found["4xH100-80GB"].price_source == "aws on demand, us-east-1"
    with pytest.raises(InputError, match="azure has a price of none"):
        find_candidates({"1xT4-16GB": known["1xT4-16GB"]}, (), Path("azure"))
    with pytest.raises(InputError, match=r"'--prices': neither a file nor a provider.*aws, azure"):
        find_candidates(known, (), Path("asw"))


@pytest.mark.parametrize(
    ("prices", "usd_per_hour"),
    [
        ("mine.csv", {"1xH100-80GB": 2.0, "1xL40S-48GB": 0.5}),
        ("mine.csv,aws", {"1xH100-80GB": 2.0, "1xL40S-48GB": 0.5, "2xH100-80GB": 13.76}),
        ("aws", {"1xH100-80GB": 6.88, "2xH100-80GB": 13.76}),
        # The source's price is its own, or one of the tables: then the lowest of all counts.
        (None, {"1xH100-80GB": 3.99, "2xH100-80GB": 7.98, "2xA10-24GB": 4.9}),
    ],
)
def test_whose_prices_come_first(tmp_path, monkeypatch, prices, usd_per_hour):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("gpu_profile_id,usd_per_hour\n1xH100-80GB,2\n1xL40S-48GB,0.5\n")
    known = {f"{n}xH100-80GB": priced(profile_of_id(f"{n}xH100-80GB"), "aws") for n in (1, 2)}
    known["2xA10-24GB"] = replace(profile_of_id("2xA10-24GB"), usd_per_hour=4.9)
    found = find_candidates(known, (), prices and Path(prices))
    assert {name: each.usd_per_hour for name, each in found.items()} == usd_per_hour
    # Named, it has a price wherever any table has one.
    (named,) = find_candidates(known, ("4xA100-80GB",), prices and Path(prices)).values()
    assert named.usd_per_hour == (13.723525 if "aws" in str(prices) else 7.16)


def test_prices_more_than_a_year_before_the_newest_are_old():
    tables = [load_prices(PRICES / f"{name}.csv") for name in providers()]
    newest = max(row["as_of"] for rows in tables for row in rows)
    year = int(newest[:4])
    on_time = f"{year - 1}{newest[4:]}"
    # The last one may be of December.
    given = [
        ("b", on_time),
        ("b", newest),
        ("a", f"{year - 2}"),
        (None, None),
        ("c", f"{year - 1}"),
    ]
    origins = price_origins(given)
    old = {each.source: each.is_old for each in origins}
    assert old == {None: False, "a": True, "b": False, "c": False} and len(origins) == 4
    assert origin_line(origins) == (
        f"Prices: as given (no date); a ({year - 2}, old); b ({on_time[:7]} to {newest[:7]}); "
        f"c ({year - 1})."
    )
    (line,) = old_price_lines(origins)
    assert f"a, {year - 2}" in line and "--prices aws or" in line
