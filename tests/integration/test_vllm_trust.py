"""The real vLLM: what it logs of its key, and what it does with weights that are a pickle."""

import json
import pickletools
from dataclasses import replace
from pathlib import Path

import pytest

from real_vllm import CONFIG, NEEDS_VLLM, SETTINGS, SMALL, random_weights
from sextant.bench.cell import model_folder
from sextant.engine.protocol import ServerError, ServerSpec
from sextant.engine.vllm import VLLMServer

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]
KEY = "distinctive0123456789abcdef"


def spec(model: Path) -> ServerSpec:
    return random_weights(model, SMALL, 1024, 256, core=0)


def test_vllm_does_not_log_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: KEY)
    log = tmp_path / "server.log"
    with model_folder(CONFIG) as model, VLLMServer(spec(model), SETTINGS, log):
        text = log.read_text()  # as vLLM wrote it: the key is taken out at the end
    assert "non-default args" in text and "127.0.0.1" in text
    assert KEY not in text


def test_weights_that_are_a_pickle_are_not_read(tmp_path: Path) -> None:
    """A pickle runs what it names; this one would make a file."""
    model, owned = tmp_path / "model", tmp_path / "owned"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(json.loads(CONFIG.read_text())))
    # As pickle writes it: call os.mkdir(owned).
    evil = b"cos\nmkdir\n(V" + str(owned).encode() + b"\ntR."
    assert [code.name for code, *_ in pickletools.genops(evil)][-2:] == ["REDUCE", "STOP"]
    (model / "pytorch_model.bin").write_bytes(evil)
    with (
        pytest.raises(ServerError) as caught,
        VLLMServer(
            replace(spec(model), load_format="safetensors"), SETTINGS, tmp_path / "server.log"
        ),
    ):
        pass
    assert "Cannot find any model weights" in (tmp_path / "server.log").read_text()
    assert not caught.value.is_out_of_memory
    assert not owned.exists()
