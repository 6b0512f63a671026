"""How good the predictor `roofline` is, and what each part of it is worth.

    .venv/bin/python benchmarks/roofline_study.py            # everything, some minutes
    .venv/bin/python benchmarks/roofline_study.py llms seeds

Needs the store of `make reproduce-llm-pilot`. Parts: `llms` (leave one LLM out, a row an LLM),
`ablation`, `families`, `gpus` (leave one GPU type out), `probe` (one profile of the held-out
LLM is measured, which one the tool says), `seeds`, `baselines` (others with our decision). S, O
and S/O are means over the grid of config/slos.tsv; intervals are those of 90%; `+-` is the
standard deviation over 1,000 bootstrap draws of the LLMs.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from sextant.decide.decision import best_probe, choose, weigh
from sextant.decide.sizing import candidates, recommend_cheapest
from sextant.facts.slo import SLO, load_slos
from sextant.judge.folds import design_rows
from sextant.judge.score import score_recommendation, so_score
from sextant.law.roofline import Roofline
from sextant.points.characterization import Characterization
from sextant.points.frame import IDENTIFIERS, LENGTHS, TARGETS, FactTables, at_percentile
from sextant.points.measured import load_characterization
from sextant.predict.predictor import Draws, Settings, TrainingRows, predictor_class

KEYS = [*IDENTIFIERS, "users"]
SEED = 42
FAMILIES = (
    ("bigscience__mt0-xxl", "google__flan-t5-xl", "google__flan-t5-xxl", "google__flan-ul2"),
    ("llama-7b", "llama-13b"),
)


class Answer(NamedTuple):
    """What a model that has not seen some points says of them."""

    X: pd.DataFrame
    samples_ms: np.ndarray
    told: list[str]
    """Profiles whose measurements it was given."""

    @property
    def draws(self) -> Draws:
        return Draws(self.X, self.samples_ms)


class Study:
    """The points, the promises, and how to judge against them."""

    def __init__(self, known: Characterization, slos: Sequence[SLO]) -> None:
        self.known, self.slos = known, slos
        self.facts = FactTables(known.llms, known.profiles, known.features)
        self.truth = at_percentile(known.points, (50, 50))
        model = Roofline(slos[0], known.profiles, SEED)
        # The workload's lengths are known before anything is measured.
        of_one_workload = self.truth.assign(**self.truth[LENGTHS].median())
        self.rows = design_rows(model, of_one_workload, self.facts)
        self.llm_ids = sorted(self.rows.X["llm_id"].unique())

    def ask(
        self,
        training: TrainingRows,
        asked: TrainingRows,
        seed: int = SEED,
        probe: bool = False,
    ) -> Answer:
        """Fit on some rows and answer for others, told of one profile of them if `probe`."""
        X_asked = asked.X
        model = Roofline(self.slos[0], self.known.profiles, seed).fit(training)
        if not probe:
            return Answer(X_asked, model.sample(X_asked), [])
        told = best_probe(Draws(X_asked, model.sample(X_asked)), self.known.profiles, self.slos)
        here = (X_asked["gpu_profile_id"] == told).to_numpy()
        measured = TrainingRows(X_asked[here], asked.y[here])
        samples_ms = model.fit(training, measured).sample(X_asked)
        samples_ms[:, here] = asked.y.loc[here, TARGETS].to_numpy()
        return Answer(X_asked, samples_ms, [told])

    def leave_out(self, groups: Sequence[Sequence[str]], **options) -> list[Answer]:
        """Answer for each LLM by a model that has seen none of its group."""
        jobs = (
            delayed(self.ask)(self.rows.without(group), self.rows.of([llm_id]), **options)
            for group in groups
            for llm_id in group
        )
        return Parallel(n_jobs=-1)(jobs)

    def verdicts(self, answers: Sequence[Answer], decide: Callable) -> pd.DataFrame:
        """Return `slo_id, llm_id, is_success, overspend` of every promise that can be kept."""
        parts = [part for slo in self.slos for part in self._verdicts(answers, decide, slo)]
        judged = pd.concat(parts, ignore_index=True)
        return judged[judged["is_success"].notna()]

    def _verdicts(
        self, answers: Sequence[Answer], decide: Callable, slo: SLO
    ) -> Iterator[pd.DataFrame]:
        for answer in answers:
            pairs = answer.X[IDENTIFIERS].drop_duplicates()
            profiles = {name: self.known.profiles[name] for name in pairs["gpu_profile_id"]}
            real = self.truth.merge(pairs, on=IDENTIFIERS)
            truth = candidates(real, list(pairs["llm_id"].unique()), profiles, slo)
            chosen = decide(answer, profiles, slo)
            yield score_recommendation(chosen, truth, recommend_cheapest(truth), slo.load).assign(
                slo_id=slo.slo_id
            )

    def errors(self, answers: Sequence[Answer]) -> pd.DataFrame:
        """Return, a row a point that was not told: error of each target, and if it is inside."""
        parts = []
        for answer in answers:
            frame = answer.X[KEYS].join(answer.draws.summary())
            parts.append(frame[~frame["gpu_profile_id"].isin(answer.told)])
        both = pd.concat(parts).merge(self.truth, on=KEYS, suffixes=("", "_true"))
        for name in ("nttft", "itl"):
            true = both[f"{name}_ms_true"]
            both[f"mape_{name}"] = (both[f"{name}_ms"] - true).abs() / true
            both[f"inside_{name}"] = true.between(both[f"{name}_lo_ms"], both[f"{name}_hi_ms"])
        return both


def utility(answer: Answer, profiles, slo: SLO) -> pd.DataFrame:
    return choose(weigh(answer.draws, profiles, slo))


def paper(answer: Answer, profiles, slo: SLO) -> pd.DataFrame:
    """Decide by LLM-Pilot's eq. 1-3 on the median predictions."""
    latencies = answer.X[KEYS].join(answer.draws.summary())
    return recommend_cheapest(
        candidates(latencies, list(answer.X["llm_id"].unique()), profiles, slo)
    )


def profile_only(answer: Answer, profiles, slo: SLO) -> pd.DataFrame:
    """Take the profile of eq. 1-3, but the number of replicas that is worth most on it."""
    first = paper(answer, profiles, slo)
    options = weigh(answer.draws, profiles, slo)
    here = options["gpu_profile_id"] == first["gpu_profile_id"].iloc[0]
    return choose(options[here]) if here.any() else first


def scores(verdicts: pd.DataFrame) -> dict[str, float]:
    """Return the means over the promises of S, O and S/O, and S/O's spread over the LLMs."""
    each = verdicts.astype({"is_success": float}).set_index(["slo_id", "llm_id"])
    success = each["is_success"].unstack()
    overspend = each["overspend"].unstack().fillna(0).to_numpy()
    judged, succeeded = success.notna().to_numpy(float), success.fillna(0).to_numpy()
    n_llms = success.shape[1]
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(n_llms, [1 / n_llms] * n_llms, size=1000).T
    with np.errstate(invalid="ignore"):
        means = _means(judged, succeeded, overspend, np.ones((n_llms, 1)))
        spread = float(np.std(_means(judged, succeeded, overspend, drawn)[2]))
    rate, spent, both = (values[0] for values in means)
    return {"so_score": both, "S": rate, "O": spent, "+-": spread}


def _means(
    judged: np.ndarray, succeeded: np.ndarray, overspend: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return S, O and S/O for each column of weights, an LLM a row; the rest is (SLOs, LLMs)."""
    rate = succeeded @ weights / (judged @ weights)
    spent = (succeeded * overspend) @ weights / (succeeded @ weights)
    both = np.vectorize(so_score, otypes=[float])(np.nan_to_num(rate), spent)
    each = np.where(np.isnan(rate), np.nan, np.where(np.isnan(spent), 0.0, both))
    return np.nanmean(rate, axis=0), np.nanmean(spent, axis=0), np.nanmean(each, axis=0)


def line(study: Study, answers: Sequence[Answer], decide: Callable = utility) -> dict[str, float]:
    verdicts, errors = study.verdicts(answers, decide), study.errors(answers)
    means = errors[["mape_nttft", "mape_itl", "inside_nttft", "inside_itl"]].mean()
    return scores(verdicts) | means.to_dict()


def baseline(study: Study, name: str, settings: Settings) -> list[Answer]:
    """Return a baseline's answers, with draws made of its own errors on the other LLMs.

    Settings are given, not tuned. The logarithm of an error has a part common to the LLM, one
    common to the pair and one of the point; their spreads are those of the other LLMs.
    """
    known, paper = study.known, SLO("paper", nttft_ms=100.0, itl_ms=50.0, percentile=50, users=200)
    model = predictor_class(name)(paper, known.profiles, SEED)
    model.settings = settings
    rows, parts = design_rows(model, study.truth, study.facts), []
    for llm_id in study.llm_ids:
        own = rows.of([llm_id])
        parts.append(own.X[KEYS].join(model.fit(rows.without([llm_id])).predict(own.X)))
    predicted = pd.concat(parts).join(rows.y[TARGETS].add_suffix("_true"))
    errors = np.log(predicted[[f"{t}_true" for t in TARGETS]].to_numpy() / predicted[TARGETS])
    rng, answers = np.random.default_rng(SEED), []
    for llm_id in study.llm_ids:
        own = predicted["llm_id"] == llm_id
        frame = predicted[own].reset_index(drop=True)
        drawn = _errors(errors[~own], predicted[~own], frame, rng)
        samples_ms = frame[TARGETS].to_numpy() * np.exp(drawn)
        answers.append(Answer(frame[KEYS], samples_ms, []))
    return answers


def _errors(
    errors: pd.DataFrame, keys: pd.DataFrame, asked: pd.DataFrame, rng: np.random.Generator
) -> np.ndarray:
    by_llm = errors.groupby(keys["llm_id"]).transform("mean")
    by_pair = errors.groupby([keys[name] for name in IDENTIFIERS]).transform("mean")
    pair = pd.factorize(asked["gpu_profile_id"])[0]
    normal = [rng.standard_normal((1000, n, 2)) for n in (1, pair.max() + 1, len(asked))]
    parts = (by_llm.drop_duplicates(), (by_pair - by_llm).drop_duplicates(), errors - by_pair)
    llm, both, own = (
        z * part.std(ddof=0).to_numpy() for z, part in zip(normal, parts, strict=True)
    )
    return llm + both[:, pair] + own


def show(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{pd.DataFrame(rows).T.to_string(float_format='{:.3f}'.format)}", flush=True)


def run_llms(study: Study) -> None:
    answers = study.leave_out([[name] for name in study.llm_ids])
    rows = {"all": line(study, answers)}
    for name, answer in zip(study.llm_ids, answers, strict=True):
        verdicts, errors = study.verdicts([answer], utility), study.errors([answer])
        means = errors[["mape_nttft", "mape_itl", "inside_nttft", "inside_itl"]].mean()
        s = verdicts["is_success"].astype(float).mean()
        rows[name] = {"S": s, "O": verdicts["overspend"].mean()} | means.to_dict()
    show("leave one LLM out", rows)


def run_ablation(study: Study) -> None:
    answers = study.leave_out([[name] for name in study.llm_ids])
    show(
        "ablation",
        {
            "eq. 1-3": line(study, answers, paper),
            "replicas by utility": line(study, answers, profile_only),
            "utility (roofline)": line(study, answers),
        },
    )


def run_families(study: Study) -> None:
    rest = [[n] for n in study.llm_ids if not any(n in family for family in FAMILIES)]
    families = study.leave_out(FAMILIES)
    rows = {"all ten": line(study, [*families, *study.leave_out(rest)])}
    rows["of the two families"] = line(study, families)
    show("leave one family out", rows)


def run_gpus(study: Study) -> None:
    rows = {}
    for gpu_id in sorted(study.rows.X["gpu_id"].unique()):
        here = study.rows.X["gpu_id"] == gpu_id
        every = study.ask(study.rows.where(~here), study.rows.where(here))
        answers = []
        for llm_id in every.X["llm_id"].unique():
            own = (every.X["llm_id"] == llm_id).to_numpy()
            answers.append(Answer(every.X[own], every.samples_ms[:, own], []))
        rows[gpu_id] = line(study, answers)
    show("leave one GPU type out (choice among the profiles of that type)", rows)


def run_probe(study: Study) -> None:
    answers = study.leave_out([[name] for name in study.llm_ids], probe=True)
    for name, answer in zip(study.llm_ids, answers, strict=True):
        print(f"{name}: probed on {answer.told[0]}")
    show("with one probe", {"all": line(study, answers), "eq. 1-3": line(study, answers, paper)})


def run_seeds(study: Study) -> None:
    alone = [[name] for name in study.llm_ids]
    rows = {str(seed): line(study, study.leave_out(alone, seed=seed)) for seed in range(42, 47)}
    show("seeds", rows | {"mean": pd.DataFrame(rows).mean(axis=1).to_dict()})


def run_baselines(study: Study) -> None:
    trees = {
        "n_estimators": 50,
        "max_depth": 6,
        "learning_rate": 0.1,
        "subsample": 0.8,
        "colsample_bytree": 0.8,
    }
    rows = {}
    for name, settings in (("llm_pilot", trees), ("rf", predictor_class("rf").GRID[-1])):
        answers = baseline(study, name, settings)
        rows[f"{name}, eq. 1-3"] = line(study, answers, paper)
        rows[f"{name}, utility"] = line(study, answers)
    show("baselines with settings that were not tuned, and with our decision", rows)


PARTS = {
    "llms": run_llms,
    "ablation": run_ablation,
    "families": run_families,
    "gpus": run_gpus,
    "probe": run_probe,
    "seeds": run_seeds,
    "baselines": run_baselines,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument(
        "--database", type=Path, default=Path("results/llm-pilot/sextant.duckdb"), help="store"
    )
    arguments = parser.parse_args()
    known = load_characterization(arguments.database, "archive:llm-pilot")
    slos = load_slos(Path("config/slos.tsv"))
    study = Study(known, [slo for name, slo in slos.items() if name != "paper"])
    for part in arguments.parts:
        PARTS[part](study)


if __name__ == "__main__":
    main()
