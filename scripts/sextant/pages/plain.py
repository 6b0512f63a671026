"""From frames to what JSON can say."""

from typing import Any

import numpy as np
import pandas as pd


def plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows with None for what is missing: JSON has no NaN."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{name: _native(value) for name, value in row.items()} for row in rows]


def _native(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
