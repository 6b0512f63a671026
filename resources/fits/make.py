"""Make the fits that ship: after a change of the law, of facts, or of a source that ships.

    python resources/fits/make.py

It takes minutes and replaces the files of this folder.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.case import Case, read_case
from sextant.ask.forecast import make_predictor, training_at
from sextant.ask.question import Question
from sextant.base.files import atomic_path, write_text
from sextant.base.resources import resource
from sextant.facts.slo import SLO
from sextant.law.energy import Energy, energy_points
from sextant.law.fits import LAW_FILE, law_digest, shipped_energy_name, shipped_name
from sextant.law.roofline import Roofline
from sextant.points.characterization import CHAT_SOURCE
from sextant.points.folder import shipped_sources
from sextant.points.frame import FactTables
from sextant.predict.predictor import TrainingRows
from sextant.recommend.cost import energy_basis

FOLDER = Path(__file__).parent
PERCENTILES = (50, 90, 95, 99)
FEW = ((50, 50), (95, 50), (95, 95), (99, 99))
TODAYS = tuple(name for name in shipped_sources() if name != CHAT_SOURCE)
"""What a question with lengths rests on (`ask.source.todays_sources`)."""


class ShippedFit(NamedTuple):
    """What a fit that ships is made of."""

    sources: tuple[str, ...]
    first_token: str  #: `ttft` or `nttft`
    percentiles: tuple[int, int]  #: Of the first token, and of the later ones.

    def case(self) -> Case:
        """Return a question that rests on it."""
        first, later = self.percentiles
        limits = {f"{self.first_token}_ms": 1e3, f"{self.first_token}_percentile": first}
        slo = SLO("shipped", **limits, itl_ms=1e3, itl_percentile=later, users=1)
        config = next(resource("llms").glob("*.json"))
        return read_case(Question(slo, hf_config=config, sources=self.sources), need_prices=False)

    def untrained(self) -> tuple[Roofline, TrainingRows]:
        """Return the model before its fit, and the points to fit it to."""
        case = self.case()
        model = make_predictor(case.question, case.source.characterization.profiles)
        assert isinstance(model, Roofline)
        return model, training_at(model, case, case.question.slo).rows


def shipped_fits() -> Iterator[ShippedFit]:
    """Yield all fits that ship: those of plain questions without and with lengths."""
    # What is measured as a mean has the same nTTFT and TTFT at medians.
    for percentiles in product(PERCENTILES, PERCENTILES):
        yield ShippedFit(TODAYS, "ttft", percentiles)
    for percentiles in FEW:
        yield ShippedFit(("archive:inferencex",), "ttft", percentiles)
    for first_token, percentile in product(("ttft", "nttft"), PERCENTILES):
        yield ShippedFit((CHAT_SOURCE,), first_token, (percentile, percentile))


def shipped_energy(percentile: int) -> tuple[pd.DataFrame, FactTables]:
    """Return the points, at a percentile of the ITL, that tell the energy of a default question."""
    case = ShippedFit(TODAYS, "ttft", (50, percentile)).case()
    return energy_basis(case, case.question.slo.percentiles)


def main() -> None:
    """Make all fits; files of other fits are deleted."""
    names = set()
    for fit in shipped_fits():
        model, training = fit.untrained()
        path = FOLDER / shipped_name(training)
        if path.name in names:
            continue
        names.add(path.name)
        model.fit(training)
        _save(path, model.start_arrays())
        print(path.name, *fit, f"{path.stat().st_size:,} bytes", flush=True)

    for percentile in PERCENTILES:
        points, facts = shipped_energy(percentile)
        rows = energy_points(points, facts)
        learned = Energy.fitted(points, facts)
        assert rows is not None and learned is not None
        path = FOLDER / shipped_energy_name(rows)
        names.add(path.name)
        _save(path, learned.arrays())
        print(path.name, "energy", percentile, flush=True)

    for path in FOLDER.glob("*.npz"):
        if path.name not in names:
            path.unlink()
    write_text(FOLDER / LAW_FILE, f"{law_digest()}\n")


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
