"""Where an LLM's `config.json` is, and what the LLM is called."""

from pathlib import Path

from sextant import PROJECT

SHIPPED = PROJECT / "resources" / "llms"


def config_file(hf_config: Path) -> Path:
    """Return the file of an LLM's config: the one that is given, or that of its folder."""
    return hf_config / "config.json" if hf_config.is_dir() else hf_config


def name_of(hf_config: Path) -> str:
    """Return the name of an LLM: its file's, or its folder's if the file is `config.json`."""
    path = config_file(hf_config)
    if path.name == "config.json":
        return path.resolve().parent.name or path.stem
    return path.stem


def shipped_config(llm_id: str) -> Path | None:
    """Return the config of an LLM that ships with this project, None if there is none."""
    path = SHIPPED / f"{Path(llm_id).name}.json"
    return path if path.stem == llm_id and path.is_file() else None
