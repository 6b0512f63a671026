"""PerfNet, PerfNetV2 and Morphling, trained for a few epochs."""

import numpy as np
import pytest

from roofline import LIMITS, PROFILES, SIZES, references_of, rows_of
from sextant.points.frame import FLOOR_MS, TARGETS, has_latency
from sextant.predict import morphling
from sextant.predict.morphling import Morphling
from sextant.predict.network import NetworkInputs
from sextant.predict.perfnet import PerfNet
from sextant.predict.perfnetv2 import PerfNetV2
from sextant.predict.tuning import HeldOutRows, mape_error
from support import needs_baselines

pytestmark = [pytest.mark.slow, needs_baselines]
BRIEF = {"epochs": 3, "batch_size": 16}
ROWS = rows_of(SIZES, noise=0.2)
UNSEEN, KNOWN = ROWS.of(["c"]), ROWS.without(["c"])


def test_inputs_are_standardised_and_unseen_categories_have_no_column():
    inputs = NetworkInputs().fit(KNOWN.X)
    known, unseen = inputs.transform(KNOWN.X), inputs.transform(UNSEEN.X)
    # users, size, unknown, speed, is_decoder; 4 types of LLM, 3 architectures
    assert inputs.n_columns == known.shape[1] == unseen.shape[1] == 12
    spread = known.std(axis=0)
    np.testing.assert_allclose(known.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(spread[spread > 0], 1, atol=1e-5)
    # What nobody knows is a constant, not a NaN.
    assert np.isfinite(known).all() and (spread == 0).sum() == 2
    is_type_a = (KNOWN.X["llm_type"] == "type-a").to_numpy()
    types = [i for i in range(12) if np.unique(known[~is_type_a, i]).size == 1 and spread[i] > 0]
    assert len(types) == 1
    assert (unseen[:, types] == known[~is_type_a][0, types]).all()


@pytest.fixture(scope="module")
def brief() -> PerfNet:
    return PerfNet(LIMITS, PROFILES, 1, BRIEF).fit(KNOWN)


def test_the_same_seed_gives_the_same_predictions_and_another_does_not(brief):
    first = brief.predict(UNSEEN.X)
    again = PerfNet(LIMITS, PROFILES, 1, BRIEF).fit(KNOWN)
    assert first.equals(again.predict(UNSEEN.X))
    other = PerfNet(LIMITS, PROFILES, 2, BRIEF).fit(KNOWN)
    assert not first.equals(other.predict(UNSEEN.X))
    assert first.index.equals(UNSEEN.X.index)
    assert first.columns.tolist() == TARGETS


def test_perfnets_have_the_published_layers(brief):
    convolving = PerfNetV2(LIMITS, PROFILES, 1, BRIEF).fit(KNOWN)
    dense, shapes = (
        [tuple(each.shape) for each in model.networks_["itl_ms"].trainable_weights]
        for model in (brief, convolving)
    )
    assert dense[::2] == [(12, 32), (32, 64), (64, 128), (128, 256), (256, 1)]
    # 12 inputs shrink to 10 and 9 places, each with 128 channels.
    assert shapes[:5] == [(3, 1, 32), (32,), (2, 32, 128), (128,), (9 * 128, 32)]
    assert np.isfinite(convolving.predict(UNSEEN.X)).all(axis=None)


def test_a_dead_unit_predicts_a_latency_that_meets_every_limit():
    model = PerfNet(LIMITS, PROFILES, 1, BRIEF | {"epochs": 1}).fit(KNOWN)
    for network in model.networks_.values():
        network.set_weights([0 * weights for weights in network.get_weights()])
    predicted = model.predict(UNSEEN.X)
    assert (predicted == FLOOR_MS).all(axis=None)
    assert has_latency(predicted).all()


def choice(epochs: int, alpha: float = 0.001, beta: float = 0.001) -> dict[str, float]:
    return {"epochs": epochs, "alpha": alpha, "beta": beta}


def test_fine_tuning_moves_predictions_and_needs_references():
    settings = {target: choice(3) for target in TARGETS}

    def predict(references) -> np.ndarray:
        model = Morphling(LIMITS, PROFILES, 1, settings).fit(KNOWN, references)
        return model.predict(UNSEEN.X).to_numpy()

    untouched = predict(None)
    np.testing.assert_array_equal(predict(UNSEEN.of([])), untouched)
    assert not np.array_equal(predict(references_of(UNSEEN)), untouched)


def test_a_validation_error_is_that_of_training_from_scratch(monkeypatch):
    """Though networks are shared between choices, held-out LLMs and numbers of epochs."""
    choices = (choice(2), choice(4), choice(2, alpha=0.01), choice(4, beta=0.01))
    monkeypatch.setattr(morphling, "CHOICES", choices)
    training = ROWS.without(["b", "d"])
    held_out = [HeldOutRows(ROWS.of([name]), references_of(ROWS.of([name]))) for name in "bd"]
    errors = Morphling(LIMITS, PROFILES, 1).validation_errors(training, held_out)
    assert errors.shape == (2, 16)
    for first, second in ((1, 3), (2, 0)):
        settings = {"nttft_ms": choices[first], "itl_ms": choices[second]}
        for row, (own, references) in enumerate(held_out):
            model = Morphling(LIMITS, PROFILES, 1, settings).fit(training, references)
            expected = mape_error(own.y[TARGETS].to_numpy(), model.predict(own.X).to_numpy())
            assert errors[row, 4 * first + second] == pytest.approx(expected, rel=1e-5)


def test_a_network_that_diverged_is_never_chosen(monkeypatch):
    monkeypatch.setattr(morphling, "CHOICES", (choice(2, alpha=1e30), choice(2)))
    held_out = [HeldOutRows(UNSEEN, references_of(UNSEEN))]
    errors = Morphling(LIMITS, PROFILES, 1).validation_errors(KNOWN, held_out)
    assert np.isfinite(errors[0, 3])
    assert not np.isnan(errors).any()
