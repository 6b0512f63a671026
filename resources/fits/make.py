"""Make the fits that ship: after a change of the law, of facts, or of a source that ships.

    python resources/fits/make.py

It takes minutes and replaces the files of this folder.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sextant.ask.case import read_case
from sextant.ask.forecast import make_predictor, training_at
from sextant.ask.question import Question
from sextant.base.files import atomic_path, write_text
from sextant.base.resources import resource
from sextant.facts.slo import SLO
from sextant.law.fits import LAW_FILE, law_digest, shipped_name
from sextant.law.roofline import Roofline
from sextant.predict.predictor import TrainingRows

FOLDER = Path(__file__).parent
PERCENTILES = (50, 90, 95, 99)


class ShippedFit(NamedTuple):
    """What a fit that ships is made of."""

    sources: tuple[str, ...]
    first_token: str  #: `ttft` or `nttft`
    percentiles: tuple[int, int]  #: Of the first token, and of the later ones.

    def untrained(self) -> tuple[Roofline, TrainingRows]:
        """Return the model before its fit, and the points to fit it to."""
        first, later = self.percentiles
        limits = {f"{self.first_token}_ms": 1e3, f"{self.first_token}_percentile": first}
        slo = SLO("shipped", **limits, itl_ms=1e3, itl_percentile=later, users=1)
        config = next(resource("llms").glob("*.json"))
        question = Question(slo, hf_config=config, sources=self.sources)
        case = read_case(question, need_prices=False)
        model = make_predictor(question, case.source.characterization.profiles)
        assert isinstance(model, Roofline)
        return model, training_at(model, case, slo)[1]


def shipped_fits() -> Iterator[ShippedFit]:
    """Yield all fits that ship: those of plain questions without and with lengths."""
    # What is measured as a mean has the same nTTFT and TTFT at medians.
    for percentiles in product(PERCENTILES, PERCENTILES):
        yield ShippedFit(("archive:inferencex",), "ttft", percentiles)
    for first_token, percentile in product(("ttft", "nttft"), PERCENTILES):
        yield ShippedFit(("archive:llm-pilot",), first_token, (percentile, percentile))
    both = ("archive:inferencex", "archive:mlenergy")  # the latter has no input lengths
    for percentiles in ((50, 50), (95, 50), (95, 95), (99, 99)):
        yield ShippedFit(both, "ttft", percentiles)


def main() -> None:
    """Make all fits; files of other fits are deleted."""
    names = set()
    for fit in shipped_fits():
        model, training = fit.untrained()
        path = FOLDER / shipped_name(model, training)
        if path.name in names:
            continue
        names.add(path.name)
        model.fit(training)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **model.start_arrays())
        print(path.name, *fit, f"{path.stat().st_size:,} bytes", flush=True)

    for path in FOLDER.glob("*.npz"):
        if path.name not in names:
            path.unlink()
    write_text(FOLDER / LAW_FILE, f"{law_digest()}\n")


if __name__ == "__main__":
    main()
