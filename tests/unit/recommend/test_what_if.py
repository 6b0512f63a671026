"""The page answers again for another question, as the command line does, in a real Chromium."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from chromium import Tab, browser, needs_chromium
from sextant.cli.app import app
from sextant.recommend.what_if import as_script_data
from support import ROOT, wait_for

CHOSEN = ["gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour", "probability_met"]
STATED = ["gpu_profile_id", "status", "replicas", "usd_per_hour", "probability_met"]


class Asked(NamedTuple):
    """What is asked of both: the load, limits in ms, prices of some profiles, the risk."""

    load: float
    limits: dict[str, float]
    risk: float | None = None
    prices: dict[str, float] = {}  # noqa: RUF012 - never changed
    without: tuple[str, ...] = ()


class Start(NamedTuple):
    """A question as it is asked first."""

    words: list[str]
    load: str
    asked: Asked
    profiles: list[str]
    percentiles: dict[str, str] = {}  # noqa: RUF012 - never changed


USERS = Start(
    ["--hf-config", str(ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json")],
    "users",
    Asked(200, {"nttft": 100, "itl": 50}),
    ["1xA10-24GB", "1xA100-40GB", "2xA100-40GB", "1xH100-80GB"],
)
RATE = Start(
    [
        *("--hf-config", str(ROOT / "resources/llms/meta-llama__Llama-3.1-8B-Instruct.json")),
        *("--input-tokens", "1500", "--output-tokens", "250"),
    ],
    "request-rate",
    Asked(40, {"ttft": 1000, "tpot": 40, "e2e": 12000}),
    ["1xH100-80GB", "1xH200-141GB", "1xB200-180GB", "2xB300-288GB"],
    {"ttft": "p95:"},
)
GAPS = RATE._replace(
    asked=Asked(4, {"ttft": 1000, "itl": 80}),
    profiles=["1xH100-80GB", "1xB200-180GB"],
    percentiles={"itl": "p99:"},
)
MEASURED = USERS._replace(words=["--llm", "llama-7b"])
MEASURED_RATE = MEASURED._replace(
    load="request-rate", asked=Asked(40, {"nttft": 100, "itl": 50, "e2e": 1500})
)
PROBE = "gpu_profile_id,users,nttft_ms,itl_ms\n1xA100-40GB,64,6,50.5\n1xA100-40GB,96,9,45\n"
SETTINGS = {
    "users": [
        USERS.asked,
        Asked(65, {"nttft": 100, "itl": 50}, 0.1),
        Asked(3971, {"nttft": 25, "itl": 38}),
        Asked(200, {"nttft": 100, "itl": 33}, 0.05, {"1xH100-80GB": 3.07}),
        Asked(500, {"nttft": 400, "itl": 75}, None, {"1xA10-24GB": 0.4}, ("1xA100-40GB",)),
        Asked(200, {"nttft": 100, "itl": 13}, 0.001),
    ],
    "rate": [
        RATE.asked,
        Asked(8.8, RATE.asked.limits),
        Asked(11.3, RATE.asked.limits, 0.05),
        Asked(3.7, RATE.asked.limits, 0.3, {"1xB200-180GB": 1.1}),
        Asked(640, RATE.asked.limits, 0.02, {"1xH200-141GB": 1.2}),
        Asked(97.25, {"ttft": 350, "tpot": 17, "e2e": 12000}),
        Asked(40, {"ttft": 2000, "tpot": 80, "e2e": 4200}, 0.1, {}, ("1xH100-80GB",)),
    ],
    # The slowest gaps between tokens are simulated, at the asked rate alone.
    "gaps": [
        GAPS.asked,
        Asked(4, GAPS.asked.limits, None, {"1xB200-180GB": 1.1}, ("1xH100-80GB",)),
    ],
    # 64 users were measured to break it: no load from there on is met, though 96 were too.
    "probe": [Asked(190, {"nttft": 100, "itl": 50}, 0.1)],
    "measured": [
        MEASURED.asked,
        Asked(333, {"nttft": 30, "itl": 37}, None, {"1xH100-80GB": 2.2}),
        Asked(1, {"nttft": 100, "itl": 13}),
    ],
    "measured rate": [
        MEASURED_RATE.asked,
        Asked(7.7, {"nttft": 100, "itl": 33, "e2e": 670}, None, {}, ("1xA100-40GB",)),
    ],
}
STARTS = dict(zip(SETTINGS, (USERS, RATE, GAPS, USERS, MEASURED, MEASURED_RATE), strict=True))


def command(start: Start, asked: Asked, folder: Path) -> list[str]:
    """Return the words of `sextant recommend` that ask it."""
    on_offer = [name for name in start.profiles if name not in asked.without]
    words = [*start.words, f"--{start.load}", str(asked.load)]
    words += ["--gpu-profiles", ",".join(on_offer)]
    for name, limit in asked.limits.items():
        words += [f"--{name}-ms", f"{start.percentiles.get(name, '')}{limit}"]
    if asked.risk is not None:
        words += ["--risk", str(asked.risk)]
    if asked.prices:
        prices = folder / "prices.csv"
        rows = [f"{name},{usd}\n" for name, usd in asked.prices.items()]
        prices.write_text("gpu_profile_id,usd_per_hour\n" + "".join(rows))
        words += ["--prices", str(prices)]
    return ["recommend", *words]


def said(words: list[str]) -> dict[str, Any]:
    """Return what the command line answers."""
    done = CliRunner().invoke(app, [*words, "--format", "json"])
    assert done.exit_code in (0, 3), done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tab(tmp_path_factory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "probe.csv").write_text(PROBE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def page(folder) -> Callable[[str], Path]:
    """Return a page of `sextant recommend`, as it writes it, by the kind of question."""

    @cache
    def page(name: str) -> Path:
        words = command(STARTS[name], STARTS[name].asked, folder)
        words += ["--probe", "probe.csv"] if name == "probe" else []
        out = folder / f"{name}.html"
        done = CliRunner().invoke(app, [*words, "--format", "html", "--out", str(out)])
        assert done.exit_code == 0
        return out

    return page


def open_page(tab: Tab, page: Path) -> None:
    tab.events.clear()
    tab.open(page)
    shown = "!document.getElementById('what-if').hidden"
    wait_for(lambda: tab.run(shown), "the page decides")


def entered(tab: Tab, asked: Asked) -> dict[str, Any]:
    """Enter a question as a person would, from the one first asked; return the page's answer."""
    tab.run("document.querySelector('#what-if form').reset()")
    tab.run("new Promise((done) => setTimeout(done, 20))")
    values = {"load": asked.load} | ({} if asked.risk is None else {"risk": asked.risk})
    values |= {f"price {name}": usd for name, usd in asked.prices.items()}
    tab.run(
        """(({values, limits, without}) => {
          const data = JSON.parse(document.querySelector("#what-if script").textContent);
          const input = (name) => document.querySelector("#what-if form").elements[name];
          const tell = (element) => element.dispatchEvent(new Event("input", { bubbles: true }));
          const enter = (name, value) => { input(name).value = value; tell(input(name)); };
          Object.entries(values).forEach(([name, value]) => enter(name, value));
          for (const limit of data.limits) {
            const place = limit.offered.indexOf(limits[limit.key]);
            if (place < 0) throw new Error(`${limits[limit.key]} is not offered`);
            enter(limit.key, place);
          }
          for (const name of without) input(`on ${name}`).click();
        })"""
        + f"({json.dumps({'values': values, 'limits': asked.limits, 'without': asked.without})})"
    )
    words = tab.run("document.querySelector('[data-part=answer]').textContent")
    return json.loads(tab.run("document.getElementById('what-if').dataset.answer")) | {
        "words": words
    }


@needs_chromium
@pytest.mark.parametrize("kind", SETTINGS)
def test_the_page_answers_as_the_command_line(tab, page, folder, kind) -> None:
    open_page(tab, page(kind))
    answers, is_measured = [], kind.startswith("measured")
    for asked in SETTINGS[kind]:
        words = command(STARTS[kind], asked, folder)
        words += ["--probe", "probe.csv"] if kind == "probe" else []
        expected, found = said(words), entered(tab, asked)
        assert (
            expected["text"].splitlines()[0].startswith(f"{expected['llm_id']}: {found['words']}")
        )
        keys = CHOSEN[:-1] if is_measured else CHOSEN
        if expected["gpu_profile_id"] is None:
            assert found["chosen"] is None
        else:
            assert [found["chosen"][key] for key in keys] == [expected[key] for key in keys]
        if not is_measured:
            of = [{key: row[key] for key in CHOSEN} for row in found["options"]]
            assert of == expected["options"]
        by_name = {row["gpu_profile_id"]: row for row in expected["alternatives"]}
        for row in found["profiles"]:
            alike = by_name.pop(row["gpu_profile_id"])
            is_known = not is_measured or row["status"] == "meets"
            keys = STATED[: 4 if is_measured else 5] if is_known else STATED[:2]
            assert [row[key] for key in keys] == [alike[key] for key in keys]
        assert {row["status"] for row in by_name.values()} <= {"does_not_fit", "not_measured"}
        answers.append(found["words"])
    assert len(set(answers)) > len(answers) / 2, "the settings ask for different answers"


@needs_chromium
def test_it_needs_neither_network_nor_eval_and_breaks_no_policy(tab, page) -> None:
    open_page(tab, page("users"))
    urls = [each["request"]["url"] for each in tab.of_kind("Network.requestWillBeSent")]
    assert urls == [page("users").as_uri()]
    assert not tab.of_kind("Log.entryAdded", "Runtime.exceptionThrown")
    refused = "(() => { try { return eval('1') } catch (error) { return error.name } })()"
    assert tab.run(refused) == "EvalError"
    tab.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'x = 1'}))"
    )
    assert tab.run("typeof x") == "undefined"
    tried = "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)"
    assert tab.run(tried) == "TypeError"
    assert any("Content Security Policy" in str(each) for each in tab.of_kind("Log.entryAdded"))


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(tab, page, width) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    tab.call("Emulation.setDeviceMetricsOverride", **size)
    for kind in ("users", "rate", "measured"):
        open_page(tab, page(kind))
        assert tab.run("document.documentElement.scrollWidth") <= width
        wider = "[...document.querySelectorAll('#what-if *, .scroll')].filter((each) =>"
        wider += " each.scrollWidth > each.clientWidth + 1 && each.clientWidth).length"
        assert tab.run(wider) == 0
    tab.call("Emulation.clearDeviceMetricsOverride")


@needs_chromium
def test_keys_and_screen_readers_reach_all(tab, page) -> None:
    open_page(tab, page("users"))
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    controls = [
        node["name"]["value"].strip()
        for node in nodes
        if node.get("role", {}).get("value") in ("slider", "spinbutton", "checkbox", "button")
    ]
    labels = "[...document.querySelectorAll('table.sorts button')]"
    n_sorted = tab.run(f"{labels}.filter((each) => each.checkVisibility()).length")
    # Load twice, two limits, risk, a price and a box per profile, a button; labels that sort.
    assert len(controls) == 14 + n_sorted and all(controls)
    assert {"ITL at p50, at most", "USD per hour of one 1xA10-24GB"} <= {*controls}
    live = tab.run("document.querySelector('[data-part=answer]').getAttribute('aria-live')")
    assert live == "polite"

    tab.run("document.querySelector('#what-if-itl').focus()")
    texts = []
    for _ in range(12):
        texts.append(tab.run("document.querySelector('[data-part=answer]').textContent"))
        tab.press("ArrowLeft")
    focused = "document.activeElement"
    assert tab.run(f"{focused}.getAttribute('aria-valuetext')") == "38 ms"
    prices = [float(text.split(" = ")[1].split()[0]) for text in texts]
    assert prices == sorted(prices) and prices[0] < prices[-1]
    tab.press("Tab")
    assert tab.run(f"{focused}.name") == "risk"


@needs_chromium
def test_what_cannot_be_changed_is_text_with_how_to_ask_again(tab, page) -> None:
    open_page(tab, page("gaps"))
    sliders = "document.querySelectorAll('#what-if input[type=range]').length"
    assert tab.run(sliders) == 0, "rate and limits were simulated as asked, so nothing can move"
    words = tab.run("document.querySelector('#what-if .dials').innerText")
    assert "Requests per second: 4" in words and "for another one ask sextant recommend" in words
    for limit in GAPS.asked.limits:
        assert f"ask sextant recommend again with --{limit}-ms" in words


@needs_chromium
def test_the_chart_covers_the_probabilities_of_its_marks_and_names_them(tab, page) -> None:
    open_page(tab, page("users"))
    texts = tab.run("[...document.querySelectorAll('#what-if svg text')].map(it => it.textContent)")
    assert {"Price (USD/h)", "Probability to meet the SLO"} <= {*texts}
    assert any(" × 1x" in text for text in texts)
    dots = "[...document.querySelectorAll('#what-if svg circle.best')]"
    heights = tab.run(f"{dots}.map(it => Number(it.getAttribute('cy')))")
    assert max(heights) - min(heights) > 60, "the marks use the height of the chart"


@needs_chromium
def test_a_rate_that_the_page_does_not_know_is_said(tab, page) -> None:
    open_page(tab, page("rate"))
    found = entered(tab, RATE.asked._replace(load=801))
    assert found["words"] == ("This page knows 2 to 800 requests/s. For 801 ask sextant recommend.")
    open_page(tab, page("gaps"))
    found = entered(tab, GAPS.asked._replace(load=5))
    assert found["words"] == "This page knows 4 requests/s alone. For 5 ask sextant recommend."


def test_a_page_stays_small(page) -> None:
    assert page("rate").stat().st_size < 1e6


@needs_chromium
def test_a_value_that_cannot_be_is_said_and_the_answer_marked_stale(tab, page) -> None:
    open_page(tab, page("users"))
    found = entered(tab, USERS.asked._replace(load=2.5))
    assert found["words"] == "Give users, a whole number from 1."
    assert tab.run("document.getElementById('what-if').className") == "what-if stale"
    found = entered(tab, USERS.asked._replace(without=tuple(USERS.profiles)))
    assert found["words"] == "Choose one GPU profile or more."
    found = entered(tab, USERS.asked)
    assert "replicas" in found["words"]
    assert tab.run("document.getElementById('what-if').className") == "what-if"


def test_without_a_script_the_page_stands_as_before(page) -> None:
    text = page("users").read_text()
    start = text.index('<section class="what-if" id="what-if" hidden>')
    rest = text[:start] + text[text.index("</section>") :]
    assert "Price against probability" in rest and "replicas × " in rest
    assert "default-src 'none'" in text and "unsafe-eval" not in text
    script_policy = text.split("script-src ")[1].split('"')[0]
    assert script_policy.startswith("'sha256-") and "unsafe" not in script_policy


def test_data_cannot_end_their_script() -> None:
    data = {"</script><script>alert(1)": "<!--"}
    assert "<" not in as_script_data(data) and json.loads(as_script_data(data)) == data
