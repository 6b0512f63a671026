"""The module that an installation builds gives what Numba gives at run time, without Numba."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sextant.simulate import building, compiling, routing, steps
from support import ROOT

SIMULATE = """
import sys, hashlib, numpy as np
from sextant.simulate.cache_depths import cache_depths
from sextant.simulate.scaling import Autoscaler, Reactive, Startup, Trigger, simulate_scaled
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate, simulate_closed
from sextant.workload.requests import RequestStream

n = 3000
rng = np.random.default_rng(7)
law = StepLaw(2.0, 5.0, 0.02, 5e-5, 0.02, 1e-7, 0.5, 8.0, 0.1, 0.9, 3.0)
parent = np.where(np.arange(n) % 3 == 0, -1, np.arange(n) - 1)
requests = RequestStream.of(
    np.cumsum(rng.exponential(0.08, n)), rng.integers(10, 3000, n), rng.integers(1, 500, n),
    rng.integers(-1, 20, n), rng.integers(0, 2000, n), parent, rng.exponential(2.0, n),
)
plain = Scheduler(60_000, 64, 2048, timeout_s=120.0)
results = [
    simulate(requests, plain, law, n_replicas=3, router="prefix", window_s=10.0),
    simulate(requests, Scheduler(40_000, prompts_first=True), law, n_replicas=2),
    simulate(requests, Scheduler(40_000, reserved_share=1.0, is_asynchronous=False), law),
    simulate_closed(20, requests, plain, law, duration_s=60.0, warmup_s=5.0, n_replicas=2),
]
policy = Reactive((Trigger("requests_in_flight", 8.0),), 4)
scaled, scaling = simulate_scaled(
    requests, plain, law, Autoscaler(policy, Startup(5.0, 0.5)), duration_s=240.0
)
digest = hashlib.sha256(repr([*scaling.time_s, *scaling.ready]).encode())
for result in (*results, scaled):
    for name, values in vars(result).items():
        of_array = values.tobytes() if hasattr(values, "tobytes") else values
        digest.update(f"{name} {of_array}".encode())
    digest.update(result.gaps.counts.tobytes())
blocks = rng.integers(0, 300, n)
for values in cache_depths(blocks.astype(np.int32), np.arange(10, n + 1, 10)):
    digest.update(values.tobytes())
print(digest.hexdigest(), sum(result.preemptions.sum() for result in results))
print(sorted({"numba", "llvmlite"} & set(sys.modules)))
"""
COUNT_STEPS = """
import sys, threading, time, numpy as np
from sextant.simulate import routing, world
from sextant.simulate.server import Scheduler, StepLaw
from sextant.workload.requests import RequestStream

def tables(n):
    requests = RequestStream.of(np.arange(n) * 0.05, np.full(n, 500), np.full(n, 200))
    law = StepLaw(2.0, 5.0, 0.02, 5e-5, 0.02)
    return world.make_world(requests, Scheduler(99_999), law, 1, warmup_s=0.0)

def simulate(steps_during):
    before = steps
    routing.route(many, 0, np.arange(1), np.inf, 0)
    routing.finish(many)
    steps_during.append(steps - before)

few, many = tables(5), tables(20_000)
routing.route(few, 0, np.arange(1), np.inf, 0)  # compiled now, if it is not built
routing.finish(few)
steps, steps_during = 0, []
sys.setswitchinterval(60)  # threads take turns only where one of them releases the GIL
threading.Thread(target=simulate, args=(steps_during,)).start()
while not steps_during:
    steps += 1
    if steps % 1000 == 0:
        time.sleep(1e-4)
print(steps_during[0])
"""
"""Prints how many steps one thread makes while another one simulates."""


def run(code: str, library: Path) -> list[str]:
    """Return the lines that code prints with the library in a folder."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(library)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of two libraries: `built` with the module, `plain` without it.

    One is the checkout, the other a copy: Numba keeps what it compiled by folder.
    """
    folder = tmp_path_factory.mktemp("library")
    ignored = shutil.ignore_patterns("built_*", ".building-*", "__pycache__")
    shutil.copytree(ROOT / "scripts" / "sextant", folder / "sextant", ignore=ignored)
    if compiling.BUILT is not None:
        return {"built": ROOT / "scripts", "plain": folder}
    build = "from sextant.simulate.building import build\nfrom pathlib import Path\n"
    run(f"{build}build(Path({str(folder / 'sextant' / 'simulate')!r}))", ROOT / "scripts")
    return {"built": folder, "plain": ROOT / "scripts"}


def test_it_gives_the_same_bytes_as_numba_and_loads_none_of_it(libraries: dict[str, Path]) -> None:
    built = run(SIMULATE, libraries["built"])
    plain = run(SIMULATE, libraries["plain"])

    assert built[0] == plain[0]
    assert int(built[0].split()[1]) > 0  # with preemptions
    assert built[1] == "[]"
    assert plain[1] == "['llvmlite', 'numba']"


def test_other_source_has_another_module(libraries: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(libraries["built"] / "sextant", tmp_path / "sextant")
    with (tmp_path / "sextant" / "simulate" / "steps.py").open("a") as file:
        file.write("# an edit\n")

    code = "from sextant.simulate import compiling\nprint(compiling.BUILT)"

    assert run(code, tmp_path) == ["None"]
    assert run(code, libraries["built"]) != ["None"]


def test_other_threads_run_while_it_simulates(libraries: dict[str, Path]) -> None:
    for library in libraries.values():
        assert int(run(COUNT_STEPS, library)[0]) > 0


def test_all_functions_that_python_calls_are_built() -> None:
    called = set()
    for path in (ROOT / "scripts" / "sextant").rglob("*.py"):
        if path != Path(building.__file__):
            seen = Calls()
            seen.visit(ast.parse(path.read_text()))
            called |= seen.names

    assert called == {function.__name__ for function in building.signatures()}


class Calls(ast.NodeVisitor):
    """Names of compiled functions that functions which are not compiled call."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not any(isinstance(by, ast.Name) and by.id == "compiled" for by in node.decorator_list):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(ast.Name("routing" | "steps" | "tables"), name) if hasattr(
                routing, name
            ) or hasattr(steps, name):
                self.names.add(name)
            case ast.Name("compute_depths" as name):
                self.names.add(name)
        self.generic_visit(node)
