"""What the load client costs and how exactly it measures, against other clients.

    .venv/bin/python benchmarks/load_client.py LOADTRUTH [--users 128 256] [--repeat 3]

LOADTRUTH is a folder with `server.c`, an OpenAI-compatible server of known timing that logs when
it really sent each token, and `floor_client.c`, a closed-loop client in C. Both are compiled into
a temporary folder. The server runs on core 0, one client at a time on core 1, in turns; requests
have 128 input and 64 output tokens, TTFT is 50 ms, ITL 20 ms.

    floor     floor_client.c
    vllm      `vllm bench serve` of the environment that --vllm-python names
    sextant   `sextant load`

A row is the median over the repetitions. CPU is of the client, while requests are under way; in
brackets from the first request to the client's exit, with what it computes and writes after the
load. Errors are the client's against the server's log. The rate is compared with users that
never pause: rounds of TTFT + 63 ITL. Memory is the largest until the last token; in brackets to the
client's exit. The lines below a table are the ratios of each repetition's runs, which is what to
compare on a busy machine, and memory after N and after 4 N requests.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

INPUT_TOKENS, OUTPUT_TOKENS = 128, 64
TTFT_MS, ITL_MS = 50.0, 20.0
ROUND_S = (TTFT_MS + (OUTPUT_TOKENS - 1) * ITL_MS) / 1e3
SAMPLE_S = 0.05
CLIENTS = ("floor", "vllm", "sextant")
RATIOS = (
    ("cpu_s", "sextant", "vllm"),
    ("cpu_to_exit_s", "sextant", "vllm"),
    ("cpu_s", "floor", "vllm"),
    ("itl_p99_ms", "sextant", "floor"),
)
LONGER = 4  # times as many requests, in the runs that show whether memory grows
VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass
class Request:
    """What the server logged of a request (ns of the monotonic clock)."""

    request_id: str
    received_ns: int
    sent_ns: np.ndarray


@dataclass
class Watched:
    """A client's process, sampled while it ran."""

    started_ns: int = 0
    samples: list[tuple[int, float, float]] = field(default_factory=list)
    """Time (ns), CPU used so far (s), largest memory so far (MB)."""
    total_cpu_s: float = 0.0

    def cpu_s(self, at_ns: int) -> float:
        times, cpu, _ = zip(*self.samples, strict=True)
        return float(np.interp(at_ns, times, cpu))

    def memory_mb(self, until_ns: float = float("inf")) -> float:
        return max(memory for at_ns, _, memory in self.samples if at_ns <= until_ns)


def read_log(path: Path) -> list[Request]:
    data, at, requests = path.read_bytes(), 0, []
    while at < len(data):
        _, _, received_ns, n_tokens, _, _, _ = struct.unpack_from("7q", data, at)
        name = data[at + 56 : at + 104].split(b"\0")[0].decode()
        times = np.frombuffer(data, np.int64, n_tokens, at + 104)
        requests.append(Request(name, received_ns, times))
        at += 104 + 8 * n_tokens
    return requests


def watch(command: list[str], log: Path) -> Watched:
    """Run a client on core 1 and sample it."""
    watched, ticks = Watched(time.monotonic_ns()), os.sysconf("SC_CLK_TCK")
    with log.open("wb") as output:
        client = subprocess.Popen(
            ["taskset", "-c", "1", *command],
            stdout=output,
            stderr=output,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )

        def sample() -> None:
            folder = Path(f"/proc/{client.pid}")
            while client.returncode is None:
                try:
                    cells = (folder / "stat").read_text().rpartition(")")[2].split()
                    lines = (folder / "status").read_text().splitlines()
                except OSError:
                    return
                peak = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
                cpu_s = (int(cells[11]) + int(cells[12])) / ticks
                if peak:
                    watched.samples.append((time.monotonic_ns(), cpu_s, peak[0] / 1e3))
                time.sleep(SAMPLE_S)

        sampler = threading.Thread(target=sample)
        sampler.start()
        _, status, usage = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        sampler.join()
    watched.total_cpu_s = usage.ru_utime + usage.ru_stime
    if client.returncode:
        sys.exit(f"{command[0]} failed:\n{log.read_text()[-2000:]}")
    return watched


Times = dict[str, tuple[float, np.ndarray]]
"""By the request's name: TTFT, and the gaps between its tokens (ms)."""


def run_floor(folder: Path, url: str, users: int, n_rounds: int) -> tuple[Watched, Times]:
    out, seconds = folder / "floor.json", (n_rounds - 0.5) * ROUND_S
    port = url.rpartition(":")[2]
    command = [str(folder / "floor_client"), port, str(users), str(seconds), str(out)]
    watched = watch(command, folder / "floor.log")
    times = {}
    for name, sent_s, tokens_s, _ in json.loads(out.read_text()):
        tokens_s = tokens_s[:OUTPUT_TOKENS]
        times[name[2:]] = 1e3 * (tokens_s[0] - sent_s), 1e3 * np.diff(tokens_s)
    return watched, times


def run_sextant(folder: Path, url: str, users: int, n_rounds: int) -> tuple[Watched, Times]:
    import pyarrow.parquet as pq

    out = folder / "sextant"
    lengths = ["--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
    seconds = ["--warmup", "0", "--duration", str((n_rounds - 0.5) * ROUND_S)]
    program = str(Path(sys.executable).with_name("sextant"))
    command = [program, "load", "--base-url", url, "--model", "mock", "--out", str(out)]
    watched = watch([*command, "--users", str(users), *lengths, *seconds], folder / "sextant.log")
    rows = pq.read_table(out / "requests.parquet").to_pylist()
    failed = [row["error"] for row in rows if row["status"] != "ok"]
    if failed:
        sys.exit(f"{len(failed)} requests of sextant failed: {failed[0]}")
    offsets = {row["request_id"]: row["token_offsets_ms"] for row in rows}
    return watched, {name: (ms[0], np.diff(ms)) for name, ms in offsets.items()}


def run_vllm(
    folder: Path, url: str, users: int, n_rounds: int, python: str
) -> tuple[Watched, Times]:
    options = {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": "mock",
        "tokenizer": str(make_tokenizer(folder / "tokenizer")),
        "dataset-name": "random",
        "random-input-len": INPUT_TOKENS,
        "random-output-len": OUTPUT_TOKENS,
        "max-concurrency": users,
        "num-prompts": users * n_rounds,
        "request-id-prefix": "v-",
        "ready-check-timeout-sec": 0,
        "result-dir": str(folder),
        "result-filename": "vllm.json",
    }
    flags = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    pairs = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    watched = watch([python, "-c", VLLM, *pairs, *flags], folder / "vllm.log")
    result = json.loads((folder / "vllm.json").read_text())
    pairs = zip(result["ttfts"], result["itls"], strict=True)
    return watched, {
        f"v-{number}": (1e3 * ttft_s, 1e3 * np.array(gaps_s))
        for number, (ttft_s, gaps_s) in enumerate(pairs)
    }


def make_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of words, with which vLLM's random prompts have their length."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(exist_ok=True)
    words = {"<unk>": 0} | {f"w{number}": number for number in range(1, 2000)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return folder


def measure(folder: Path, port: int, run: Callable[..., tuple[Watched, Times]], users, n_rounds):
    """Return the figures of one client's run against a server of its own."""
    log = folder / "server.bin"
    times_us = [str(int(1e3 * ms)) for ms in (TTFT_MS, ITL_MS)]
    server = subprocess.Popen(
        ["taskset", "-c", "0", str(folder / "server"), str(port), *times_us, str(log)],
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(0.3)
        watched, times = run(folder, f"http://127.0.0.1:{port}", users, n_rounds)
    finally:
        server.terminate()
        server.wait()
    return figures(watched, times, read_log(log), users)


def figures(watched: Watched, times: Times, requests: list[Request], users: int) -> dict:
    ttft_errors_ms, itl_errors_ms = [], []
    for sequence, request in enumerate(requests):
        # The floor client knows the server's number of a request, the others have their own.
        ttft_ms, gaps_ms = times[request.request_id or str(sequence)]
        ttft_errors_ms.append(ttft_ms - (request.sent_ns[0] - request.received_ns) / 1e6)
        itl_errors_ms.append(np.abs(gaps_ms - np.diff(request.sent_ns) / 1e6))
    first_ns = min(request.received_ns for request in requests)
    last_ns = max(int(request.sent_ns[-1]) for request in requests)
    thousands = sum(len(request.sent_ns) for request in requests) / 1e3
    before_s = watched.cpu_s(first_ns)
    return {
        "cpu_s": (watched.cpu_s(last_ns) - before_s) / thousands,
        "cpu_to_exit_s": (watched.total_cpu_s - before_s) / thousands,
        "itl_p99_ms": float(np.quantile(np.concatenate(itl_errors_ms), 0.99)),
        "ttft_median_ms": float(np.median(ttft_errors_ms)),
        "ttft_p99_ms": float(np.quantile(ttft_errors_ms, 0.99)),
        "rate": len(requests) / users * ROUND_S / ((last_ns - first_ns) / 1e9),
        "n_requests": len(requests),
        "memory_mb": watched.memory_mb(last_ns),
        "memory_to_exit_mb": watched.memory_mb(),
        "first_request_s": (first_ns - watched.started_ns) / 1e9,
    }


def show(users: int, results: dict[str, list[dict]]) -> None:
    print(f"\n{users} users, medians of {len(next(iter(results.values())))} runs\n")
    print(
        "| client | CPU s per 1,000 tokens (to exit) | ITL error p99, ms | TTFT error median / "
        "p99, ms | share of ideal rate | peak memory, MB | first request, s |"
    )
    print("|---|---|---|---|---|---|---|")
    for client, runs in results.items():
        m = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        print(
            f"| {client} | {m['cpu_s']:.4f} ({m['cpu_to_exit_s']:.4f}) | {m['itl_p99_ms']:.2f} | "
            f"{m['ttft_median_ms']:.3f} / {m['ttft_p99_ms']:.2f} | {m['rate']:.2%} | "
            f"{m['memory_mb']:.0f} ({m['memory_to_exit_mb']:.0f}) | {m['first_request_s']:.2f} |"
        )
    for name, client, of in RATIOS:
        if client in results and of in results:
            pairs = zip(results[client], results[of], strict=True)
            ratios = sorted(ours[name] / other[name] for ours, other in pairs)
            listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{name}: {client} / {of} {statistics.median(ratios):.2f} ({listed})", flush=True)


def show_memory(client: str, short: dict, long: dict) -> None:
    both = "; ".join(
        f"after {m['n_requests']:,} requests {m['memory_mb']:.1f} ({m['memory_to_exit_mb']:.1f})"
        for m in (short, long)
    )
    print(f"memory, MB: {client} {both}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loadtruth", type=Path)
    parser.add_argument("--users", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="requests of a user")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    parser.add_argument("--port", type=int, default=9137)
    options = parser.parse_args()
    needed = [options.loadtruth / name for name in ("server.c", "floor_client.c")]
    missing = [str(path) for path in needed if not path.is_file()]
    missing += [tool for tool in ("cc", "taskset") if shutil.which(tool) is None]
    if "vllm" in options.clients and shutil.which(options.vllm_python) is None:
        missing.append(f"{options.vllm_python} (or leave vllm out of --clients)")
    if missing or os.cpu_count() < 2:
        sys.exit(f"missing: {', '.join(missing) or 'a second core'}")
    runners = {
        "floor": run_floor,
        "vllm": lambda *given: run_vllm(*given, options.vllm_python),
        "sextant": run_sextant,
    }
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in needed:
            target = folder / source.stem
            subprocess.run(["cc", "-O2", "-w", "-o", str(target), str(source)], check=True)
        for users in options.users:
            results = {client: [] for client in options.clients}
            for _ in range(options.repeat):
                for client, runs in results.items():
                    found = measure(folder, options.port, runners[client], users, options.rounds)
                    runs.append(found)
            show(users, results)
            for client, runs in results.items():
                n_rounds = LONGER * options.rounds
                long = measure(folder, options.port, runners[client], users, n_rounds)
                show_memory(client, runs[-1], long)


if __name__ == "__main__":
    main()
