"""Ids may be almost any text; the names of their files are safe and never those of another."""

import itertools
import re
import subprocess

import pytest

from sextant.base.sheets import (
    comparable,
    file_name,
    id_of_file_name,
    id_problem,
    selectable_problem,
)

HOSTILE = (
    *("org/name", "..", ".", "../../etc/passwd", "/etc/passwd", ".hidden", "-rf", "--delete"),
    *("<script>alert(1)</script>", '" onload="x', "it's", "$(touch owned)", "`touch owned`"),
    *("a;b&c|d>e", "%j-%A_%a", "{source}", "@v", "a b", "a\\b", "~root", "~2E.", "#1"),
    *("日本語", "Ärger", "😀", "*?[x]", "a=b:c", "CON"),
)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *[("Llama-3.1_8B+x", "Llama-3.1_8B+x"), ("org/name", "org~2Fname"), ("..", "~2E.")],
        *[("-rf", "~2Drf"), ("a..-b", "a..-b"), ("é", "~C3~A9"), ("e\u0301", "e~CC~81")],
        *[("~2F", "~7E2F"), ("$(x) %j", "~24~28x~29~20~25j")],
    ],
)
def test_what_is_safe_stays_and_every_other_byte_is_spelt_out(given: str, name: str) -> None:
    assert file_name(given) == name
    assert id_of_file_name(name) == given


@pytest.mark.parametrize("given", HOSTILE)
def test_a_file_name_is_one_plain_path_component_that_no_shell_expands(given, tmp_path) -> None:
    name = file_name(given)
    assert re.fullmatch(r"[A-Za-z0-9_+~][A-Za-z0-9._+~-]*", name)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / name).touch()
    assert list(tmp_path.rglob("*")) == [tmp_path / "below", tmp_path / "below" / name]
    script = f"printf %s results/{name}"
    assert subprocess.check_output(["bash", "-c", script], text=True) == f"results/{name}"


def test_no_two_ids_have_the_same_name() -> None:
    # Every text of up to three of these, the encoding's own mark and digits among them.
    texts = ["".join(t) for n in (1, 2, 3) for t in itertools.product("~2Fa/.-é", repeat=n)]
    assert len({file_name(text) for text in texts}) == len(texts) == 8 + 64 + 512
    assert all(id_of_file_name(file_name(text)) == text for text in texts)
    # A name that no id has is itself.
    assert all(id_of_file_name(name) == name for name in ("a~41b", "x~2", "~c3~a9", "~FF", "plain"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *[("", "0 characters"), ("x" * 101, "101 characters")],
        *[("日" * 14, "file name of 126 characters")],
        *((text, "white space at its ends") for text in (" a", "a\n")),
        *((f"a{chr(n)}b", f"U+{n:04X}") for n in (0, 0x1B, 0x202E, 0x200B, 0x2028, 0xA0)),
    ],
)
def test_texts_that_are_no_ids(given: str, said: str) -> None:
    assert said in id_problem(given)


def test_what_lists_cannot_hold_cannot_be_selected() -> None:
    assert "cannot be selected" in selectable_problem("*")
    assert "cannot be selected" in selectable_problem("a,b")
    assert selectable_problem("a*b") is None


def test_ids_of_the_same_look_are_found() -> None:
    assert comparable("Llama") == comparable("llama")
    assert comparable("é") == comparable("E\u0301")
    assert comparable("llama") != comparable("llama2")
    # What looks different is different to a file system that ignores case, too.
    assert len({file_name(name).casefold() for name in HOSTILE}) == len(HOSTILE)


@pytest.mark.parametrize("given_id", ["a" * 20, "x" + "ab" * 20, "é" * 20])
def test_ids_that_snakemake_takes_for_periodic_are_refused(given_id: str) -> None:
    assert "20 equal pieces" in id_problem(given_id)
    assert id_problem(given_id[:-1] + "b" if given_id[-1] != "b" else given_id + "c") is None
