"""The mechanistic predictor; docs/predictor.md explains it.

In go fact rows of points (`facts`) and their latencies; out come joint draws for a new LLM. Read
`law` (its equations), `effects` (what moves their parameters), `posterior` (the fit), `residuals`
(trees that correct it), then `predictor`, which puts them together. `energy` goes from ITL to
joules of an output token.
"""

from sextant.predict.roofline.predictor import Roofline

__all__ = ["Roofline"]
