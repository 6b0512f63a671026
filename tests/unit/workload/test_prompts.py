"""Prompts: exact lengths, never the same twice, ids inside the vocabulary; from text, too."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sextant.base.errors import InputError
from sextant.workload.prompts import CorpusTokens, RandomTokens, load_prompt_source, prompt_text
from support import ROOT

TEXT = ROOT / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level BPE like those of today's LLMs, small, trained on our own documentation."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet, show_progress=False)
    trained.train([str(TEXT)], trainer)
    return trained


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(80, 50_000), st.integers(0, 9))
def test_lengths_ids_and_uniqueness(lengths, vocab_size, seed):
    prompts = RandomTokens(vocab_size).prompts(lengths, seed)
    assert [len(prompt) for prompt in prompts] == lengths
    assert len({tuple(prompt.tolist()) for prompt in prompts}) == len(lengths)
    for prompt, again in zip(prompts, RandomTokens(vocab_size).prompts(lengths, seed), strict=True):
        assert prompt.min() >= 16 and prompt.max() < vocab_size
        assert np.array_equal(prompt, again)


def test_prompts_of_a_text_are_runs_of_it(tokenizer):
    source = load_prompt_source(TEXT, tokenizer)
    text = TEXT.read_text()
    for length, prompt in zip([1, 5, 300], source.prompts([1, 5, 300], 0), strict=True):
        assert len(prompt) == length and prompt.dtype == np.int32
    assert tokenizer.decode(prompt.tolist()).strip("\ufffd") in text


def test_no_two_prompts_begin_alike_across_calls_and_lengths(tokenizer):
    source = load_prompt_source(TEXT, tokenizer)
    rng = np.random.default_rng(0)
    calls = [source.prompts(rng.integers(2, 400, 200), seed) for seed in range(5)]
    begun = [p[:16].tobytes() for prompts in calls for p in prompts if len(p) >= 16]
    assert len(set(begun)) == len(begun) > 900


@pytest.mark.parametrize(
    ("source", "lengths", "message"),
    [
        (lambda: RandomTokens(100), [3, 0], "field 'input_tokens': a prompt of 0 tokens"),
        (lambda: RandomTokens(16), [3], "field 'vocab_size': a vocabulary of 16"),
        (lambda: RandomTokens(20), [1] * 5, "5 different prompts of 1 tokens from 4 token ids"),
        (lambda: CorpusTokens([1, 2, 3]), [5], "a prompt of 5 tokens from a text of 3"),
        (lambda: CorpusTokens([1, 2, 3]), [0], "a prompt of 0 tokens"),
    ],
)
def test_impossible_prompts(source, lengths, message):
    with pytest.raises(InputError, match=message):
        source().prompts(lengths, 0)


def test_texts_and_tokenizers_that_do_not_serve(tmp_path, tokenizer):
    with pytest.raises(InputError, match="no text to read"):
        load_prompt_source(tmp_path / "none.txt", tokenizer)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match="there is no text"):
        load_prompt_source(tmp_path / "empty.txt", tokenizer)
    with pytest.raises(InputError, match=r"field 'vocab_size': the text has token id .* of 300"):
        load_prompt_source(TEXT, tokenizer, vocab_size=300)
    assert load_prompt_source(TEXT, tokenizer, vocab_size=800).n_tokens > 1000


def test_every_run_of_a_small_text_is_used_before_it_is_too_small():
    source = CorpusTokens(range(20))
    begun = {int(prompt[0]) for seed in range(4) for prompt in source.prompts([16] * 5, seed)}
    assert begun == set(range(20))
    with pytest.raises(InputError, match="no unused prompt of 17 tokens is left in a text of 20"):
        source.prompts([17], 9)
    with pytest.raises(InputError, match="no unused prompt of 1 tokens"):
        CorpusTokens([5, 6, 5]).prompts([1, 1, 1], 0)


def test_prompts_of_a_conversation_file_are_its_prompts(tmp_path, tokenizer):
    said = [{"from": "human", "value": "Sextant"}, {"from": "gpt", "value": "NEVER"}]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"conversations": said}, {"prompt": " workload", "response": "N"}]))
    source = load_prompt_source(path, tokenizer)
    wanted = [tokenizer.encode(text).ids for text in ("Sextant", " workload")]
    (prompt,) = source.prompts([source.n_tokens], 0)
    assert sorted(prompt.tolist()) == sorted(wanted[0] + wanted[1])


def test_no_special_token_gets_into_a_prompt(tmp_path, tokenizer):
    from tokenizers.processors import TemplateProcessing

    marked = Tokenizer.from_str(tokenizer.to_str())
    marked.add_special_tokens(["<s>"])
    start = marked.token_to_id("<s>")
    marked.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    marked.save(str(tmp_path / "tokenizer.json"))
    source = load_prompt_source(TEXT, tmp_path / "tokenizer.json")
    assert start not in source.prompts([source.n_tokens], 0)[0]


def test_text_of_a_prompt_has_exactly_its_tokens(tokenizer):
    lengths = np.random.default_rng(1).integers(1, 200, 300)
    prompts = load_prompt_source(TEXT, tokenizer).prompts(lengths[lengths > 1], 0)
    prompts += RandomTokens(tokenizer.get_vocab_size()).prompts(lengths[:60], 0)
    for prompt in prompts:
        encoded = tokenizer.encode(prompt_text(tokenizer, prompt), add_special_tokens=False)
        assert len(encoded) == len(prompt)
    ids = tokenizer.encode("The whole experiment is a folder").ids
    assert prompt_text(tokenizer, ids) == "The whole experiment is a folder"


def test_a_tokenizer_that_cannot_give_a_length_is_an_error():
    # Without a pre-tokenizer every text is one unknown word.
    mute = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    with pytest.raises(InputError, match="no text of exactly 2 tokens was found, but one of 1"):
        prompt_text(mute, np.array([0, 0]))
