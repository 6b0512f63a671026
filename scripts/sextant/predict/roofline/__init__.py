"""The mechanistic predictor; docs/predictor.md explains it."""

from sextant.predict.roofline.predictor import Roofline

__all__ = ["Roofline"]
