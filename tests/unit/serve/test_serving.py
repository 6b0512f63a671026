"""The server over HTTP: answers of the command, hostile requests, limits, who may ask."""

import asyncio
import base64
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import psutil
import pytest

import sextant
from served import LLM, README, Served, serving
from sextant.serve.answering import WARM, Answered, answer
from sextant.serve.kept import Answers, id_of
from sextant.serve.pool import Pool, PoolLimits
from sextant.serve.questions import COMMANDS, Ask, body_schema
from support import PATIENCE_S, ROOT

LENGTHS = {"input_tokens": 500, "output_tokens": 100}
SHORT = LENGTHS | {
    "hf_config": LLM,
    "gpu_profile": "1xH100-80GB",
    "users": 8,
    "duration": "1min",
    "draws": 0,
}
"""A question to `simulate`."""
LONG = SHORT | {"users": None, "request_rate": 1_000, "duration": "3min", "draws": 10_000}
"""One that takes many minutes."""


def command_line(folder: Path, script: str) -> dict:
    """Return the JSON of the commands that an answer names."""
    words = f"{script.rstrip()} --format json"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", words], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True
    )
    assert done.returncode in (0, 3), done.stderr.decode()
    return json.loads(done.stdout[done.stdout.index(b"{") :])


def unpacked(content: bytes, folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(BytesIO(content)) as archive:
        for name in archive.namelist():
            (folder / name).write_bytes(archive.read(name))
    return folder


def test_readme_s_question_has_the_answer_of_the_library(served: Served) -> None:
    expected = sextant.recommend(
        **README | {"hf_config": f"resources/llms/{LLM}.json"}  # type: ignore[arg-type]
    )
    reply = served.ask("recommend", README)
    assert reply.status == 200
    assert reply.json == json.loads(json.dumps(expected.to_dict()))


def test_the_files_of_a_question_give_the_same_answer_on_the_command_line(
    served: Served, tmp_path: Path
) -> None:
    log = (ROOT / "resources/traces/azure-2023-conv-sample.csv").read_text().splitlines()
    config = json.loads((ROOT / "resources/llms" / f"{LLM}.json").read_text())
    body = {
        "hf_config": config | {"_name_or_path": "org/mine"},
        "trace": {"name": "conv sample.csv", "text": "\n".join(log[:300]), "format": "sextant"},
        "prices": [{"gpu_profile_id": "1xH100-80GB", "usd_per_hour": 2.25}],
        "gpu_profiles": "1xH100-80GB",
        "ttft_ms": "p95:1000",
        "tpot_ms": 50,
    }
    asked = served.request("POST", "/answers/recommend", body).json
    folder = unpacked(served.get(f"/answers/{asked['id']}/question.zip").content, tmp_path / "q")

    names = {path.name for path in folder.iterdir()}
    assert names == {"ask.sh", "org__mine.json", "conv_sample.csv", "prices.csv"}
    assert asked["script"] == (folder / "ask.sh").read_text()
    expected = command_line(folder, asked["script"])
    assert served.get(f"/answers/{asked['id']}/answer.json").json == expected
    assert expected["llm_id"] == "org__mine"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers(served: Served, command: str) -> None:
    samples = [ROOT / f"resources/traces/vllm-{number}-sample.txt" for number in (1, 2)]
    load = LENGTHS | {"request_rate": 2}
    limits = {"ttft_ms": "p95:1000", "gpu_profiles": "1xH100-80GB"}
    bodies = {
        "recommend": {**load, **limits},
        "capacity": {**load, **limits, "duration": "1min", "draws": 0},
        "simulate": SHORT,
        "rightsize": {
            **limits,
            "deployed": "1x1xH100-80GB",
            "metrics": [path.read_text() for path in samples],
            "interval": "10min",
        },
    }
    reply = served.ask(command, {"hf_config": LLM.replace("__", "/")} | bodies[command])
    assert reply.status == 200, reply.content
    assert reply.json["text"]


def test_what_ships_is_listed(served: Served) -> None:
    llms = {row["name"]: row for row in served.get("/v1/llms").json}
    assert llms[LLM]["has_config"] and llms[LLM]["measured_by"]
    assert any(row["gpu_id"] == "H100-80GB" for row in served.get("/v1/gpus").json)
    prices = served.get("/v1/prices").json
    assert {row["provider"] for row in prices} == {"aws", "azure", "lambda", "runpod"}
    assert all(row["usd_per_hour"] > 0 for row in prices)


def test_the_schema_is_that_of_the_options(served: Served) -> None:
    schema = served.get("/openapi.json").json
    for command in COMMANDS:
        post = schema["paths"][f"/v1/{command}"]["post"]
        content = post["requestBody"]["content"]["application/json"]
        assert content["schema"] == json.loads(json.dumps(body_schema(command)))
        assert {"422", "429", "504"} <= post["responses"].keys()
    assert set(schema["paths"]) == {
        *(f"/v1/{command}" for command in COMMANDS),
        *("/v1/llms", "/v1/gpus", "/v1/prices"),
    }


def test_an_error_is_the_library_s_with_field_and_fix(served: Served) -> None:
    reply = served.ask("recommend", README | {"ttft_ms": "soon"})
    assert reply.status == 422
    assert reply.error["field"] == "ttft_ms"
    assert reply.error["problem"] == "'soon' is not a limit"
    assert reply.error["fix"].startswith("give milliseconds")
    assert reply.error["message"].endswith(reply.error["fix"])


def test_a_wrong_row_has_its_file_and_line_and_no_folder_of_the_server(served: Served) -> None:
    rows = [
        {"gpu_profile_id": "1xH100-80GB", "usd_per_hour": 2},
        {"gpu_profile_id": "1xL4-24GB", "usd_per_hour": -1},
    ]
    error = served.ask("recommend", README | {"prices": rows}).error
    assert (error["file"], error["row"], error["field"]) == ("prices.csv", 3, "usd_per_hour")
    long_name = served.ask("recommend", README | {"hf_config": None, "llm": "x" * 1_000})
    assert str(ROOT).encode() not in long_name.content


HOSTILE = {
    "lists 100,000 deep": (b"[" * 100_000 + b"]" * 100_000, 400),
    "objects 100,000 deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
    "objects 200 deep": (b'{"hf_config":' + b'{"a":' * 200 + b"1" + b"}" * 201, 400),
    "NaN": (b'{"users": NaN}', 400),
    "infinity": (b'{"request_rate": Infinity}', 400),
    "1e999": (b'{"request_rate": 1e999}', 400),
    "5,000 digits": (b'{"users": ' + b"9" * 5_000 + b"}", 400),
    "no UTF-8": (b'{"llm": "\xff"}', 400),
    "half a surrogate": (b'{"llm": "\\ud800"}', 400),
    "nothing": (b"", 400),
    "a list": (b"[]", 400),
    "1e9 users": (json.dumps(README | {"request_rate": None, "users": 10**9}), 422),
    "1e9 users, as a float": (json.dumps(README | {"request_rate": None, "users": 1e9}), 422),
    "1e9 requests a second": (json.dumps(README | {"request_rate": 1e9}), 422),
    "1e30 tokens a day": (json.dumps(README | {"tokens_per_day": 1e30}), 422),
    "5 MB of text": (json.dumps(README | {"gpu_profiles": "x" * 5_000_000}), 422),
    "a key of 1 MB": (json.dumps({"k" * 1_000_000: 1}), 422),
    "a NUL": (json.dumps(README | {"hf_config": "a\0b"}), 422),
    "a path": (json.dumps(README | {"hf_config": "/etc/passwd"}), 422),
    "a config of 1e9 layers": (
        json.dumps(
            README
            | {"hf_config": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 10**9}}
        ),
        422,
    ),
    "an address": (json.dumps({"deployed": "1x1xH100-80GB", "prometheus": "http://x"}), 422),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_one_short_error(served: Served, name: str) -> None:
    body, status = HOSTILE[name]
    reply = served.ask("recommend", body)
    assert reply.status == status
    assert len(reply.content) < 4_000
    assert reply.error["fix"]


@pytest.mark.parametrize("name", ["1e9 users", "1e9 requests a second"])
def test_too_much_to_simulate_is_one_error(served: Served, name: str) -> None:
    load = {"users": 10**9} if "users" in name else {"users": None, "request_rate": 1e9}
    reply = served.ask("simulate", SHORT | load)
    assert reply.status == 422
    assert served.ask("simulate", SHORT).status == 200, "the worker goes on"


def test_only_plain_json_is_read(served: Served) -> None:
    bomb = gzip.compress(b"{" + b" " * 10**8 + b"}")
    assert served.ask("recommend", bomb, Content_Encoding="gzip").status == 415
    assert served.ask("recommend", "a=b", Content_Type="text/plain").status == 415
    form = "multipart/form-data; boundary=x"
    assert served.ask("recommend", "--x", Content_Type=form).status == 415
    assert served.ask("recommend", "{}", Content_Length=str(10**12)).status == 413
    assert served.ask("recommend", "{}", Content_Length="-1").status == 400


def test_other_hosts_and_other_sites_may_not_ask(served: Served) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80"):
        assert served.get("/v1/gpus", Host=host).status in (400, 403), host
    for host in (f"localhost:{served.port}", "[::1]", "127.0.0.1:1"):
        assert served.get("/v1/gpus", Host=host).status == 200, host
    reply = served.ask("recommend", README, Origin="https://evil.example")
    assert reply.status == 403
    assert not any(name.startswith("access-control") for name in reply.headers)
    assert served.request("OPTIONS", "/v1/recommend", Origin="http://x").status >= 400


def test_addresses_that_are_not_there_are_errors_of_the_same_form(served: Served) -> None:
    for path in ("/v1/fleet", "/docs", "/redoc", "/answers/x/y", f"/answers/{'0' * 64}/x.zip"):
        assert served.get(path).status == 404
        assert served.get(path).error["fix"]
    assert served.get("/v1/recommend").status == 405


def test_every_reply_forbids_what_a_browser_need_not_do(served: Served) -> None:
    for path in ("/", "/v1/gpus", "/nothing"):
        headers = served.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    policy = served.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"https?:|unsafe-eval|\*", policy)


def test_a_token_is_asked_for_where_others_could_ask(tmp_path: Path) -> None:
    words = [str(Path(sys.executable).with_name("sextant")), "serve", "--host", "0.0.0.0"]
    for more in ([], ["--token-env", "NO_SUCH"], ["--token-env", "SHORT"]):
        environment = os.environ | {"SHORT": "letmein"}
        done = subprocess.run(words + more, capture_output=True, text=True, env=environment)
        assert done.returncode == 2
        assert "field '--token-env'" in done.stderr.splitlines()[-1]


def test_with_a_token_nothing_is_answered_without_it(tmp_path: Path) -> None:
    token = "0123456789abcdef"
    options = ("--host", "0.0.0.0", "--token-env", "TOKEN", "--workers", "1")
    with serving(tmp_path, *options, TOKEN=token) as served:
        wrong = ("", "Bearer", f"Bearer {token}x", "Bearer " + "é", "Basic !", "Basic Og==")
        for said in wrong:
            for path in ("/", "/v1/gpus", "/openapi.json"):
                reply = served.get(path, Authorization=said.encode("latin-1"))
                assert reply.status == 401, said
                assert reply.headers["www-authenticate"].startswith("Basic")
        assert served.get("/", Authorization=f"Bearer {token}").status == 200
        basic = base64.b64encode(f"me:{token}".encode()).decode()
        named = served.get("/", Authorization=f"Basic {basic}", Host="sextant.example.org")
        assert named.status == 200
        assert token not in served.log.read_text()


def test_an_address_that_is_taken_is_one_error(served: Served) -> None:
    words = [str(Path(sys.executable).with_name("sextant")), "serve", "--port", str(served.port)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not free. Fix: give another --port" in done.stderr


def pooled(limits: PoolLimits, questions) -> list[Answered]:
    """Return the answers of a pool to what `questions` asks of it."""

    async def run() -> list[Answered]:
        pool = Pool(limits)
        pool.start()
        try:
            return await questions(pool)
        finally:
            pool.close()

    return asyncio.run(run())


def test_a_question_over_its_deadline_is_ended_and_the_next_one_answered() -> None:
    async def questions(pool: Pool) -> list[Answered]:
        return [await pool.answer(Ask("simulate", body)) for body in (LONG, SHORT)]

    late, short = pooled(PoolLimits(workers=1, deadline_s=2), questions)

    assert late.status == 504
    assert "longer than 2 s" in late.content
    # Whether a short one takes 2 s is a matter of the machine: a worker is there to answer it.
    assert short.status in (200, 504)


def test_more_questions_than_may_wait_are_refused() -> None:
    async def questions(pool: Pool) -> list[Answered]:
        asked = [asyncio.create_task(pool.answer(Ask("llms", {"n": n}))) for n in range(4)]
        return [await task for task in asked]

    answers = pooled(PoolLimits(workers=1, waiting=2), questions)

    assert sorted(reply.status for reply in answers) == [200, 200, 200, 429]


def test_alike_questions_are_answered_once_and_kept() -> None:
    class Counting:
        """A pool that counts."""

        n = 0

        async def answer(self, ask: Ask) -> Answered:
            self.n += 1
            await asyncio.sleep(0)
            return Answered(504 if ask.command == "late" else 200, "{}")

    pool = Counting()

    async def run() -> None:
        answers = Answers(pool)  # type: ignore[arg-type]
        alike = [Ask("recommend", {"a": 1, "b": 2}), Ask("recommend", {"b": 2, "a": 1})]
        assert id_of(alike[0]) == id_of(alike[1])
        await asyncio.gather(*(answers.answer(ask) for ask in alike))
        await answers.answer(alike[0])
        assert pool.n == 1
        await answers.answer(Ask("recommend", {"a": 1, "b": 3}))
        assert pool.n == 2
        for _ in range(2):  # what took too long may be quicker later
            await answers.answer(Ask("late", {}))
        assert pool.n == 4

    asyncio.run(run())


def test_a_worker_calls_nobody() -> None:
    """The hook of a worker stays in its process: asked here in a process of its own."""
    code = """
import socket, tempfile
from pathlib import Path
from sextant.base.errors import InputError
from sextant.serve.answering import _bind
_bind(Path(tempfile.mkdtemp()))
connect = lambda: socket.create_connection(("127.0.0.1", 9))
look_up = lambda: socket.getaddrinfo("x", 1)
for call in (connect, look_up):
    try:
        call()
    except InputError:
        continue
    raise SystemExit("it called")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_question_that_warms_a_worker_has_an_answer() -> None:
    assert answer(WARM).status == 200


def test_eight_clients_lose_no_answer(served: Served) -> None:
    bodies = [SHORT | {"users": users} for users in range(1, 9)] * 2
    lock, seen = threading.Lock(), []

    def ask(body: dict) -> None:
        reply = served.ask("simulate", body)
        with lock:
            seen.append((reply.status, reply.json["load"]["users"] == body["users"]))

    with ThreadPoolExecutor(8) as clients:
        [*clients.map(ask, bodies)]
    assert seen == [(200, True)] * 16


def test_a_client_that_hangs_up_leaves_the_server_whole(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as half:
        half.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
    time.sleep(0.1)
    assert served.get("/v1/gpus").status == 200


def test_workers_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "1") as served:
        served.get("/v1/gpus")
        family = served.process.children(recursive=True)
        assert len(family) >= 2
        served.process.kill()
        psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not any(it.is_running() and it.status() != psutil.STATUS_ZOMBIE for it in family)
