"""Every command line of every page is one that the real command line takes."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from docs_pages import PAGES, ROOT, Line, commands, name, shell_text

import kvxfer.cli
import kvxfer_router.cli
import kvxfer_vllm.pd.cli
from kvxfer_vllm.config import read_settings

PROGRAMS: dict[str, click.Command] = {
    "kvxfer": kvxfer.cli.main,
    "kvxfer-router": kvxfer_router.cli.main,
    "kvxfer_router": kvxfer_router.cli.main,
    "kvxfer_vllm.pd": kvxfer_vllm.pd.cli.main,
}
CONFIG_KEYS = {
    "kv_connector",
    "kv_connector_module_path",
    "kv_role",
    "engine_id",
    "kv_buffer_device",
    "kv_load_failure_policy",
    "kv_connector_extra_config",
}


@pytest.fixture(autouse=True)
def files_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)


def judge(line: Line) -> str:
    """What the command line says against it; empty where nothing."""
    program, rest = Path(line.words[0]).name, list(line.words[1:])
    if program.startswith("python"):
        if rest[:1] != ["-m"]:
            return ""
        program, rest = rest[1], rest[2:]
        if program not in PROGRAMS:
            return judge_module(program, rest)
    try:
        parse(PROGRAMS[program], program, rest)
    except click.exceptions.Exit:
        return ""
    except click.MissingParameter as error:
        return error.format_message() if line.whole else ""
    except click.UsageError as error:
        return error.format_message()
    return ""


def judge_module(module: str, rest: list[str]) -> str:
    if importlib.util.find_spec(module) is None:
        return f"no module {module}"
    paths = [word for word in rest if word.startswith("tests/")] if module == "pytest" else []
    gone = [path for path in paths if not (ROOT / path.partition("::")[0]).exists()]
    return f"no {gone[0]}" if gone else ""


def parse(command: click.Command, given: str, rest: list[str]) -> None:
    while isinstance(command, click.Group) and rest:
        context = command.make_context(given, rest)
        words = [*context._protected_args, *context.args]
        if not words:
            return
        given_name, found, rest = command.resolve_command(context, words)
        assert found is not None
        assert given_name is not None
        command, given = found, given_name
    if not isinstance(command, click.Group):
        command.make_context(given, rest)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_a_page_are_taken(page: Path) -> None:
    lines = list(commands(page.read_text(encoding="utf-8")))
    wrong = {" ".join(line.words): fault for line in lines if (fault := judge(line))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("    kvxfer demo --no-such-option\n", "--no-such-option"),
        ("    kvxfer demon\n", "demon"),
        ("```console\n$ kvxfer conform \\\n   --long\n```\n", "--transport"),
        ("    kvxfer sim --seeds none\n", "none"),
        ("say `kvxfer layout explain --picture` to it\n", "--picture"),
        ("    .venv-pd/bin/python -m kvxfer_vllm.pd check --mode sideways\n", "sideways"),
        ("    python -m pytest tests/no/such.py\n", "such.py"),
        ("    make test && VAR=1 kvxfer bench core --live 1 > out\n", "--live"),
    ],
)
def test_a_wrong_command_is_found(text: str, words: str) -> None:
    (fault,) = (fault for line in commands(text) if (fault := judge(line)))
    assert words in fault


def test_a_right_one_is_seen_and_taken() -> None:
    text = (
        "    .venv/bin/kvxfer demo --mode all   # all three\n    kvxfer explore        a remark\n"
        "```\nkvxfer sim --seeds 20 \\\n  --jobs 2\n```\n`kvxfer conform`\n"
    )
    lines = list(commands(text))
    assert sorted(line.words[1:] for line in lines) == [
        ("conform",),
        ("demo", "--mode", "all"),
        ("explore",),
        ("sim", "--seeds", "20", "--jobs", "2"),
    ]
    assert [judge(line) for line in lines] == [""] * 4


def transfer_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    for page in PAGES:
        for block in shell_text(page.read_text(encoding="utf-8")):
            for piece in block.split("--kv-transfer-config ")[1:]:
                yield name(page), json.loads(piece.split("'")[1])


def test_every_config_of_vllm_is_one_that_the_connector_takes() -> None:
    configs = list(transfer_configs())
    assert len(configs) >= 4
    for page, config in configs:
        assert config.keys() <= CONFIG_KEYS, page
        adapter = importlib.import_module(config["kv_connector_module_path"])
        assert config["kv_connector"] in adapter.__all__, page
        extra = config.get("kv_connector_extra_config", {})
        read_settings(
            extra,
            engine_id=config.get("engine_id", "e"),
            kv_role=config["kv_role"],
            failure_policy=config.get("kv_load_failure_policy", "fail"),
            host="127.0.0.1",
            port=5600,
            data_parallel_index=0,
            randomized_ids=True,
            named_mode=promised(config["kv_connector"]),
            step_tokens=2048,
        )
        assert extra.keys() <= known_options(), page


def promised(connector: str) -> str:
    """The mode that a class's name promises; empty where it promises none."""
    return next((mode for mode in ("push", "pull") if mode.title() in connector), "")


def known_options() -> set[str]:
    """The first column of the table of options in docs/vllm.md."""
    text = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    table = text.partition("## Options")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {option.strip(" `") for cell in cells for option in cell.split(",")}
