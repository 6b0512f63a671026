"""Users' prompt and response files: their requests counted, their faults named."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from sextant.base.errors import InputError
from sextant.workload.prompts import load_tokenizer, read_conversations


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """A tokenizer with one token a word, so that lengths can be counted by eye."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def write(path, items, *, lines=False):
    text = "\n".join(map(json.dumps, items)) if lines else json.dumps(items)
    text = text.replace("\\u2028", "\u2028")
    path.write_text(text, encoding="utf-8")
    return path


def turns(*said):
    return {"conversations": [{"from": who, "value": text} for who, text in said]}


def lengths(found):
    return found[0][["input_tokens", "output_tokens"]].to_numpy().tolist()


def test_each_response_is_a_request_with_the_conversation_before_it(tmp_path, words):
    first = [("system", "be brief"), ("human", "how are you"), ("gpt", "well thanks")]
    first += [("human", "and now"), ("gpt", "still well")]
    items = [turns(*first), turns(("human", "one"), ("gpt", "two three four"))]
    found = read_conversations(write(tmp_path / "c.json", items), words)
    assert lengths(found) == [[5, 2], [9, 2], [1, 3]]
    assert found[1] == 2 and not any(found[2].values())


CHAT = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        # Alpaca: instruction and input together.
        ([{"instruction": "add these", "input": "1 and 2", "output": "3"}], [[5, 1]]),
        ([{"instruction": "say hello", "input": "", "output": "hello you"}], [[2, 2]]),
        ([{"prompt": "a\u2028b", "response": "c"}], [[2, 1]]),  # a line end within a text
        ([{"prompt": "a \ud83d", "response": "c"}] * 2, [[2, 1]] * 2),  # half a surrogate pair
        ([{"prompt": "a b", "completion": "c"}], [[2, 1]]),
        ([{"messages": CHAT}], [[2, 1]]),
        # Turns of one side in a row are one.
        ([turns(("human", "a"), ("human", "b c"), ("gpt", "d"), ("gpt", "e"))], [[3, 2]]),
    ],
)
@pytest.mark.parametrize("lines", [True, False])
def test_every_layout_is_read_as_an_array_and_as_lines(tmp_path, words, items, expected, lines):
    path = write(tmp_path / "items.json", items, lines=lines)
    path.write_text("\ufeff" + path.read_text().replace("\n", "\r\n\r\n"), encoding="utf-8")
    assert lengths(read_conversations(path, words)) == expected


def test_what_makes_no_request_is_counted(tmp_path, words):
    items = [
        turns(("gpt", "nobody asked"), ("human", "a"), ("gpt", "b")),
        turns(("human", "a"), ("gpt", " \n")),
        turns(("human", ""), ("gpt", "b")),
        turns(("human", "a"), ("gpt", "b"), ("human", "c")),
        {"prompt": "a", "response": None},
        turns(),
    ]
    found = read_conversations(write(tmp_path / "c.json", items), words)
    # Of the first item the input has what was said before.
    assert lengths(found) == [[3, 1], [1, 1]]
    assert found[1] == 6
    names = ("responses_without_text", "responses_without_prompt", "prompts_without_response")
    counts = dict(zip(names, (2, 2, 1), strict=True)) | {"requests_without_tokens": 0}
    assert found[2] == counts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[("[{]", "line 1: not JSON"), ("[[1]]", "item 1: not an object")],
        ('{"prompt": "a", "response": "b"}\n{oops}', "line 2: not JSON"),
        ('[{"text": "a"}]', "item 1: neither turns nor a prompt"),
        ('[{"instruction": "a"}]', "field 'output': item 1: missing"),
        ('[{"prompt": "a", "response": 7}]', "field 'response': item 1: int instead of text"),
        ('{"prompt": ["a"], "response": "b"}', "line 1, field 'prompt': list instead of text"),
        ('[{"conversations": "a"}]', "field 'conversations': item 1: not a list of turns"),
        (json.dumps([turns(("tool", "a"))]), "'from': item 1: a turn of 'tool'. Fix: use one of"),
        ('[{"prompt": "a", "response": ""}]', "no prompt with a response in 1 items"),
        ("", "no prompt with a response in 0 items"),
    ],
)
def test_faults_are_named(tmp_path, words, text, message):
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_conversations(path, words)
    assert str(path) in str(caught.value) and "Fix:" in str(caught.value)


def test_a_tokenizer_is_loaded_from_its_file_or_folder_without_its_limit(tmp_path, words):
    limited = Tokenizer.from_str(words.to_str())
    limited.enable_truncation(2)
    limited.enable_padding(length=8)
    limited.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert len(load_tokenizer(path).encode("a b c d")) == 4


def test_files_and_tokenizers_that_cannot_be_read(tmp_path, words):
    with pytest.raises(InputError, match="there is no such file"):
        read_conversations(tmp_path / "none.json", words)
    (tmp_path / "latin.json").write_bytes(b'[{"prompt": "\xe9"}]')
    with pytest.raises(InputError, match="not UTF-8"):
        read_conversations(tmp_path / "latin.json", words)
    with pytest.raises(InputError, match="there is no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
