"""XGBoost without its interface for scikit-learn.

XGBoost imports scikit-learn if it is there, which takes more than a second. An answer of `sextant
recommend` needs only `xgboost.train`, which works without it and gives the same numbers.
"""

import sys

if "sklearn" in sys.modules:
    import xgboost
else:
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # how Python marks "not installed"
    try:
        import xgboost
    finally:
        del sys.modules["sklearn"]

__all__ = ["xgboost"]
