"""A request's body: which options it may have, and how paths are attached."""

import inspect
import shlex
from pathlib import Path

import pytest

import sextant
from sextant.api.groups import options_of
from sextant.base.errors import InputError
from sextant.serve.attachments import REFUSED, WAYS
from sextant.serve.questions import (
    COMMANDS,
    Ask,
    body_schema,
    keywords_of,
    options_by_keyword,
    script_of,
)

READ_AS_TEXT = {
    *("llm", "ttft_ms", "nttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "llm_in_trace"),
    *("service_in_trace", "predictor", "vary", "workload_id", "scenario_id", "input_tokens"),
    *("output_tokens", "engine", "dtype", "kv_dtype", "speculative", "data_parallel"),
    *("expert_parallel", "gpu_profiles", "duration", "sessions", "window", "slot", "startup"),
    *("gpu_profile", "decode_gpu_profile", "warmup", "deployed", "interval"),
}
"""Options of text that is never a path: for each of them it was looked up where it is read."""


def all_options(command: str) -> dict:
    function = inspect.unwrap(getattr(sextant, command))
    return {option.keyword: option for option in options_of(function)}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_may_be_a_path_is_attached_or_refused(command) -> None:
    for keyword, option in all_options(command).items():
        kinds = option.kinds
        if Path in kinds or list[Path] in kinds:
            assert keyword in WAYS or keyword in REFUSED, keyword
        elif str in kinds or list[str] in kinds:
            assert keyword in WAYS or keyword in REFUSED or keyword in READ_AS_TEXT, keyword


@pytest.mark.parametrize("command", COMMANDS)
def test_the_schema_has_every_option_that_may_be_asked_and_its_help(command) -> None:
    schema = body_schema(command)
    assert set(schema["properties"]) == set(all_options(command)) - set(REFUSED)
    assert schema["additionalProperties"] is False
    for keyword, option in options_by_keyword(command).items():
        said = schema["properties"][keyword]
        assert keyword in WAYS or said["description"] == option.info.help
        is_needed = option.default is inspect.Parameter.empty
        assert (keyword in schema.get("required", ())) == is_needed


def test_what_is_attached_becomes_files_under_names_of_ours() -> None:
    body = {
        "hf_config": {"_name_or_path": "../../etc/org/model", "hidden_size": 1},
        "probe": [{"gpu_profile_id": "1xH100-80GB", "users": 4, "ttft_ms": 90.5}],
        "prices": [{"gpu_profile_id": "1xH100-80GB", "usd_per_hour": 2.5}, "aws,azure"],
        "trace": {"name": "../my log.csv", "text": "a,b\n1,2\n", "format": "azure"},
    }
    keywords, attached = keywords_of(Ask("recommend", body))

    assert keywords["hf_config"] == "etc__org__model.json"
    assert keywords["prices"] == "prices.csv,aws,azure"
    assert keywords["trace"] == "trace.parquet"
    assert attached.log == "my_log.csv"
    assert attached.log_options == {"format": "azure"}
    assert attached.files["probe.csv"] == b"gpu_profile_id,users,ttft_ms\n1xH100-80GB,4,90.5\n"
    assert set(attached.files) == {
        *("etc__org__model.json", "probe.csv", "prices.csv", "my_log.csv")
    }
    assert not any("/" in name for name in attached.files)


def test_a_draft_s_config_does_not_replace_that_of_the_llm() -> None:
    config = {"_name_or_path": "prices", "hidden_size": 1}
    keywords, attached = keywords_of(
        Ask("recommend", {"hf_config": config, "draft_config": config | {"hidden_size": 2}})
    )
    assert keywords == {"hf_config": "prices.json", "draft_config": "other-prices.json"}
    assert len(attached.files) == 2


@pytest.mark.parametrize("keyword", sorted({*WAYS, *REFUSED} - {"policy", "metrics"}))
@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", ["/etc"], 5, []])
def test_no_path_of_a_request_is_read(keyword, path) -> None:
    with pytest.raises(InputError) as error:
        keywords_of(Ask("recommend", {keyword: path}))
    assert error.value.field == keyword
    assert error.value.fix


@pytest.mark.parametrize("keyword", ["policy", "metrics"])
def test_the_text_of_a_file_is_not_a_path(keyword) -> None:
    _, attached = keywords_of(Ask("simulate", {keyword: "/etc/passwd"}))
    assert [*attached.files.values()] == [b"/etc/passwd"]
    with pytest.raises(InputError):
        keywords_of(Ask("simulate", {keyword: {"path": "/etc/passwd"}}))


@pytest.mark.parametrize(
    ("trace", "field"),
    [
        ({"text": "a", "columns": "/etc/mapping.yaml"}, "trace.columns"),
        ({"text": "a", "out": "x"}, "trace.out"),
        ({"text": "a", "base64": "YQ=="}, "trace"),
        ({"base64": "YQ==", "format": "azure"}, "trace.format"),
        ({"base64": "*"}, "trace"),
        ({"text": 5}, "trace"),
        ({"text": "a", "where": {"a": 1}}, "trace.where"),
    ],
)
def test_a_trace_has_a_content_and_no_file_of_columns(trace, field) -> None:
    with pytest.raises(InputError) as error:
        keywords_of(Ask("recommend", {"trace": trace}))
    assert error.value.field == field


@pytest.mark.parametrize("value", ["x" * 5_000, [["x"]], {"a": 1}, ["x"] * 5_000])
def test_long_and_nested_values_are_refused_before_an_error_quotes_them(value) -> None:
    with pytest.raises(InputError) as error:
        keywords_of(Ask("recommend", {"gpu_profiles": value}))
    assert len(str(error.value)) < 200


def test_rows_hold_plain_values() -> None:
    with pytest.raises(InputError, match="not one value"):
        keywords_of(Ask("recommend", {"probe": [{"users": {"a": 1}}]}))


def test_the_command_has_every_option_once_and_quotes_it() -> None:
    body = {
        "llm": "it's $(x)",
        "request_rate": 8,
        "strict": True,
        "measured_only": False,
        "source": ["archive:mlenergy"],
        "gpu_profiles": ["1xH100-80GB", "1xL4-24GB"],
        "trace": {"text": "a,b", "columns": "arrival=a|b"},
    }
    first, second = script_of(Ask("recommend", body)).splitlines()
    assert shlex.split(first) == [
        *("sextant", "ingest", "log.csv", "--out", "trace.parquet"),
        *("--columns", "arrival=a|b"),
    ]
    assert shlex.split(second) == [
        *("sextant", "recommend", "--llm", "it's $(x)", "--request-rate", "8", "--strict"),
        *("--source", "archive:mlenergy", "--gpu-profiles", "1xH100-80GB,1xL4-24GB"),
        *("--trace", "trace.parquet"),
    ]
    off = script_of(Ask("capacity", {"prefix_caching": False}))
    assert off == "sextant capacity --no-prefix-caching\n"
