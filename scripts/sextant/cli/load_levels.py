"""Which levels of load the options of `sextant load` ask for; what they cannot mean is refused."""

from typing import Any

from sextant.base.errors import InputError
from sextant.cli.workload import arrival_parameters, numbers

_DURATION_S, _WARMUP_S, _COOLDOWN_S = 120.0, 10.0, 5.0
# What each way to put load on a server heeds, of the options that not every way does.
_HEEDS = {
    "--users": {"duration", "warmup", "cooldown"},
    "--request-rate": {
        "duration",
        "warmup",
        "cooldown",
        "burstiness",
        "n_requests",
        "max_in_flight",
    },
    "--batch": {"n_requests"},
}
_OF_ARRIVALS = (
    "arrivals_from",
    "llm",
    "service",
    "time_factor",
    "alpha",
    "beta_s",
    "over",
    "every",
)


def runs_of(given: dict[str, Any]):
    """Return the levels of load that the options ask for, and what is said of them."""
    from sextant.load.run import batch, closed_loop

    if given["arrivals"] is not None:
        return _arrival_runs(given)
    way = _way(given)
    for name in sorted({"duration", "warmup", "cooldown", "burstiness"} | _HEEDS["--request-rate"]):
        if name not in _HEEDS[way]:
            refuse(given, name, f"{way} has no use for it")
    for name in _OF_ARRIVALS:
        refuse(given, name, "it belongs to --arrivals")
    if way == "--users":
        levels = counts(given["users"], way)
        times = _times(given, cooldown_s=0.0)
        runs = [closed_loop(level, **times) for level in levels]
        return runs, {"kind": "closed_loop", "levels": levels, **times}
    if way == "--batch":
        levels = counts(given["batch"], way)
        runs = [batch(level, given["n_requests"]) for level in levels]
        return runs, {"kind": "batch", "levels": levels, "n_requests": given["n_requests"]}
    return _rate_runs(given)


def _way(given: dict[str, Any]) -> str:
    ways = [way for way in _HEEDS if given[way[2:].replace("-", "_")] is not None]
    if len(ways) != 1:
        fix = "give one of --users, --request-rate, --batch and --arrivals"
        raise InputError("how to load the server is not clear", field="--users", fix=fix)
    return ways[0]


def _rate_runs(given: dict[str, Any]):
    """Return an open loop for each rate."""
    from sextant.load.run import open_loop
    from sextant.workload.generators import at_once, gamma

    rates, n_requests = _rates(given["request_rate"]), given["n_requests"]
    if float("inf") in rates and n_requests is None:
        fix = "give --n-requests"
        raise InputError("all at once has no end", field="--request-rate", fix=fix)
    times = _times(given, cooldown_s=_COOLDOWN_S)
    alpha = 1.0 if given["burstiness"] is None else given["burstiness"]
    limit = {"max_in_flight": given["max_in_flight"]}
    extent = _extent(times, n_requests)
    runs = []
    for rate in rates:
        if rate == float("inf"):
            runs.append(open_loop(at_once(n=n_requests), rate, **limit))
        else:
            arrival_s = gamma(alpha, rate, **extent, seed=given["seed"])
            runs.append(open_loop(arrival_s, rate, **_measured(times), **limit))
    levels = ["inf" if rate == float("inf") else rate for rate in rates]
    facts = {"n_requests": n_requests, "burstiness": alpha, **times, **limit}
    return runs, {"kind": "open_loop", "levels": levels, **facts}


def _arrival_runs(given: dict[str, Any]):
    """Return one open loop of an arrival process."""
    from sextant.load.run import open_loop
    from sextant.workload.draw import process
    from sextant.workload.generators import arrival_times

    kind = given["arrivals"]
    for name in ("users", "batch"):
        refuse(given, name, "--arrivals are an open loop")
    options = arrival_parameters(kind, given)
    if kind == "fitted" and given["workload"] is None:
        fix = "give --workload, or other --arrivals"
        raise InputError("fitted arrivals are a workload's", field="--arrivals", fix=fix)
    rate = given["request_rate"] and _rates(given["request_rate"])
    if rate and (len(rate) > 1 or rate[0] == float("inf")):
        fix = "give one rate"
        raise InputError("--arrivals are one level", field="--request-rate", fix=fix)
    parameters = {"rate_rps": rate[0] if rate else None} | options
    name, drawn_by = process(kind, given["workload"], given["arrivals_from"], **parameters)
    is_bounded = kind in ("replay", "windows", "inf")
    times = _times(given, cooldown_s=_COOLDOWN_S, is_bounded=is_bounded)
    if kind == "inf" and given["n_requests"] is None:
        raise InputError("all at once has no end", field="--arrivals", fix="give --n-requests")
    extent = _extent(times, given["n_requests"])
    arrival_s = arrival_times(name, drawn_by, **extent, seed=given["seed"])
    limit = {"max_in_flight": given["max_in_flight"]}
    facts = {name: value for name, value in parameters.items() if value is not None}
    if given["arrivals_from"] is not None:
        facts["arrivals_from"] = str(given["arrivals_from"])
    facts |= {"n_requests": given["n_requests"], **times, **limit}
    run = open_loop(arrival_s, rate[0] if rate else None, **_measured(times), **limit)
    return [run], {"kind": "open_loop", "arrivals": kind, **facts}


def _times(given: dict[str, Any], cooldown_s: float, is_bounded: bool = False) -> dict[str, Any]:
    """Return warm-up, duration and cool-down; a load that ends by itself is measured whole."""
    is_counted = given["n_requests"] is not None
    for name in ("duration", "warmup", "cooldown"):
        if is_counted:
            refuse(given, name, "--n-requests are all measured")
        value = given[name]
        least = 1e-9 if name == "duration" else 0.0
        if value is not None and not least <= value < float("inf"):
            fix = "give a finite number of seconds, more than 0"
            raise InputError(f"{value} seconds", field=f"--{name}", fix=fix)
    ends_itself = is_counted or is_bounded
    defaults = {
        "warmup_s": 0.0 if ends_itself else _WARMUP_S,
        "duration_s": None if ends_itself else _DURATION_S,
        "cooldown_s": 0.0 if ends_itself else cooldown_s,
    }
    chosen = {name: given[name[:-2]] for name in defaults}
    return {
        name: default if chosen[name] is None else chosen[name]
        for name, default in defaults.items()
    }


def _extent(times: dict[str, Any], n_requests: int | None) -> dict[str, Any]:
    """Return what ends an arrival process."""
    if times["duration_s"] is None:
        return {"n": n_requests, "duration_s": None}
    return {"n": n_requests, "duration_s": sum(times.values())}


def _measured(times: dict[str, Any]) -> dict[str, Any]:
    return {name: times[name] for name in ("warmup_s", "duration_s")}


def refuse(given: dict[str, Any], name: str, why: str) -> None:
    """Refuse an option that was given and has no meaning."""
    if given[name] is not None:
        field = "--" + name.replace("_", "-")
        raise InputError(why, field=field, fix="leave it out")


def counts(text: str, option: str) -> list[int]:
    """Return numbers of requests at once, such as users."""
    levels = _levels(text, option)
    if not all(level >= 1 and level.is_integer() for level in levels):
        fix = "write whole numbers above 0, separated by commas"
        raise InputError(f"{text!r} are no numbers of requests at once", field=option, fix=fix)
    return [int(level) for level in levels]


def _rates(text: str) -> list[float]:
    rates = _levels(text, "--request-rate")
    if not all(rate > 0 for rate in rates):
        fix = "write requests per second above 0, or inf, separated by commas"
        raise InputError(f"{text!r} are no rates", field="--request-rate", fix=fix)
    return rates


def _levels(text: str, option: str) -> list[float]:
    levels = numbers(text, option)
    if len(set(levels)) < len(levels):  # nobody could tell the rows of one from the other's
        raise InputError(f"a level of {text!r} stands twice", field=option, fix="leave one out")
    return levels
