"""What a machine lacks is named, with what to do."""

from pathlib import Path

from sextant.pages.blocks import as_text
from sextant.plan.doctor import check_machine, check_slurm_profile
from sextant.plan.document import machine_document
from support import ROOT


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


def test_names_that_a_cluster_lacks_are_named(tmp_path, monkeypatch):
    """The profile that ships has placeholders."""
    for name, text in {"sacctmgr": "lab||normal", "sinfo": "gpu"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert check_slurm_profile(ROOT / "workflow/profiles/slurm").state == "ok"  # SLURM is silent
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    check = check_slurm_profile(ROOT / "workflow/profiles/slurm")
    assert check.state == "missing" and "slurm_account: 'default' is none of" in check.result
