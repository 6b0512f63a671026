"""The page of the server in a real Chromium: a stranger's path from an empty page to a manifest."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from chromium import Tab, browser, needs_chromium
from served import LLM, Served
from support import ROOT, wait_for

pytestmark = needs_chromium

LOG = ROOT / "resources" / "traces" / "gateway-sample.jsonl"
CONFIG = ROOT / "resources" / "llms" / f"{LLM}.json"
DROP = """
(async () => {
  const files = new DataTransfer();
  files.items.add(new File([%s], %s));
  const drop = new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true });
  document.querySelector("h1").dispatchEvent(drop);
  await new Promise((done) => setTimeout(done, 200));
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def page(tab: Tab, served: Served) -> Tab:
    """The page as it opens, with one candidate, so that answers come soon."""
    tab.events.clear()
    tab.open(served.url)
    fill(tab, "gpu_profiles", "1xH100-80GB")
    return tab


def fill(tab: Tab, name: str, value: str) -> None:
    tab.run(f"document.getElementById({json.dumps(name)}).value = {json.dumps(value)}")


def choose(tab: Tab, group: str, value: str) -> None:
    tab.run(f"document.querySelector('input[name={group}][value={value}]').click()")


def drop(tab: Tab, path: Path, text: str | None = None) -> None:
    """Drop a file onto the page, outside of every field."""
    content = path.read_text() if text is None else text
    tab.run(DROP % (json.dumps(content), json.dumps(path.name)))


def text_of(tab: Tab, name: str) -> str:
    return tab.run(f"document.getElementById('{name}').textContent")


def is_shown(tab: Tab, name: str) -> bool:
    return tab.run(f"document.getElementById('{name}').checkVisibility()")


def answered(tab: Tab) -> str:
    """Return the words of the answer's page, once it is there."""
    wait_for(lambda: is_shown(tab, "result") or is_shown(tab, "error"), "an answer", period_s=0.2)
    assert is_shown(tab, "result"), text_of(tab, "error")
    words = "document.getElementById('frame').contentDocument?.querySelector('h1')?.textContent"
    return wait_for(lambda: tab.run(words), "the page of the answer", period_s=0.2)


def test_a_stranger_comes_from_an_empty_page_to_a_manifest(
    page: Tab, served: Served, tmp_path: Path
) -> None:
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.run("document.getElementById('request_rate').focus()")
    page.press("Enter")
    assert LLM in answered(page)
    assert page.run("document.activeElement.id") == "result"

    links = page.run("[...document.querySelectorAll('#links a')].map(it => it.textContent)")
    assert {"JSON", "The question", "vllm", "kubernetes", "compose"} <= {*links}
    page.run(
        "[...document.querySelectorAll('#links a')].find(it => it.textContent == 'kubernetes')"
        ".click()"
    )
    archive = tmp_path / "kubernetes.zip"
    wait_for(archive.exists, "the download")
    manifest = zipfile.ZipFile(archive).read("kubernetes.yaml").decode()
    kinds = {part["kind"]: part for part in yaml.safe_load_all(manifest) if part}
    container = kinds["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] in (1, "1")
    assert "sextant recommend --hf-config" in text_of(page, "script")

    urls = {it["request"]["url"] for it in page.of_kind("Network.requestWillBeSent")}
    assert all(url.startswith((served.url, "data:")) for url in urls)
    assert not page.of_kind("Log.entryAdded", "Runtime.exceptionThrown")


def test_the_answer_can_be_changed_and_is_as_high_as_its_page(page: Tab) -> None:
    page.run("document.querySelector('#ask [type=submit]').click()")
    answered(page)
    inner = "document.getElementById('frame').contentDocument"
    price = f"{inner}.querySelector('input[name^=price]')"
    wait_for(lambda: page.run(f"Boolean({price})"), "the what-if", period_s=0.2)
    before = page.run(f"{inner}.querySelector('[data-part=answer]').textContent")
    page.run(f"{price}.value = 1; {price}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    assert page.run(f"{inner}.querySelector('[data-part=answer]').textContent") != before
    higher = f"document.getElementById('frame').offsetHeight - {inner}.body.offsetHeight"
    wait_for(lambda: 0 <= page.run(higher) < 10, "the height of its page", period_s=0.2)


@pytest.mark.parametrize("way", ["config", "sizes"])
def test_an_llm_is_said_by_its_config_or_its_sizes(page: Tab, way: str) -> None:
    if way == "config":
        drop(page, Path("my-llm.json"), CONFIG.read_text())
        wait_for(
            lambda: page.run("document.getElementById('config').value"), "the file", period_s=0.2
        )
    else:
        choose(page, "llm", "sizes")
        fill(page, "parameters", "8e9")
        fill(page, "layers", "32")
        fill(page, "kv_bytes_per_token", "131072")
    page.run("document.querySelector('#ask [type=submit]').click()")
    assert {"config": "my-llm", "sizes": "given-sizes"}[way] in answered(page)


def test_a_log_that_is_dropped_is_the_load(page: Tab) -> None:
    drop(page, LOG, "\n".join(LOG.read_text().splitlines()[:200]))
    assert page.run("document.querySelector('input[name=load]:checked').value") == "trace"
    assert not is_shown(page, "input_tokens")
    page.run("document.querySelector('#ask [type=submit]').click()")
    wait_for(lambda: is_shown(page, "error"), "an error", period_s=0.2)
    assert "neither format nor columns" in text_of(page, "error")

    fill(page, "trace-format", "litellm")
    page.run("document.querySelector('#ask [type=submit]').click()")
    assert "1xH100-80GB" in answered(page)
    first, second = text_of(page, "script").splitlines()
    assert first == "sextant ingest gateway-sample.jsonl --out trace.parquet --format litellm"
    assert "--trace trace.parquet" in second and "--input-tokens" not in second


def test_what_is_wrong_is_said_at_its_field(page: Tab) -> None:
    wrong = {
        "request_rate": ("eight", "eight is no number."),
        "tpot_ms": ("soon", "'soon' is not a limit"),
        "e2e_ms": ("-1", "'p95:-1' is not a limit"),
        "engine": ("vlm", "unknown engine 'vlm'"),
    }
    for name, (value, message) in wrong.items():
        before = page.run(f"document.getElementById('{name}').value")
        fill(page, name, value)
        page.run("document.querySelector('#ask [type=submit]').click()")
        wait_for(
            lambda message=message: message in text_of(page, "error"), "an error", period_s=0.2
        )
        focused = page.run("document.activeElement.id")
        assert focused == name and is_shown(page, name)
        assert page.run(f"document.getElementById('{name}').ariaInvalid") == "true"
        fill(page, name, before)
    assert not is_shown(page, "result")


def test_a_question_can_be_given_up(page: Tab) -> None:
    fill(page, "request_rate", "7.25")
    page.run("document.querySelector('#ask [type=submit]').click()")
    wait_for(lambda: is_shown(page, "cancel"), "the button", period_s=0.05)
    page.run("document.getElementById('cancel').click()")
    wait_for(lambda: not is_shown(page, "cancel"), "the end", period_s=0.05)
    assert not is_shown(page, "error")
    assert page.run("document.querySelector('#ask [type=submit]').disabled") is False


def test_keys_and_screen_readers_reach_every_field(page: Tab) -> None:
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("textbox", "radio", "checkbox", "combobox", "button", "DisclosureTriangle")
    names = [
        node["name"]["value"].strip()
        for node in nodes
        if node.get("role", {}).get("value") in roles
    ]
    assert len(names) >= 20 and all(names)
    assert {"Requests a second", "Percentile of Time to first token (TTFT)", "Ask"} <= {*names}
    page.run("document.querySelector('input[name=llm]:checked').focus()")
    page.press("ArrowRight")
    assert page.run("document.querySelector('input[name=llm]:checked').value") == "config"
    reached = set()
    for _ in range(40):
        page.press("Tab")
        reached.add(page.run("document.activeElement.id || document.activeElement.textContent"))
    assert {"config", "request_rate", "ttft_ms", "gpu_profiles", "risk", "Ask"} <= reached


@pytest.mark.parametrize("width", [390, 800, 1440])
@pytest.mark.parametrize("way", ["llm=config", "llm=sizes", "load=trace", "load=metrics"])
def test_nothing_is_cut_off(page: Tab, width: int, way: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    choose(page, *way.split("="))
    page.run("document.querySelectorAll('details').forEach(it => it.open = true)")
    assert page.run("document.documentElement.scrollWidth") <= width
    blocks = "[...document.querySelectorAll('#ask *:not(select, input, textarea)')]"
    wider = f"{blocks}.filter(it => it.clientWidth && it.scrollWidth > it.clientWidth + 1).length"
    assert page.run(wider) == 0
    page.call("Emulation.clearDeviceMetricsOverride")


def test_its_policy_lets_nothing_else_run_or_load(page: Tab) -> None:
    page.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'x = 1'}))"
    )
    assert page.run("typeof x") == "undefined"
    tried = "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)"
    assert page.run(tried) == "TypeError"
