"""Prompts: exact lengths, never the same twice, ids inside the vocabulary."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.errors import InputError
from sextant.workload import random_token_ids


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(80, 50_000), st.integers(0, 9))
def test_lengths_ids_and_uniqueness(lengths, vocab_size, seed):
    prompts = random_token_ids(lengths, vocab_size, seed)
    assert [len(prompt) for prompt in prompts] == lengths
    assert len({tuple(prompt.tolist()) for prompt in prompts}) == len(lengths)
    for prompt in prompts:
        assert prompt.min() >= 16 and prompt.max() < vocab_size


def test_short_prompts_use_up_a_small_vocabulary_without_repeating():
    # 20 ids are free, so 20 prompts of one token are every one of them.
    prompts = random_token_ids([1] * 20, 36, seed=0)
    assert sorted(int(prompt[0]) for prompt in prompts) == list(range(16, 36))


def test_seed_decides_the_prompts():
    one, same, other = (random_token_ids([5, 6], 1000, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_ids_are_uniform_over_the_vocabulary():
    (tokens,) = random_token_ids([100_000], 116, seed=0)
    counts = np.bincount(tokens, minlength=116)[16:]
    assert counts.min() > 800 and counts.max() < 1200


def test_a_million_tokens_take_well_under_a_second():
    start = time.perf_counter()
    random_token_ids(np.full(1000, 1000), 32_000, seed=0)
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize(
    ("lengths", "vocab_size", "message"),
    [
        ([3, 0], 100, "field 'input_tokens': a prompt of 0 tokens"),
        ([3], 16, "field 'vocab_size': a vocabulary of 16"),
        ([1] * 5, 20, "5 different prompts of 1 tokens from 4 token ids"),
    ],
)
def test_impossible_prompts(lengths, vocab_size, message):
    with pytest.raises(InputError, match=message):
        random_token_ids(lengths, vocab_size, 0)
