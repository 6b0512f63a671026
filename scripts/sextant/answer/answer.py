"""An answer: what to rent for one LLM, how sure that is, what it rests on; and that in words."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sextant.ask.api_prices import api_section
from sextant.ask.source import Source
from sextant.base.files import Row
from sextant.decide.decision import FAIR, SAFE
from sextant.facts import gpu
from sextant.facts.slo import METRICS, limits_of, worst_limit
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table, Widget
from sextant.pages.words import chance, number, odds, per_second, percent, plural, shown_chance
from sextant.predict.registry import MEASURED

if TYPE_CHECKING:
    import pyarrow as pa

Data = Mapping[str, Any]
OPEN_WORDS = "so few requests that they leave an upper end open: it may be higher"
"""Of a probability, where `is_open`."""
_N_OPTIONS, _N_CONTRADICTIONS, _FAR_DEARER = 6, 3, 10
_PRICE_RULE = (
    "Yours come first, then the provider that --prices names, then the cheapest that ships."
)


class Option(NamedTuple):
    """Replicas of a GPU profile that serve the whole load; all None where nothing does."""

    gpu_profile_id: str | None = None
    replicas: int | None = None
    users_per_replica: int | None = None
    usd_per_hour: float | None = None  # of all replicas
    probability_met: float | None = None
    """That all limits hold; None where nothing says how sure the latencies are."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Option":
        """Return the option of a row that has these columns, and maybe others."""
        return cls(*(row.get(name) for name in cls._fields))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is answered for one LLM, by whichever way the replicas are sized."""

    llm_id: str
    basis: str  # what the latencies come from: `measured`, a predictor's name, or `simulated`
    chosen: Option  # the recommended option
    alternatives: Sequence[Row]
    """One row per GPU profile: its `status`, and what it takes, or why it is none."""
    slo: Row
    risk: float | None  # largest probability of missing the SLO that was asked for
    source: Source
    profiles: Collection[gpu.GPUProfile]  # the candidates, with their prices
    warnings: Sequence[str] = ()
    """What to know before the answer is used: assumptions, estimates, limits of the evidence."""
    serving: Row | None = None
    """Lengths, engine and precision that were asked about; None: as measured."""
    headroom: Row | None = None
    """Room to each limit (`sextant.decide.headroom`); None where it is not known."""
    evidence: Sequence[Row] = ()  # the nearest measurements
    more: Mapping[str, Any] = field(default_factory=dict)
    """What this way of sizing adds, by its name in the JSON."""
    widget: Callable[[], Widget | None] = field(default=lambda: None)
    """Return the part of its page in which the question can be changed, if there is one."""

    @property
    def has_option(self) -> bool:
        """Whether any option is recommended."""
        return self.chosen.gpu_profile_id is not None

    @cached_property
    def data(self) -> dict[str, Any]:
        """What a program reads: plain values, by name."""
        origins = gpu.price_origins((each.price_source, each.price_as_of) for each in self.profiles)
        lines = gpu.old_price_lines(origins)
        name, replicas, *_ = self.chosen
        own = next((each for each in self.profiles if each.gpu_profile_id == name), None)
        if own is not None and replicas is not None:
            lines += gpu.share_lines(own, replicas)
        return {
            "llm_id": self.llm_id,
            **self.chosen._asdict(),
            "price_source": own and own.price_source,
            "price_as_of": own and own.price_as_of,
            "basis": self.basis,
            "risk": self.risk,
            "slo": self.slo,
            "serving": self.serving,
            "alternatives": [*self.alternatives],
            "headroom": self.headroom,
            "evidence": [*self.evidence],
            "characterization": self.source.facts(),
            "prices": [each._asdict() for each in origins],
            "warnings": [*self.warnings, *lines],
            **self.more,
        }


def write_results(
    outputs: Mapping[str, str | Path],
    rows: Sequence[Mapping[str, Any]],
    schema: "pa.Schema",
    document: Document,
) -> None:
    """Write the answers of a rule: the `table`, the `html` page and its `json`, in one folder. They
    appear together: a full disk leaves no new one beside an old one."""
    import pyarrow as pa

    from sextant.base.files import atomic_folder, write_parquet
    from sextant.pages.page import write_page

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    places = {kind: Path(path) for kind, path in outputs.items()}
    with atomic_folder(places["json"].parent, last=places["json"].name) as new:
        write_parquet(new / places["table"].name, table, document.origin or {})
        write_page(document, new / places["html"].name, new / places["json"].name)


def deployment_words(option: Data) -> str:
    """Return e.g. `4 replicas × 1xA100-40GB = 16.39 USD/h`."""
    price = f"{option['usd_per_hour']:.2f} USD/h"
    return f"{plural(option['replicas'], 'replica')} × {option['gpu_profile_id']} = {price}"


def chosen_words(answer: Data) -> str:
    """Return the deployment that an answer recommends, and whether its GPU was never measured."""
    name = answer["gpu_profile_id"]
    own = [row for row in answer["alternatives"] if row["gpu_profile_id"] == name]
    is_known = all(row.get("is_gpu_measured", True) for row in own)
    return deployment_words(answer) + ("" if is_known else " (GPU never measured)")


def _chance_words(option: Data) -> str:
    return f"{deployment_words(option)}, probability {chance(option['probability_met'])}"


def slo_line(slo: Data) -> str:
    """Return the load and the latency limits in one line."""
    limits = limits_of(slo)
    percentiles = {limit.percentile for limit in limits.values()}
    shared = f" at p{min(percentiles)}" if len(percentiles) == 1 else ""
    words = [
        f"{METRICS[name]} ≤ {limit.limit_ms:g} ms{'' if shared else f' at p{limit.percentile}'}"
        for name, limit in limits.items()
    ]
    return f"for {load_words(slo)}, {', '.join(words)}{shared}"


def load_words(slo: Data, load: float | None = None) -> str:
    """Return e.g. `200 users` or `8 requests/s`: the asked load, or another one."""
    load = _load(slo) if load is None else load
    return per_second(load) if slo.get("users") is None else plural(int(load), "user")


def limits_words(answer: Data, one: str = "the limit") -> str:
    """Return `the limit`, or another name of `one`, `both limits` or `all limits`."""
    return {1: one, 2: "both limits"}.get(len(limits_of(answer["slo"])), "all limits")


def moment_words(start: str | None, after_s: float) -> str:
    """Return a time of a trace as date and time, or as the time after its start."""
    if start is not None:
        moment = datetime.fromisoformat(start) + timedelta(seconds=after_s)
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    minutes, seconds = divmod(round(after_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} after its start"


def source_line(answer: Data) -> str:
    """Return what the answer rests on."""
    known = answer["characterization"]
    where = "ships with Sextant" if known["origin"] == "shipped" else known["origin"]
    sides = [
        f"{known[f'mean_{side}_tokens']:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        for side, (low, high) in known["lengths_tokens"].items()
    ]
    text = (
        f"From {known['source']} ({where}): {plural(known['n_llms'], 'LLM')} × "
        f"{plural(known['n_gpu_profiles'], 'GPU profile')}, {plural(known['n_points'], 'point')}; "
        f"requests of {sides[0]} input and {sides[1]} output tokens on average."
    )
    if (asked := answer.get("serving")) is not None:
        lengths = (f"{asked[f'{side}_tokens']:.0f} {side}" for side in ("input", "output"))
        words = [f"{' and '.join(lengths)} tokens"]
        if asked["prefix_hit_rate"]:
            words.append(f"{asked['prefix_hit_rate']:.0%} of the input cached")
        names = {"engine": "{}", "precision": "{} weights", "kv_precision": "{} KV cache"}
        words += [template.format(asked[name]) for name, template in names.items() if asked[name]]
        names = {"data_parallel": "copies of attention", "expert_parallel": "parts of the experts"}
        words += [f"{asked[name]} {what} a replica" for name, what in names.items() if asked[name]]
        if asked.get("speculative"):
            drafts = plural(asked["draft_tokens"], "draft token")
            words.append(f"speculation by {asked['speculative']} with {drafts}")
        text += f" Asked: {', '.join(words)}."
    if answer.get("execution") is not None:
        text += f" {answer['llm_id']} is taken to be executed as {answer['execution']}."
    data, priced = "; ".join(known["attributions"]), None
    if answer.get("prices"):
        priced = gpu.origin_line(gpu.PriceOrigin(**each) for each in answer["prices"])
        if answer.get("price_source") is not None:
            when = f", {answer['price_as_of']}" if answer["price_as_of"] else ""
            priced = f"Price of the answer: {answer['price_source']}{when}. {priced} {_PRICE_RULE}"
    parts = [text, known["note"], f"Data: {data}." if data else None, priced]
    return " ".join(filter(None, parts))


def price_words(about: Data) -> str:
    """Return what the deployment costs an hour, a month and per token."""
    month = f"{number(about['usd_per_month'])} USD a month (730 h)"
    words = f"{about['usd_per_hour']:,.2f} USD/h, {month}"
    if (per_token := about["usd_per_million_tokens"]) is None:
        return words
    at = per_second(about["requests_per_s"])
    return f"{words}, {number(per_token)} USD per million tokens, input or output, at {at}"


def limit_words(row: Data) -> str:
    """Return a latency at its load, its 90% interval in parentheses, and its limit."""
    ends = [row["lo_ms"], row["hi_ms"]]
    low, high = ("unknown" if end is None else number(end) for end in ends)
    between = "" if ends == [None, None] else f" ({low} to {high})"
    return (
        f"{METRICS[row['metric']]} {number(row['latency_ms'])} ms{between}, limit "
        f"{number(row['limit_ms'])} ms at p{row['percentile']}"
    )


def room_words(row: Data, slo: Data) -> str:
    """Return the room to a limit: in percent of it, and in load."""
    room, more = row["headroom"], row["load"] - _load(slo)
    state = f"{percent(room)} of room" if room >= 0 else f"{percent(-room)} above it"
    least = "at least " if row["is_most_tried"] else "up to "
    beyond = ""
    if row["is_most_tried"]:
        beyond = f", as no more than {plural(row['most_users_tried'], 'user')} a replica were tried"
    by = "as asked"
    if round(more, 9):
        by = f"{number(abs(float(more)))} {'more' if more > 0 else 'fewer'} than asked"
    return f"{state}; {least}{load_words(slo, row['load'])}{beyond} ({by})"


def loss_words(about: Data, slo: Data) -> str:
    """Return what happens when one replica is lost."""
    left = about["without_one"]
    if left is None:
        return "nothing serves: it is the only replica"
    rest, s = f"the {number(left['replicas'])} left", "s" * (left["replicas"] == 1)
    if "probability_met" in left:
        return f"{rest} keep{s} the SLO with probability {chance(left['probability_met'])}"
    rest, carried = f"{rest} {'carries' if s else 'carry'}", load_words(slo, left["load"])
    if left["is_kept"]:
        return f"the SLO is still kept: {rest} {carried}"
    share = percent(left["load"] / _load(slo))
    return f"the SLO is not kept: {rest} {carried} within the limits, {share} of the load"


def next_words(option: Data) -> str:
    """Return the next best option, and the price at which it would win."""
    name = f"{plural(option['replicas'], 'replica')} × {option['gpu_profile_id']}"
    if not option["extra_usd_per_hour"]:
        return f"{name} at the same price"
    now, below = option["usd_per_hour"] / option["replicas"], option["wins_below_usd_per_hour"]
    return (
        f"{name}, {number(option['extra_usd_per_hour'])} USD/h more; wins below {number(below)} "
        f"USD/h a replica (now {number(now)}, {percent(1 - below / now)} less)"
    )


def headroom_lines(about: Data, slo: Data) -> list[str]:
    """Return the price, the room to each limit, and the loss of a replica."""
    level = ""
    if about["level_users"] != about["users_per_replica"]:
        level = f" (judged at {number(about['level_users'])}, the next load tried)"
    if any(row["lo_ms"] is not None for row in about["limits"]):
        level += "; 90% intervals in parentheses"
    return [
        f"Costs {price_words(about)}.",
        f"A replica gets {plural(about['users_per_replica'], 'user')}{level}:",
        *(f"  {limit_words(row)}: {room_words(row, slo)}" for row in about["limits"]),
        f"If one replica is lost, {loss_words(about, slo)}.",
        *([f"The probability rests on {OPEN_WORDS}."] if about["is_open"] else []),
    ]


def _load(slo: Data) -> float:
    return float(slo["request_rate_rps"] if slo.get("users") is None else slo["users"])


def recommendation_document(answer: Answer, *, has_widget: bool = False) -> Document:
    """Return a recommendation for a person; with a widget its page answers again when changed."""
    data = answer.data
    top = [*caution(data), *data["warnings"]]
    far, limits = data.get("contradictions", ()), limits_of(data["slo"])
    for row in far[:_N_CONTRADICTIONS]:
        name, times = "TPOT" if "tpot" in limits and "itl" not in limits else "ITL", 1.0
        if row["latency"] == "nttft":
            name, times = "TTFT", data["serving"]["input_tokens"]
        ms = [times * row[f"{each}_ms"] for each in ("measured", "predicted", "low", "high")]
        top.append(
            f"Measured {name} of {ms[0]:.3g} ms on {row['gpu_profile_id']} with "
            f"{plural(row['users'], 'user')} is far from the law ({ms[1]:.3g} ms, 90% interval "
            f"{ms[2]:.3g} to {ms[3]:.3g}): it counts there and nearby, and the intervals are wider."
        )
    if (more := len(far) - _N_CONTRADICTIONS) > 0:
        top.append(f"{plural(more, 'more measurement')} like that.")
    blocks: list[Block] = [Headline(headline(data)), *(Note(line, "warning") for line in top)]
    if "options" in data:  # it is predicted
        lines, reasons = load_lines(data) if data["latency"] else [], _reasons(data)
    else:
        lines = headroom_lines(data["headroom"], data["slo"]) if data["headroom"] else []
        if data["next_best"]:
            lines.append(f"Next best: {next_words(data['next_best'])}.")
        reasons = [Section("GPU profiles", [_profile_table(data["alternatives"])])]
    widget = answer.widget() if has_widget else None
    blocks += [Facts(lines), *([widget] if widget else []), *api_section(data), *reasons]
    blocks.append(Note(source_line(data)))
    llm = data["llm"]
    bits = f", quantized to {llm['weight_bits']:.3g} bits" if llm["weight_bits"] else ""
    about = (
        f"{llm['llm_type']}, {llm['n_parameters'] / 1e9:.2f} billion parameters, "
        f"{llm['weights_gib']:.1f} GiB of weights ({llm['dtype']}{bits}), {llm['attention']}, "
        f"{llm['kv_kib_per_token']:.0f} KiB of KV cache per token ({llm['kv_dtype']})"
    )
    blocks.append(Section("The LLM", [Facts([about])], is_detail=True))
    return Document(f"{data['llm_id']}: recommendation", blocks, data, slo_line(data["slo"]))


def headline(answer: Data) -> str:
    """Return the recommendation in one line."""
    how = "measured" if answer["basis"] == MEASURED else f"predicted by {answer['basis']}"
    if answer["gpu_profile_id"] is None:
        none = f"no GPU profile meets {limits_words(answer)}"
        if answer.get("risk") is not None:
            none += f" with probability {1 - answer['risk']:.10g} or more"
        elif answer.get("nearest_miss") is not None:
            none = f"no option is likely to meet {limits_words(answer)}"
        return f"{answer['llm_id']}: {none} ({how})"
    text = f"{answer['llm_id']}: {chosen_words(answer)}"
    if (probability := answer["probability_met"]) is not None:
        text += f"; meets {limits_words(answer)} with probability {chance(probability)}"
    return f"{text} ({how})"


def caution(answer: Data) -> list[str]:
    """Return how likely an unlikely option is, and what a safe one costs; nothing of others. Where
    nothing is recommended: what comes nearest, which limit it breaks, and what would mend it."""
    if (miss := answer.get("nearest_miss")) is not None:
        name, users = miss["binding_limit"], ""
        if miss["users_per_replica"] is not None:
            users = f" with {plural(miss['users_per_replica'], 'user')} a replica"
        limit = limits_of(answer["slo"])[name]
        return [
            f"Nearest: {_chance_words(miss)}. "
            f"{METRICS[name]} breaks its limit: {number(miss[f'{name}_ms'])} ms{users}, "
            f"where {limit.limit_ms:g} ms at p{limit.percentile} is asked for.",
            f"With {limits_words(answer, 'a limit')} {miss['fair_factor']:.3g} times as high its "
            f"probability is {FAIR:g}, with {miss['safe_factor']:.3g} times {SAFE:g}. Raise the "
            "limit, try faster GPU profiles (--gpu-profiles), or quantize the LLM (--dtype).",
        ]
    probability = answer["probability_met"]
    if "options" not in answer or probability is None or probability >= SAFE:
        return []
    option = f"--risk {1 - SAFE:.1g}"
    if answer["decision"] != "utility":
        option = f"--decision utility {option}"
    safe = f"no option reaches {SAFE:g}: try other GPU profiles"
    if answer["safest"] is not None:
        safe = f"{SAFE:g} takes {deployment_words(answer['safest'])} ({option})"
    return [f"That is {odds(probability)}; {safe}"]


def load_lines(answer: Data) -> list[str]:
    """Return what is expected of a replica, and which limit binds."""
    latency, limits = answer["latency"], limits_of(answer["slo"])
    each = [
        f"{METRICS[key]} {number(latency[f'{key}_ms'])} ms (90% interval "
        f"{number(latency[f'{key}_lo_ms'])} to {number(latency[f'{key}_hi_ms'])}, limit "
        f"{limit.limit_ms:g})"
        for key, limit in limits.items()
    ]
    shown = plural(latency["users"], "user")
    if answer["slo"].get("users") is None:
        shown = f"{per_second(latency['load'])}, about {shown} at once"
    most = per_second(latency["load_median"])
    serves = f"meets {limits_words(answer)} up to {most} by the likeliest law"
    if "users_median" in latency:
        most = plural(latency["users_median"], "user")
        serves = f"meets {limits_words(answer)} with {most} (90% interval {_interval(latency)})"
    lines = [
        f"A replica gets {shown}: {'; '.join(each)}.",
        f"{METRICS[latency['binding_limit']]} binds. A replica {serves}.",
    ]
    if latency["checked_at_users"] not in (None, latency["users"]):
        lines.append(
            f"The probability is that of {latency['checked_at_users']} users, the next load tried."
        )
    cost, headroom = answer["cost"], answer["headroom"]
    use = "" if cost["utilisation"] is None else f" at {cost['utilisation']:.0%} utilisation"
    by = "the time of prefill and decode" if cost["split"] == "time" else "tokens"
    lines += [
        f"{cost['usd_per_million_input_tokens']:.3g} USD per million input tokens, "
        f"{cost['usd_per_million_output_tokens']:.3g} per million output tokens (split by {by}), "
        f"at {per_second(cost['requests_per_s'])}{use}.",
        f"A month (730 h) costs {number(headroom['usd_per_month'])} USD. If one replica is lost, "
        f"{loss_words(headroom, answer['slo'])}.",
    ]
    return lines + ([energy_line(answer["energy"])] if answer["energy"] else [])


def _interval(row: Data) -> str:
    end = ", the most that was tried" if row["users_hi"] == row["most_users_tried"] else ""
    return f"{row['users_lo']} to {row['users_hi']}{end}"


def _evidence_lines(answer: Data) -> list[str]:
    lines = []
    for row in answer["evidence"]:
        alike = "" if row["is_executed_alike"] else f", executed otherwise ({row['execution']})"
        most = plural(row["users_per_replica"], "user") if row["users_per_replica"] else "no user"
        if row["users_per_replica"] == row["most_users_tried"]:
            most += " (no more were tried)"
        engine = " ".join(row[name] for name in ("engine", "engine_version") if row[name])
        place = f"{row['gpu_profile_id']}{f', {engine}' if engine else ''}"
        lines.append(
            f"{row['llm_id']} in {row['precision']} ({row['weights_gib']:.1f} GiB of weights"
            f"{alike}) on {place}: {most} within these limits, with {row['input_tokens']:.0f} "
            f"input and {row['output_tokens']:.0f} output tokens"
        )
    if answer["gpu_profile_id"] is not None and not lines:
        lines.append(f"nothing was measured on {answer['gpu_profile_id']}")
    return lines


def _reasons(answer: Data) -> list[Block]:
    """Return the options by price, the GPU profiles, what the answer rests on, what changes it."""
    rows, unmeasured = answer["alternatives"], answer["unmeasured"]
    profiles, beaten = split_beaten(rows)
    others = [row for row in split_beaten([*rows, *unmeasured])[0] if row in unmeasured]
    changes = [
        f"{row['change']}: {_chance_words(row) if row['gpu_profile_id'] else 'no option'}"
        for row in answer["sensitivity"]
    ]
    again = "another" if answer["has_probe"] else "a"
    changes.append(f"{again} measurement on {answer['best_probe']} would tell most (--probe)")
    # The cheapest, or those up to the one beyond the answer.
    chosen = answer["gpu_profile_id"], answer["replicas"]
    names = [(row["gpu_profile_id"], row["replicas"]) for row in answer["options"]]
    first = max(names.index(chosen) + 2 - _N_OPTIONS, 0) if chosen in names else 0
    header, rows = ["Price", "Probability", "Option"], [*map(_option, answer["options"][first:])]
    price = Table(header, rows, {0, 1, 2}, has_header_in_text=False, n_rows_in_text=_N_OPTIONS)
    unknown = replace(price, rows=[*map(_option, others)])
    how = [[*_option(row), row["way"], row["risk"]] for row in answer["ways"]]
    ways = Table([*header, "How", "Risk"], how, {0, 1, 2, 3, 4}, has_header_in_text=False)
    sections = [
        Section("Price against probability", [price]),
        Section("GPU profiles", [_profile_table(profiles), *beaten_notes(beaten, answer["risk"])]),
        Section("On GPUs that nobody measured", [unknown]),
        Section("Other ways to serve it", [ways]),
        Section("Speculative decoding", [_drafting_table(answer)]),
        Section("GPU profiles that others beat", [_profile_table(beaten)], is_detail=True),
        Section("Nearest measurements", [Facts(_evidence_lines(answer))]),
        Section("What would change the answer", [Facts(changes)]),
    ]
    return [
        each for each in sections if any(not isinstance(b, Table) or b.rows for b in each.blocks)
    ]


def _drafting_table(answer: Data) -> Table:
    header = ["Draft tokens", "Tokens a step", "Gain in requests/s", "Probability of a gain"]
    rows = [
        [
            row["draft_tokens"],
            f"{row['accepted_length']:.2f}",
            f"{percent(row['gain'])} ({percent(row['gain_lo'])} to {percent(row['gain_hi'])})",
            chance(row["probability_gain"]),
        ]
        for row in answer["drafting"]
    ]
    method, place = (answer["drafting"][0][n] if rows else "" for n in ("method", "gpu_profile_id"))
    where = f"{method} on {place}, at the load of a replica; 90% interval"
    return Table(header, rows, {0, 1, 2, 3}, note=where if rows else "")


def _profile_table(rows: Sequence[Data]) -> Table:
    header = ["GPU profile", "Price", "Probability", "Deployment, or why not"]
    return Table(header, [*map(profile_cells, rows)], {0, 1, 2, 3}, has_header_in_text=False)


def split_beaten(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the options that somebody may rent, and those that another one beats, in their order.
    An option is beaten by one that is no dearer and no less likely, as the probability is shown,
    and better in one of the two; so is one of probability `FAIR` or less at `_FAR_DEARER` times the
    lowest price. Rows without a price or a probability beat nothing and are not beaten."""
    known = [
        (row["usd_per_hour"], shown_chance(row["probability_met"]))
        for row in rows
        if None not in (row["usd_per_hour"], row["probability_met"])
    ]
    lowest = min((usd for usd, _ in known), default=0.0)

    def is_beaten(row: Row) -> bool:
        usd, probability = row["usd_per_hour"], row["probability_met"]
        if usd is None or probability is None:
            return False
        own = usd, shown_chance(probability)
        is_far = probability <= FAIR and usd >= _FAR_DEARER * lowest > 0
        others = (each for each in known if each != own)
        return is_far or any(each[0] <= own[0] and each[1] >= own[1] for each in others)

    kept: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        kept[is_beaten(row)].append(row)
    return kept


def beaten_notes(rows: Sequence[Data], risk: float | None) -> list[Note]:
    """Return the options that are left out because others beat them (`split_beaten`)."""
    names = ", ".join(f"{row['gpu_profile_id']} ({row['usd_per_hour']:.2f} USD/h)" for row in rows)
    wanted = SAFE if risk is None else 1 - risk
    text = (
        "Left out, because an option above costs no more and is at least as likely (each priced "
        f"for probability {wanted:.10g}, or for the highest that it reaches): {names}."
    )
    return [Note(text, "soft")] if names else []


def _option(row: Data) -> list[str]:
    plan = f"{row['replicas']} × {row['gpu_profile_id']}"
    if row["users_per_replica"] is not None:
        plan += f", {plural(row['users_per_replica'], 'user')} each"
    return [f"{row['usd_per_hour']:.2f} USD/h", chance(row["probability_met"]), plan]


def profile_cells(row: Data) -> list[str]:
    """Return the cells of a GPU profile: its name, its price and probability, or the reason. A
    predicted one has a replica's users with their interval, a measured one those of eq. 1-3."""
    is_known = row.get("is_gpu_measured", True)
    name = row["gpu_profile_id"] + ("" if is_known else " (GPU never measured)")
    probability = "" if row.get("probability_met") is None else chance(row["probability_met"])
    if row["status"] == "too_slow" and row["limit_ratio"] is not None:
        limit, fewest = METRICS[worst_limit(row)], row.get("fewest_users")
        users = f" with {plural(fewest, 'user')}" if fewest else ""
        miss = f"{limit} is {row['limit_ratio']:.3g} times its limit{users}"
        if fewest and row["limit_ratio"] <= 1:
            miss = f"unlikely to meet {limit} and the other limits at once, even{users}"
        return [name, "too slow", probability, miss]
    if row["status"] not in ("meets", "unsure"):
        return [name, row["status"].replace("does_not_fit", "ruled out"), "", row["reason"] or ""]
    state = "" if row["status"] == "meets" else "unsure: "
    plan = f"{state}{plural(row['replicas'], 'replica')}"
    if "replicas_lo" in row:
        ends = [row[name] and int(row[name]) for name in ("replicas_lo", "replicas_hi")]
        ends = [each or "more than are tried" for each in ends]
        plan += f" (90% interval {ends[0]} to {ends[1]})" if ends[0] != ends[1] else ""
    elif "users_median" in row:
        plan += f", serves {plural(row['users_median'], 'user')} ({_interval(row)})"
    else:
        most = row["replicas"] > 1 and row["users_per_replica"] == row["most_users_tried"]
        plan += f" of up to {plural(row['users_per_replica'], 'user')}"
        plan += " (no more were tried)" * most
    if row.get("energy_j_per_token") is not None:
        plan += f", {number(row['energy_j_per_token'])} J per output token"
    return [name, f"{row['usd_per_hour']:.2f} USD/h", probability, plan]


def energy_line(found: Data) -> str:
    """Return the energy of a token in one line."""
    low, high = (number(found[f"energy_{end}_j_per_token"]) for end in ("lo", "hi"))
    return (
        f"{number(found['energy_j_per_token'])} J per output token (90% interval {low} to {high}), "
        f"{number(found['wh_per_million_output_tokens'])} Wh per million, of the devices alone "
        f"under this load; from {plural(found['n_llms'], 'LLM')} of "
        f"{' + '.join(found['sources'])}."
    )
