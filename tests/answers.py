"""Answers as a program reads them."""

from typing import Any

from sextant.ask.question import Question
from sextant.pages.blocks import as_text
from sextant.recommend.document import recommendation_document
from sextant.recommend.explain import explain_llm, explanation_document
from sextant.recommend.recommend import recommend_llm


def recommended(question: Question) -> dict[str, Any]:
    """Return the JSON of a recommendation, with its text."""
    document = recommendation_document(recommend_llm(question))
    return {**document.data, "text": as_text(document)}


def explained(question: Question, gpu_profile_id: str, users: int) -> dict[str, Any]:
    """Return the JSON of an explanation, with its text."""
    document = explanation_document(explain_llm(question, gpu_profile_id, users))
    return {**document.data, "text": as_text(document)}
