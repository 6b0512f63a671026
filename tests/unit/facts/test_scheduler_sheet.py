"""How engines schedule as they ship, by version and GPU."""

import pytest

from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.facts.engine import scheduler_sheet
from sextant.facts.gpu import profile_of_id


def sizes(engine: str, version: str, profile_id: str) -> tuple[int, int]:
    sheet = scheduler_sheet(engine, version, profile_of_id(profile_id).devices)
    return sheet.max_num_seqs, sheet.max_num_batched_tokens


@pytest.mark.parametrize(
    ("version", "profile_id", "expected"),
    [
        ("0.11.0", "1xH100-80GB", (1024, 8192)),
        ("0.19.0", "8xH200-141GB", (1024, 8192)),
        ("0.19.0", "1xRTX-PRO-6000-96GB", (1024, 8192)),
        ("0.19.0", "1xA100-80GB", (256, 2048)),
        ("0.19.0", "1xL40S-48GB", (256, 2048)),
        ("0.19.0", "1xRTX-4090-24GB", (256, 2048)),
        ("0.19.0", "1xB200-180GB", (1024, 16384)),
        ("0.28.0", "1xB200-180GB", (1024, 16384)),
        ("", "1xB200-180GB", (1024, 16384)),
        ("", "1xA100-80GB", (256, 2048)),
        ("0.6.6", "1xH100-80GB", (256, 2048)),
    ],
)
def test_vllm_schedules_by_version_memory_and_gpu(version, profile_id, expected):
    """`get_batch_defaults` in vllm/engine/arg_utils.py, and start-up logs on B200."""
    assert sizes("vllm", version, profile_id) == expected


@pytest.mark.parametrize(
    ("profile_id", "tokens", "graph_sequences"),
    [
        ("1xT4-16GB", 2048, 8),
        ("1xRTX-4090-24GB", 2048, 24),
        ("4xRTX-4090-24GB", 2048, 80),
        ("1xL40S-48GB", 4096, 32),
        ("1xH100-80GB", 8192, 256),
        ("8xH200-141GB", 8192, 512),
        ("1xB200-180GB", 16384, 512),
    ],
)
def test_sglang_takes_chunks_by_memory(profile_id, tokens, graph_sequences):
    """`_handle_gpu_memory_settings` in python/sglang/srt/server_args.py, 0.5.9."""
    sheet = scheduler_sheet("sglang", "", profile_of_id(profile_id).devices)
    assert (sheet.max_num_batched_tokens, sheet.graph_sequences) == (tokens, graph_sequences)


def test_stated_sizes_win_and_the_default_of_sequences_has_room_in_a_step():
    devices = profile_of_id("1xH100-80GB").devices

    def scheduler(settings: Settings) -> tuple[int, int]:
        made = settings.scheduler(100_000, 1000, devices)
        return made.max_num_seqs, made.max_num_batched_tokens

    assert scheduler(Settings()) == (1024, 8192)
    assert scheduler(Settings(max_num_seqs=64)) == (64, 8192)
    assert scheduler(Settings(64, 4096)) == (64, 4096)
    assert scheduler(Settings(max_num_batched_tokens=512)) == (512, 512)


def test_more_sequences_than_a_step_of_the_gpu_holds_are_refused_as_vllm_does():
    with pytest.raises(InputError, match="2048 tokens a step for 4096 requests"):
        Settings(4096).scheduler(100_000, 1000, profile_of_id("1xA100-80GB").devices)
    devices = profile_of_id("1xH100-80GB").devices
    assert Settings(4096).scheduler(100_000, 1000, devices).max_num_seqs == 4096


def test_copies_of_attention_plan_steps_of_their_own():
    devices = profile_of_id("16xH200-141GB").devices
    one, all_16 = (Settings().scheduler(1_000_000, 1000, devices, copies=n) for n in (1, 16))
    assert (one.max_num_seqs, one.max_num_batched_tokens) == (1024, 8192)
    assert (all_16.max_num_seqs, all_16.max_num_batched_tokens) == (16 * 1024, 16 * 8192)
