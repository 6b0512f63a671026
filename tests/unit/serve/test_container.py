"""The container's file: two stages, of which the second has no compiler and no root."""

import json
import re
import shlex

from support import ROOT

INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"),
}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line]


def test_the_second_stage_has_no_compiler_and_runs_as_nobody_s_root() -> None:
    names = [name for name, _ in instructions()]
    assert set(names) <= INSTRUCTIONS
    second = instructions()[len(names) - names[::-1].index("FROM") :]
    assert names.count("FROM") == 2
    assert not any("apt-get" in words or "gcc" in words for _, words in second)
    assert [words for name, words in second if name == "USER"] == ["10001"]
    for name, words in instructions():
        if name == "RUN":
            assert shlex.split(words)


def test_it_starts_the_server_with_a_token() -> None:
    said = dict(instructions())
    assert json.loads(said["ENTRYPOINT"]) == ["/opt/sextant/bin/sextant"]
    words = json.loads(said["CMD"])
    assert words[0] == "serve"
    options = {word for word in words if word.startswith("--")}
    assert options == {"--host", "--token-env"}
    for page in ("docs/serve.md", ".github/workflows/ci.yml"):
        assert words[-1] in (ROOT / page).read_text()
