"""Bars and spinners: at a terminal and on standard error alone."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest

SIM = [sys.executable, "-m", "kvxfer", "sim", "--seeds", "3", "--transfers", "5"]


def at_a_terminal(words: list[str]) -> tuple[str, str]:
    """Standard output, and what a terminal on standard error was shown."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        # Reading fails when the last writer has gone.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                shown += piece
        out = command.communicate(timeout=100)[0].decode()
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert command.returncode == 0
    return out, shown.decode(errors="replace")


def test_a_terminal_sees_how_far_it_is() -> None:
    out, shown = at_a_terminal([*SIM, "--json"])
    assert "3/3" in shown
    assert out.startswith("{")
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("words", [SIM, [sys.executable, "-m", "kvxfer", "doctor", "--json"]])
def test_a_log_gets_no_bar(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.stderr == ""
