"""Numbers and counts as pages write them."""

from typing import Any

Row = dict[str, Any]


def number(value: float | None) -> str:
    """Write a number with 3 significant digits, all digits before the point, `–` for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: float | None) -> str:
    """Write a fraction in percent, `–` for None."""
    return "–" if fraction is None else f"{number(100.0 * fraction)} %"
