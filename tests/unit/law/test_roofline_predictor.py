"""The predictor `roofline` in a world that obeys its law, so that the truth is known."""

import numpy as np
import pandas as pd
import pytest

from served_world import LLMS, PROFILES, draw, facts
from sextant.decide.decision import best_probe
from sextant.facts.slo import SLO
from sextant.judge.evaluate import Evaluation, evaluate_predictor
from sextant.judge.task import Task
from sextant.law import fits
from sextant.law.fit import fit_law
from sextant.law.fits import fit_or_restore
from sextant.law.posterior import columns_of
from sextant.law.roofline import Roofline
from sextant.law.terms import LAW
from sextant.points.frame import TARGETS, FactTables
from sextant.predict.predictor import Draws

LIMITS = SLO("s", nttft_ms=20.0, itl_ms=40.0, percentile=50, users=100)
WORLD = draw(facts())
TRAINING = WORLD.without(["unseen"])
HELD_OUT = WORLD.of(["unseen"])


def train(rows=TRAINING, told=None, seed=0) -> Roofline:
    return Roofline(LIMITS, PROFILES, seed).fit(rows, told)


def predict(model: Roofline, X: pd.DataFrame) -> pd.DataFrame:
    return Draws(X, model.sample(X)).summary()


@pytest.fixture(scope="module")
def model() -> Roofline:
    return train()


def error(predicted: pd.DataFrame, truth: pd.DataFrame) -> float:
    return float((predicted[TARGETS] / truth[TARGETS] - 1).abs().mean().mean())


def test_it_predicts_an_llm_it_has_not_seen_and_nine_of_ten_points_lie_inside() -> None:
    inside = []
    for seed in range(3):
        rows = draw(facts(), seed=seed)
        predicted = predict(train(rows.without(["unseen"])), rows.of(["unseen"]).X)
        truth = rows.of(["unseen"]).y
        assert error(predicted, truth) < 0.15
        for name in ("nttft", "itl"):
            low, high = predicted[f"{name}_lo_ms"], predicted[f"{name}_hi_ms"]
            inside.append(truth[f"{name}_ms"].between(low, high))
    assert np.mean(inside) >= 0.85


def test_the_same_seed_gives_the_same_bytes_whatever_else_is_asked(model) -> None:
    alone = model.sample(HELD_OUT.X)
    beside = pd.concat([WORLD.of(["seven"]).X, HELD_OUT.X])
    assert train().sample(HELD_OUT.X).tobytes() == alone.tobytes()
    together = model.sample(beside)[:, (beside["llm_id"] == "unseen").to_numpy()]
    assert together.tobytes() == alone.tobytes()
    offered = (HELD_OUT.X["gpu_profile_id"] == "1xmiddle").to_numpy()
    assert model.sample(HELD_OUT.X[offered]).tobytes() == alone[:, offered].tobytes()
    # Nothing but its facts is used of the LLM that is asked for.
    assert model.sample(HELD_OUT.X.assign(llm_id="other-name")).tobytes() == alone.tobytes()
    shuffled = TRAINING.X.sample(frac=1, random_state=1).index
    rows = type(TRAINING)(TRAINING.X.loc[shuffled], TRAINING.y.loc[shuffled])
    assert predict(train(rows), HELD_OUT.X)[TARGETS].to_numpy() == pytest.approx(
        predict(model, HELD_OUT.X)[TARGETS].to_numpy(), rel=0.02
    )


def test_one_measured_profile_corrects_a_strange_llm_on_the_others() -> None:
    rows = draw(facts(), slower={"unseen": 1.0})
    own, training = rows.of(["unseen"]), rows.without(["unseen"])
    blind = train(training)
    probe = best_probe(Draws(own.X, blind.sample(own.X)), PROFILES)
    elsewhere = own.where(own.X["gpu_profile_id"] != probe)
    told = train(training, own.on([probe]))
    before, after = (error(predict(m, elsewhere.X), elsewhere.y) for m in (blind, told))
    assert after < 0.5 * before


def test_a_gpu_that_was_never_measured_is_less_certain(model) -> None:
    here = TRAINING.X["gpu_id"] != "large"
    blind = train(TRAINING.where(here))
    rows = HELD_OUT.where(HELD_OUT.X["gpu_id"] == "large")

    def width(predictor: Roofline) -> float:
        frame = predict(predictor, rows.X)
        return float(np.log(frame["itl_hi_ms"] / frame["itl_lo_ms"]).mean())

    assert width(blind) > 1.5 * width(model)
    assert error(predict(blind, rows.X), rows.y) < 0.5


def test_a_kept_fit_gives_the_same_draws_and_a_damaged_one_is_made_again(
    model, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in ("fitted", "restored"):
        again = Roofline(LIMITS, PROFILES, 0)
        fit_or_restore(again, TRAINING, None)
        assert np.array_equal(again.sample(HELD_OUT.X), model.sample(HELD_OUT.X))
        assert not again.has_steps
    (file,) = (tmp_path / "sextant").iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    fit_or_restore(again, TRAINING, None)
    assert np.array_equal(again.sample(HELD_OUT.X), model.sample(HELD_OUT.X))
    # Another seed gives other draws of the same fit.
    seeded = Roofline(LIMITS, PROFILES, 1)
    fit_or_restore(seeded, TRAINING, None)
    assert not np.array_equal(seeded.sample(HELD_OUT.X), model.sample(HELD_OUT.X))
    fit_or_restore(Roofline(LIMITS, PROFILES, 0), TRAINING.without(["tiny"]), None)
    told = HELD_OUT.on([*PROFILES][:1])
    beside = [Roofline(LIMITS, PROFILES, 0) for _ in ("fitted", "restored")]
    for it in beside:
        fit_or_restore(it, TRAINING, told)
        assert np.array_equal(it.untold_.sample(HELD_OUT.X), model.sample(HELD_OUT.X))
    first, second = (it.sample(HELD_OUT.X) for it in beside)
    assert np.array_equal(first, second)
    assert len([*(tmp_path / "sextant").iterdir()]) == 3
    # Other equations give another fit.
    (tmp_path / "other.py").write_text("other")
    names = {path.name for path in fits._CODE}
    assert names >= {"roofline.py", "terms.py", "fit.py", "means.py", "posterior.py"}
    monkeypatch.setattr(fits, "_CODE", (*fits._CODE, tmp_path / "other.py"))
    fit_or_restore(Roofline(LIMITS, PROFILES, 0), TRAINING, None)
    assert len([*(tmp_path / "sextant").iterdir()]) == 4


def test_llms_that_differ_more_leave_more_doubt_and_one_can_be_taken_away() -> None:
    strange = draw(facts(), slower={"tiny": 0.5, "third": -0.5, "nine": 0.4}).without(["unseen"])
    fitted, doubting = (
        fit_law(LAW, each.X, each.y[TARGETS].to_numpy()) for each in (TRAINING, strange)
    )
    name = "llm paged launch"
    assert doubting.posterior.spread[name] > 2 * fitted.posterior.spread[name]
    rows = (TRAINING.X["llm_id"] == "seven").to_numpy()
    other = fit_law(LAW, TRAINING.X[~rows], TRAINING.y[~rows][TARGETS].to_numpy())
    X = TRAINING.X[rows]
    exact = LAW.predict_log(other.posterior.most_likely(X), columns_of(X))
    assert np.abs(fitted.leave_out(TRAINING.X["llm_id"]).log_latencies[rows] - exact).mean() < 0.05


def points_of(rows) -> pd.DataFrame:
    """Return rows as points of the store, as far as `evaluate` reads them."""
    named = rows.X[["llm_id", "gpu_profile_id", "users"]]
    named = named.assign(throughput_tok_s=np.nan, input_tokens=120.0, output_tokens=20.0)
    named["engine"] = "tgis"
    y = rows.y.add_prefix("median_")[["median_nttft_ms", "median_itl_ms"]]
    return named.join(y).reset_index(drop=True)


def judge(points: pd.DataFrame) -> Evaluation:
    every = {(llm_id, profile_id) for llm_id in LLMS for profile_id in PROFILES}
    task = Task("here", points, FactTables(LLMS, PROFILES), every)
    return evaluate_predictor(task, [LIMITS], "roofline", seed=0)


@pytest.fixture(scope="module")
def judged() -> Evaluation:
    return judge(points_of(TRAINING))


def test_evaluation_decides_with_a_probability_and_intervals(judged: Evaluation) -> None:
    score = judged.scores.iloc[0]
    assert score["n_llms"] == 6
    assert score["so_score"] > 0.8
    bounds = judged.predictions[["nttft_lo_ms", "nttft_hi_ms", "itl_lo_ms", "itl_hi_ms"]]
    assert bounds.notna().all().all()
    rows = judged.recommendations.set_index("llm_id")
    assert rows["probability_met"].between(0, 1).all()
    # The LLM without points gets an answer, but no verdict.
    assert pd.notna(rows.loc["unseen", "gpu_profile_id"])
    assert pd.isna(rows.loc["unseen", "is_success"])


def test_what_the_held_out_llm_measured_changes_nothing_for_it(judged: Evaluation) -> None:
    changed = TRAINING._replace(y=TRAINING.y.copy())
    own = TRAINING.X["llm_id"] == "seven"
    changed.y.loc[own, TARGETS] *= 3
    longer = points_of(changed)
    longer.loc[longer["llm_id"] == "seven", "input_tokens"] = 999.0
    frames = [judged, judge(longer)]
    before, after = (f.predictions.query("llm_id == 'seven'") for f in frames)
    pd.testing.assert_frame_equal(before, after)
    chosen = [f.recommendations.set_index("llm_id").loc["seven"] for f in frames]
    assert chosen[0]["gpu_profile_id"] == chosen[1]["gpu_profile_id"]
