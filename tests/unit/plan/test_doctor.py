"""What a machine lacks is named, with what to do."""

from pathlib import Path

from sextant.pages.blocks import as_text
from sextant.plan.doctor import check_machine
from sextant.plan.document import machine_document


def test_a_machine_without_vllm_gpu_and_slurm(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = check_machine(tmp_path / "python", tmp_path / "results")
    found = {check.name: check for check in checks}
    assert found["engine"].is_needed and str(tmp_path / "python") in (found["engine"].fix or "")
    assert found["SLURM"].result == "none" and not found["SLURM"].is_needed
    text = as_text(machine_document(checks))
    assert "missing  engine" in text and "absent   SLURM" in text
    assert "make .venv-vllm/.ready" in text


def test_the_environment_of_vllm_tells_its_version(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho vllm 0.24.0\n")
    python.chmod(0o755)
    engine = check_machine(python, tmp_path)[0]
    assert engine.result == f"vllm 0.24.0 ({python})" and engine.fix is None
