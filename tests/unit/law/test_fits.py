"""Fits that ship are those that this code makes of the points that ship."""

from pathlib import Path

import numpy as np
import pytest

from sextant.base.resources import resource
from sextant.law import fits
from sextant.law.energy import Energy
from sextant.law.roofline import Roofline
from support import ROOT, script

make = script("resources/fits/make.py")
MAKE = "the fits that ship are of other code or data: run `python resources/fits/make.py`"
ALL = [*make.shipped_fits()]
FEW = [
    make.ShippedFit(make.TODAYS, "ttft", (95, 50)),
    make.ShippedFit(("archive:llm-pilot",), "nttft", (50, 50)),
]
TOLERANCE = 1e-5
"""Other processors and versions of NumPy compute the last digits differently."""


def check(fit: "make.ShippedFit") -> None:
    """Compare a fit that ships with a fresh one."""
    shipped, training = fit.untrained()
    assert fits.use_shipped(shipped, training), MAKE
    fresh, _ = fit.untrained()
    fresh.fit(training)

    ships, expected = shipped.arrays(), fresh.arrays()
    assert ships.keys() == expected.keys(), MAKE
    for name, values in expected.items():
        if values.dtype.kind == "f":
            scale = np.abs(values).max(initial=0.0)
            assert ships[name] == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE * scale), MAKE
        else:
            assert (ships[name] == values).all(), MAKE


def test_the_law_that_they_were_made_by_is_this_one() -> None:
    assert (resource("fits") / fits.LAW_FILE).read_text().strip() == fits.law_digest(), MAKE
    n_files = len(ALL) + len(make.PERCENTILES)  # and what is known of energy
    assert len([*resource("fits").glob("*.npz")]) == n_files, MAKE


@pytest.mark.parametrize("fit", FEW)
def test_a_fresh_fit_is_the_same(fit: "make.ShippedFit") -> None:
    assert fit in ALL
    check(fit)


@pytest.mark.slow
@pytest.mark.parametrize("fit", [fit for fit in ALL if fit not in FEW])
def test_each_fresh_fit_is_the_same(fit: "make.ShippedFit") -> None:
    check(fit)


def test_a_first_question_fits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it is fitted again")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Roofline, "fit", fail)
    model, training = FEW[0].untrained()

    fits.fit_or_restore(model, training, None)

    assert len([*(tmp_path / "sextant").iterdir()]) == 1  # the next one does not even finish it
    with pytest.raises(AssertionError, match="fitted again"):
        fits.fit_or_restore(model, training.where(training.X["users"] > 4), None)


def test_energy_is_not_learned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    points, facts = make.shipped_energy(50)
    expected = Energy.fitted(points, facts)

    def fail(*_: object) -> None:
        raise AssertionError("it is learned again")

    monkeypatch.setattr(Energy, "fitted", fail)
    found = fits.energy_or_restore(points, facts)
    assert expected is not None and found is not None, MAKE
    assert found.coefficients == pytest.approx(expected.coefficients, rel=TOLERANCE, abs=TOLERANCE)
    assert (found.spread, found.n_llms) == (pytest.approx(expected.spread), expected.n_llms)


def test_points_or_a_law_that_differ_have_no_fit_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, training = FEW[0].untrained()
    name = fits.shipped_name(training)
    assert (resource("fits") / name).is_file(), MAKE

    closer = training._replace(y=training.y * (1 + 1e-12))
    assert fits.shipped_name(closer) == name
    assert fits.shipped_name(training._replace(y=training.y * 1.001)) != name

    (tmp_path / "other.py").write_text("other")
    monkeypatch.setattr(fits, "_CODE", (*fits._CODE, tmp_path / "other.py"))
    assert not fits.use_shipped(model, training)


def test_they_are_a_small_part_of_the_wheel() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "resources" / "fits").iterdir()) < 3e6
