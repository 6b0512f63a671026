"""A server that runs already, measured through the whole DAG, beside servers that are started."""

import json
from collections.abc import Iterator

import pytest

from project import Project
from stub_server import StubServer, answer_endpoint

# At full size what tests/unit/bench/test_endpoint.py shows.
pytestmark = pytest.mark.slow
KEY = "sk-0123456789abcdefghij"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two LLMs on a GPU that this machine does not have, and one of them on a core as well."""
    project = Project(tmp_path_factory.mktemp("endpoint"))
    settings = {"predictors": ["static_policy"], "sheets__endpoints": "config/endpoints.tsv"}
    project.measure_little("opt-6m", "llama-16m", **settings)
    project.fit_one_workload()
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour"
    gpu, core = ("1xA10-24GB", "A10-24GB", 1, 1.01), ("1xcpu-core", "cpu-core", 1, 0.04)
    project.write_sheet("gpu_profiles", header, gpu, core)
    header = "llm_ids gpu_profile_ids workload_id scenario_id"
    rows = [
        (llm, profile, "conversation", "users-1-8")
        for llm, profile in (("*", "1xA10-24GB"), ("llm-llama-16m", "1xcpu-core"))
    ]
    project.write_sheet("benchmarks", header, *rows)
    with (
        StubServer(answer_endpoint("chat", key=KEY)) as one,
        StubServer(answer_endpoint("chat")) as other,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("CHAT_KEY", KEY)
        project.write_sheet(
            "endpoints",
            "llm_id gpu_profile_id base_urls served_model_name api_key_env",
            ("llm-opt-6m", "1xA10-24GB", one.url, "chat", "CHAT_KEY"),
            ("llm-llama-16m", "1xA10-24GB", other.url, "chat", ""),
        )
        done = project.snakemake("--cores", "2")
        assert done.returncode == 0, done.stderr
        yield project


def test_its_cells_are_in_the_store_beside_those_of_started_servers(measured: Project) -> None:
    sql = """SELECT llm_id, gpu_profile_id, users, n_ok > 0, n_failed, median_itl_ms > 0,
        batch_weight_tokens IS NULL, energy_j IS NULL FROM point ORDER BY ALL"""
    rows = [
        (llm, profile, users, True, 0, True, is_endpoint, True)
        for llm, profile, is_endpoint in (
            ("llm-llama-16m", "1xA10-24GB", True),
            ("llm-llama-16m", "1xcpu-core", False),
            ("llm-opt-6m", "1xA10-24GB", True),
        )
        for users in (1, 2)
    ]
    assert measured.query(sql) == rows
    sql = "SELECT n_server_starts, kv_gib FROM feasibility WHERE gpu_profile_id = '1xA10-24GB'"
    assert measured.query(f"{sql} AND is_feasible") == [(0, None), (0, None)]


def test_it_is_recommended_and_reported(measured: Project) -> None:
    page = (measured.folder / "results/report/index.html").read_text()
    assert "it ran already: memory and batch weight are not known" in page
    answer = json.loads((measured.folder / "results/report/recommendations.json").read_text())
    found = {
        row["gpu_profile_id"]
        for row in answer["recommendations"]
        if row["llm_id"] == "llm-opt-6m" and row["predictor"] == "measured"
    }
    assert "1xA10-24GB" in found and found <= {"1xA10-24GB", None}


def test_its_key_is_in_no_file(measured: Project) -> None:
    files = [path for path in measured.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_another_address_measures_it_again_and_nothing_else(measured: Project) -> None:
    sheet = measured.sheet("endpoints")
    text = sheet.read_text()
    assert measured.planned() == {}
    sheet.write_text(text.replace("CHAT_KEY", "OTHER_KEY"))
    assert "benchmark_cell" not in measured.planned()
    sheet.write_text(text.replace("http://127.0.0.1:", "http://localhost:", 1))
    assert measured.planned()["benchmark_cell"] == 1
    sheet.write_text(text)
