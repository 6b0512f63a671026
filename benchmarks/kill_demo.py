"""Kill Snakemake at random moments of the demo, on real vLLM, and compare with a run left alone.

Prints, per kill, when it came, what was being done, and the seconds until no process and no
scratch folder was left; then whether the results equal those of the run left alone.

    .venv/bin/python benchmarks/kill_demo.py --kills 5 --llms 1 --profiles 1
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interrupted import InterruptedRun, essence, scratch_place
from project import Project
from real_vllm import PYTHON

TARGET = "results/points/measured/point.parquet"


def shortened_demo(folder: Path, n_llms: int, n_profiles: int) -> Project:
    """Return a copy of the demo with a scenario of fixed requests beside that of users."""
    project = Project(folder)
    project.set_config(engine__python=str(PYTHON))
    project.set_config(engine__start_timeout_s=600)  # on a machine that does other things too
    for name, n_rows in (("llms", n_llms), ("gpu_profiles", n_profiles)):
        lines = project.sheet(name).read_text().splitlines(keepends=True)
        project.sheet(name).write_text("".join(lines[: 1 + n_rows]))
    header = "scenario_id kind levels warmup_s duration_s n_requests"
    rows = [("users-1-8", "closed_loop", "1,8", 1, 5, ""), ("fixed", "batch", "4,16", 1, "", 32)]
    project.write_sheet("scenarios", header, *rows)
    rows = [("*", "*", "conversation", scenario) for scenario, *_ in rows]
    header = "llm_ids gpu_profile_ids workload_id scenario_id"
    project.write_sheet("benchmarks", header, *rows)
    return project


def main() -> None:
    """Kill, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--llms", type=int, default=1)
    parser.add_argument("--profiles", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder, scratch_place() as scratch:
        project = shortened_demo(Path(folder), options.llms, options.profiles)
        run = InterruptedRun(project, Path(scratch), TARGET)
        results = project.folder / "results"
        began_s = time.monotonic()
        run.finish()
        took_s = time.monotonic() - began_s
        expected = essence(results)
        print(f"left alone: {took_s:.0f} s, {len(expected['cells'])} cells", flush=True)
        shutil.rmtree(results)
        n_killed = 0
        while n_killed < options.kills:
            after_s = moments.uniform(2, 0.7 * took_s)
            snakemake, began_s = run.start(), time.monotonic()
            while snakemake.poll() is None and time.monotonic() < began_s + after_s:
                time.sleep(0.05)
            if snakemake.poll() is not None:
                assert snakemake.returncode == 0, run.logs()
                print("finished; equal:", essence(results) == expected, flush=True)
                shutil.rmtree(results)
                continue
            doing = run.activity()
            left_s = run.kill(snakemake)
            run.check_files()
            run.unlock()
            n_killed += 1
            print(
                f"killed after {after_s:.0f} s, all gone {left_s:.1f} s later; {doing}", flush=True
            )
        run.finish()
        print("finished; equal:", essence(results) == expected)


if __name__ == "__main__":
    main()
