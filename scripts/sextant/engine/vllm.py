"""The vLLM server: its command, its start, its end."""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from sextant.errors import InputError
from sextant.gpu import Devices

LOG_TAIL_LINES = 20
# Run by its path: it needs nothing of this package, which need not be installed.
KEEPER = Path(__file__).with_name("keeper.py")
# A server that has just failed a request needs a moment to end and to log why.
_SETTLE_S = 2.0

_THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# Every way in which vLLM, PyTorch, glibc and the kernel say that memory ran out.
_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemoryerror",
    "cannot allocate memory",
    "can't allocate memory",
    "bad_alloc",
    "memoryerror",
    "no available memory for the cache blocks",
    "less than requested memory for kv",
    "larger than the available kv cache memory",
)


@dataclass(frozen=True)
class EngineSettings:
    """How servers are run; the values come from the `engine` part of the configuration."""

    python: str
    """Interpreter of the environment that has vLLM."""
    dtype: str
    block_size_tokens: int
    max_num_seqs: int
    """Most requests in one batch."""
    memory_utilization: float
    start_timeout_s: float
    request_timeout_s: float
    max_server_starts: int
    extra_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerSpec:
    """One server to start: an LLM on a GPU profile with a batch weight."""

    model: Path
    """Folder with `config.json`, and weights unless `load_format` is `dummy`."""
    load_format: str
    devices: Devices
    batch_weight_tokens: int
    kv_bytes_per_token: int
    max_request_tokens: int
    device_indices: tuple[int, ...]
    """Indices of the GPUs, or of the CPU cores, that the server may use."""
    seed: int


class ServerError(RuntimeError):
    """A server did not start or died; the message ends with its last log lines."""

    def __init__(self, message: str, log: str, is_out_of_memory: bool) -> None:
        super().__init__(f"{message}; last lines of its log:\n{log}")
        self.is_out_of_memory = is_out_of_memory


def n_blocks(spec: ServerSpec, settings: EngineSettings) -> int:
    """Return the KV blocks that hold the batch weight; vLLM keeps one block for itself."""
    return -(-spec.batch_weight_tokens // settings.block_size_tokens) + 1


def command(spec: ServerSpec, settings: EngineSettings, port: int) -> list[str]:
    """Return the server's command line.

    The batch weight becomes `--num-gpu-blocks-override`: vLLM admits requests until its
    KV blocks are used up, so their number times the block size is the most tokens in flight.
    """
    blocks = n_blocks(spec, settings)
    arguments = {
        "model": str(spec.model),
        "served-model-name": "sextant",
        "host": "127.0.0.1",
        "port": str(port),
        "load-format": spec.load_format,
        "dtype": settings.dtype,
        "seed": str(spec.seed),
        "max-model-len": str(spec.max_request_tokens),
        "max-num-seqs": str(settings.max_num_seqs),
        "block-size": str(settings.block_size_tokens),
        "num-gpu-blocks-override": str(blocks),
    }
    if spec.devices.kind == "cpu":
        # A CPU has no memory of its own to profile: state the size of the KV cache.
        kv_bytes = blocks * settings.block_size_tokens * spec.kv_bytes_per_token
        arguments["kv-cache-memory-bytes"] = str(kv_bytes)
    else:
        arguments["gpu-memory-utilization"] = str(settings.memory_utilization)
        arguments["tensor-parallel-size"] = str(spec.devices.n_gpus)
    # Prompts are token ids, unique per request: no tokenizer, no prefix cache to warm.
    switches = ["skip-tokenizer-init", "enforce-eager", "no-enable-prefix-caching"]
    if spec.devices.kind == "gpu":
        switches.remove("enforce-eager")
    options = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    return [
        settings.python,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *options,
        *(f"--{switch}" for switch in switches),
        *settings.extra_arguments,
    ]


def environment(spec: ServerSpec, api_key: str) -> dict[str, str]:
    """Return the server's environment: its devices only, no telemetry, no downloads."""
    values = dict(os.environ)
    # The client's environment must not leak into the server: neither its interpreter nor
    # the thread counts that Snakemake sets, with which a server on one core would crawl.
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", *_THREAD_COUNTS):
        values.pop(name, None)
    values |= {"VLLM_API_KEY": api_key, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if spec.load_format == "dummy":
        values["HF_HUB_OFFLINE"] = "1"
    listed = ",".join(map(str, spec.device_indices))
    if spec.devices.kind == "cpu":
        values |= {
            "VLLM_CPU_OMP_THREADS_BIND": listed,
            "OMP_NUM_THREADS": str(spec.devices.n_gpus),
            "CUDA_VISIBLE_DEVICES": "",
        }
    else:
        values["CUDA_VISIBLE_DEVICES"] = listed
    return values


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _require_free(port: int) -> None:
    """Refuse a port on which somebody listens: their health would pass for our server's."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"port {port} is in use", fix="run again: another will be chosen")


@dataclass
class Server:
    """A vLLM server that is running; use it as a context manager so that it always ends."""

    spec: ServerSpec
    settings: EngineSettings
    log_path: Path
    port: int = field(default_factory=free_port)
    api_key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    _keeper: subprocess.Popen | None = None
    started_s: float = 0.0
    start_duration_s: float = 0.0

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        """The exact command line."""
        return command(self.spec, self.settings, self.port)

    @property
    def pid(self) -> int:
        """Process id of the keeper, whose descendants are the server."""
        assert self._keeper is not None
        return self._keeper.pid

    def __enter__(self) -> "Server":
        """Start the server and wait until it is healthy.

        Raises:
            ServerError: it died or was not healthy within the time limit.
            InputError: the interpreter is missing, or the port is taken.
        """
        if not shutil.which(self.settings.python):
            fix = "run 'make .venv-vllm/.ready', or set engine.python in the configuration"
            raise InputError(f"no interpreter {self.settings.python}", fix=fix)
        _require_free(self.port)
        cpus = "-"
        if self.spec.devices.kind == "cpu":
            cpus = ",".join(map(str, self.spec.device_indices))
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.started_s = time.monotonic()
        with self.log_path.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(KEEPER), cpus, *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.spec, self.api_key),
                # A group, not a session: Linux schedules sessions against each other, and a
                # server that spins in one of its own stalls the client's for seconds.
                process_group=0,
            )
        try:
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        self.start_duration_s = time.monotonic() - self.started_s
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and everything below it."""
        self.stop()

    def stop(self) -> None:
        """End the server; returns when no process of it is left."""
        if self._keeper is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        self._keeper.wait()

    def is_alive(self) -> bool:
        """Return whether the server's process still runs."""
        return self._keeper is not None and self._keeper.poll() is None

    def _wait_until_healthy(self) -> None:
        deadline = self.started_s + self.settings.start_timeout_s
        while time.monotonic() < deadline:
            if not self.is_alive():
                raise self.error(f"the server ended with status {self._keeper.returncode}")
            if self._is_healthy():
                return
            time.sleep(0.1)
        raise self.error(f"the server was not healthy within {self.settings.start_timeout_s:g} s")

    def version(self) -> str | None:
        """Return the version of vLLM that runs, None if the server does not tell."""
        answer = self._get("/version")
        return json.loads(answer)["version"] if answer else None

    def _is_healthy(self) -> bool:
        return self._get("/health") is not None

    def _get(self, path: str) -> bytes | None:
        # Not by urllib, which would look for a server beside us behind the cluster's proxy.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):  # refused, timed out, or half an answer
            return None
        finally:
            connection.close()

    def error(self, message: str) -> ServerError:
        """Build the error for a server that failed, with the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(_SETTLE_S)
        lines = self.log_path.read_text(errors="replace").splitlines()
        text = "\n".join(lines).lower()
        killed = not self.is_alive() and self._keeper.returncode == 256 - 9
        return ServerError(
            message,
            "\n".join(lines[-LOG_TAIL_LINES:]),
            killed or any(sign in text for sign in _OUT_OF_MEMORY),
        )


@contextlib.contextmanager
def model_folder(config_path: Path):
    """Yield a temporary folder with the LLM's `config.json`, for servers with random weights."""
    with tempfile.TemporaryDirectory(prefix="sextant-model-") as folder:
        shutil.copy(config_path, Path(folder) / "config.json")
        yield Path(folder)
