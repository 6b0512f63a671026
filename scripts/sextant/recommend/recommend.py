"""Answer a question about one LLM: from its own points if they answer, else from a predictor."""

from sextant.ask.case import read_case
from sextant.ask.question import Question
from sextant.recommend.measured import recommend_measured
from sextant.recommend.predicted import recommend_predicted
from sextant.recommend.recommendation import Recommendation


def recommend_llm(question: Question) -> Recommendation:
    """Recommend a GPU profile and a number of replicas for one LLM.

    Raises:
        InputError: an option is wrong, or the characterization cannot answer.
    """
    case = read_case(question)
    if case.is_answered_by_points:
        return recommend_measured(case)
    return recommend_predicted(case)
