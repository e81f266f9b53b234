"""`kvxfer demo` as a user meets it: output, exit status, nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvxfer.cli import main
from kvxfer.demo import pair, producers, run
from kvxfer.demo.cache import EngineCache
from kvxfer.demo.result import DemoResult
from kvxfer.demo.workload import DemoOptions
from kvxfer.errors import TransportFault
from kvxfer.status import Status
from kvxfer.transport.registry import available

SMALL = ["demo", "--requests", "3", "--prompt-max", "70", "--tokens", "2"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*SMALL, *arguments])


def test_json_is_one_line_on_stdout_and_the_rest_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "timeline.html"
    done = invoke("--json", "--timeline", str(path))
    assert done.exit_code == 0, done.output
    (text,) = done.stdout.splitlines()
    line = json.loads(text)
    assert (line["requests"], line["identical"]) == (3, 3)
    assert (line["mode"], line["transport"]) == ("push+pull", "loopback")
    assert (line["leaked"], line["quarantined"]) == (0, 0)
    assert line["ttft_ms_p50_push"] > 0
    assert line["ttft_ms_p50_pull"] > 0
    assert "identical" in done.stderr
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_without_json_the_tables_are_on_stdout() -> None:
    done = invoke("--mode", "push", "--decode-tp", "2", "--decode-block-size", "24")
    assert done.exit_code == 0, done.output
    assert "3 of 3 identical" in done.stdout
    assert done.stderr == ""


def test_wrong_tokens_exit_1_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "answer_alone", lambda *_: (1, 2))
    done = invoke("--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["identical"] == 0
    assert "push-0000: tokens differ" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--transport", "nothing-like-this"], "nothing-like-this"),
        (["--requests", "0"], "requests = 0: at least 1"),
        (["--prompt-min", "100"], "prompt_max = 70: at least 100"),
        (["--decode-tp", "9"], "ranks = 9"),
        (["--cache-order", "LBHN"], "order"),
        (["--mode", "sideways"], "sideways"),
        (["--timeline", "no-such-folder/t.html"], "no-such-folder/t.html: no such folder"),
    ],
)
def test_what_cannot_be_done_exits_2_with_the_reason(arguments: list[str], words: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise TransportFault(f"open {name}", Status.LIBRARY_MISSING, "pip install this[that]")

    monkeypatch.setattr(pair, "open_transport", missing)
    done = invoke("--transport", "far")
    assert done.exit_code == 2
    assert "pip install this[that]" in done.stderr


def test_a_run_that_breaks_off_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("no such table")

    monkeypatch.setattr(EngineCache, "table", broken)
    done = invoke("--json")
    assert done.exit_code == 1
    assert "died: RuntimeError: no such table" in done.stderr
    assert done.stdout == ""


def interrupt_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the second request of push has been answered."""
    right: Callable[..., DemoResult] = run.run_demo

    def interrupted(options: DemoOptions, progress: run.Progress, record: str) -> DemoResult:
        def then_stop(phase: str, done: int) -> None:
            progress(phase, done)
            if (phase, done) == ("push", 2):
                signal.raise_signal(signal.SIGINT)

        return right(options, then_stop, record)

    monkeypatch.setattr(run, "run_demo", interrupted)


def test_ctrl_c_exits_130_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    interrupt_in_the_middle(monkeypatch)
    done = invoke("--json")
    assert done.exit_code == 130
    assert done.stdout == ""
    assert set(threading.enumerate()) <= before


def works(transport: str) -> bool:
    return any(one.name == transport and one.status == Status.OK for one in available())


@pytest.mark.skipif(not works("nixl"), reason="nixl is not installed here")
def test_two_processes_over_nixl_and_no_process_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(producers, "Popen", noted)
    done = invoke("--transport", "nixl", "--json")
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout)
    assert (line["identical"], line["processes"], line["leaked"]) == (3, 2, 0)
    interrupt_in_the_middle(monkeypatch)
    assert invoke("--transport", "nixl").exit_code == 130
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
