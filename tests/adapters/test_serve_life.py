"""`kvxfer pd` with stand-ins for vLLM: starts all or nothing, ends what it started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvxfer_vllm.pd.marks import Mark, end_marked
from kvxfer_vllm.pd.ports import pick_ports
from kvxfer_vllm.pd.processes import members
from kvxfer_vllm.serve.records import RunFolder

FAKE = Path(__file__).with_name("serve_fake_vllm.py")
WAIT_S = 60.0
KVXFER = [sys.executable, "-m", "kvxfer", "pd"]


@attrs.define
class Rig:
    """One set file and the command."""

    file: Path

    @property
    def run(self) -> Path:
        return self.file.parent / ".kvxfer/pd"

    def __call__(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*KVXFER, command, str(self.file), *more], capture_output=True, text=True, check=False
        )

    def mark(self, name: str) -> Mark:
        record = RunFolder(self.run).read(name)
        assert record is not None, f"{name} has no record"
        return record.mark

    def child(self, name: str) -> int:
        """The process that the stand-in started, once it has."""
        until(lambda: "child" in self.log(name))
        return int(re.findall(r"child (\d+)", self.log(name))[0])

    def log(self, name: str) -> str:
        path = self.run / f"{name}.log"
        return path.read_text() if path.exists() else ""


Write = Callable[..., Rig]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes a set file with free ports; what a test leaves running is ended."""
    rigs: list[Rig] = []

    def one(*, top: str = "", hosts: str = "", decode: str = "", router: bool = False) -> Rig:
        ports = pick_ports(5)
        serve = json.dumps([sys.executable, str(FAKE)])
        text = f"""
model = "m"
serve = {serve}
end_s = 5
{top}
{hosts}
[[prefill]]
port = {ports[0]}
kv_port = {ports[1]}
[[decode]]
port = {ports[2]}
kv_port = {ports[3]}
{decode}
"""
        file = tmp_path / "pd.toml"
        file.write_text(text + (f"[router]\nport = {ports[4]}\n" if router else ""))
        rigs.append(Rig(file))
        return rigs[-1]

    yield one
    for rig in rigs:
        if list(rig.run.glob("*.json")):
            assert rig("down", "--grace-s", "0").returncode == 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """True while the process runs; a zombie that waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def states(rig: Rig, *more: str) -> tuple[int, dict[str, str]]:
    done = rig("status", "--json", *more)
    plain = json.loads(done.stdout)
    assert plain["good"] is (done.returncode == 0)
    return done.returncode, {one["name"]: one["state"] for one in plain["programs"]}


def test_up_status_down(write: Write) -> None:
    rig = write(router=True)
    assert states(rig) == (1, {"P0": "absent", "D0": "absent", "router": "absent"})
    up = rig("up")
    assert up.returncode == 0, up.stderr
    assert re.search(r"D0 serves at http://127\.0\.0\.1:\d+ after \d+ s", up.stderr)
    assert [line.split()[0] for line in up.stdout.splitlines()] == ["P0", "D0", "router"]
    assert states(rig) == (0, {"P0": "serves", "D0": "serves", "router": "serves"})
    assert "asked for m" in rig.log("P0")
    assert "D0       serves" in rig("status").stdout
    marks = [rig.mark(name) for name in ("P0", "D0", "router")]
    down = json.loads(rig("down", "--json").stdout)
    assert [(one["name"], one["how"]) for one in down["ended"]] == [
        ("router", "ended"),
        ("P0", "ended"),
        ("D0", "ended"),
    ]
    assert not any(mark.group() for mark in marks)
    assert rig("down").stdout == "nothing of it was started here\n"


def test_only_one_host_of_two(write: Write) -> None:
    hosts = '[hosts]\nhere = "127.0.0.1"\nthere = "127.0.0.2"'
    rig = write(hosts=hosts, decode='host = "there"')
    assert rig("up", "--host", "there").returncode == 0
    assert states(rig) == (1, {"P0": "absent", "D0": "serves"})
    assert states(rig, "--host", "there") == (0, {"D0": "serves"})
    assert rig("up", "--host", "nowhere").returncode == 2
    assert rig("down", "--host", "here").stdout == "nothing of it was started here\n"
    assert "ended" in rig("down").stdout


def test_a_second_up_changes_nothing(write: Write) -> None:
    rig = write()
    assert rig("up").returncode == 0
    before = [rig.mark(name) for name in ("P0", "D0")]
    again = rig("up")
    assert again.returncode == 1
    assert "P0 runs already" in again.stderr
    assert [rig.mark(name) for name in ("P0", "D0")] == before
    assert all(mark.alive() for mark in before)


def test_one_that_dies_at_start_takes_all_with_it(write: Write) -> None:
    rig = write(decode='env = { FAKE_FAULT = "dies" }')
    up = rig("up")
    assert up.returncode == 1
    assert "D0 ended while it started" in up.stderr
    assert "no memory for the cache" in up.stderr
    assert RunFolder(rig.run).read("P0") is None
    if "child" in rig.log("P0"):
        assert not runs(rig.child("P0"))


def test_one_that_never_serves_is_given_up(write: Write) -> None:
    rig = write(top="start_s = 1", decode='env = { FAKE_FAULT = "silent" }')
    up = rig("up")
    assert up.returncode == 1
    assert "D0 is not up in time" in up.stderr


def test_ctrl_c_while_waiting_ends_what_was_started(write: Write) -> None:
    rig = write(decode='env = { FAKE_FAULT = "silent" }')
    up = subprocess.Popen([*KVXFER, "up", str(rig.file)], stderr=subprocess.PIPE, text=True)
    assert up.stderr is not None
    with up.stderr:
        assert "P0 serves" in up.stderr.readline()
        child = rig.child("D0")
        marks = [rig.mark(name) for name in ("P0", "D0")]
        up.send_signal(signal.SIGINT)
        assert up.wait(WAIT_S) == 130
    assert not any(mark.group() for mark in marks)
    assert not runs(child)


def test_down_kills_after_the_grace_and_takes_descendants(write: Write) -> None:
    rig = write(decode='env = { FAKE_FAULT = "stubborn" }')
    assert rig("up").returncode == 0
    mark, child = rig.mark("D0"), rig.child("D0")
    down = json.loads(rig("down", "--json", "--grace-s", "0.3").stdout)
    assert {one["name"]: one["how"] for one in down["ended"]} == {"P0": "ended", "D0": "killed"}
    assert not mark.group()
    assert not runs(child)


def test_a_dead_one_is_seen_and_what_it_left_is_ended(write: Write) -> None:
    rig = write()
    assert rig("up").returncode == 0
    mark, child = rig.mark("D0"), rig.child("D0")
    assert mark.signal(signal.SIGKILL)
    until(lambda: not mark.alive())
    assert states(rig) == (1, {"P0": "serves", "D0": "dead"})
    assert mark.group() == [child]
    down = json.loads(rig("down", "--json").stdout)
    assert {one["name"]: one["how"] for one in down["ended"]} == {"P0": "ended", "D0": "dead"}
    assert not mark.group()


def test_a_stranger_with_a_recorded_number_is_left_alone(write: Write) -> None:
    rig = write()
    assert rig("up").returncode == 0
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        file = rig.run / "D0.json"
        kept = file.read_text()
        plain: dict[str, Any] = json.loads(kept)
        plain["mark"]["pid"] = stranger.pid
        file.write_text(json.dumps(plain))
        assert states(rig)[1]["D0"] == "dead"
        assert rig("down", "--grace-s", "0").returncode == 0
        assert stranger.poll() is None
        file.write_text(kept)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_of_another_machine_is_left_alone(write: Write) -> None:
    rig = write()
    assert rig("up").returncode == 0
    mark = rig.mark("D0")
    file = rig.run / "D0.json"
    kept = file.read_text()
    file.write_text(json.dumps(json.loads(kept) | {"machine": "elsewhere"}))
    assert [one["name"] for one in json.loads(rig("down", "--json").stdout)["ended"]] == ["P0"]
    assert mark.alive()
    file.write_text(kept)


@pytest.mark.parametrize("text", ["{", '{"name": "D0"}', "[]"])
def test_a_broken_record_is_named(write: Write, text: str) -> None:
    rig = write()
    rig.run.mkdir(parents=True)
    file = rig.run / "D0.json"
    file.write_text(text)
    done = rig("status")
    assert done.returncode == 2
    assert "D0.json" in done.stderr
    file.unlink()


def test_a_command_that_is_not_installed_is_named(write: Write) -> None:
    rig = write()
    rig.file.write_text(rig.file.read_text().replace(json.dumps(sys.executable), '"no-such-vllm"'))
    up = rig("up")
    assert up.returncode == 2
    assert "no-such-vllm" in up.stderr


def test_a_mark_of_another_boot_is_nobody() -> None:
    mine = Mark.of(os.getpid())
    assert mine.alive()
    # Not our own group: whoever started us may have left it.
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert Mark.of(child.pid).group() == [child.pid]
        assert members(child.pid) == [child.pid]
        child.communicate(b"\n", timeout=60)
    other = attrs.evolve(mine, boot_id="another")
    assert not other.alive()
    assert other.group() == []
    assert not other.signal(signal.SIGTERM)
    assert end_marked([other], 0.0) == []
    with pytest.raises(ProcessLookupError):
        Mark.of(2**22 + 1)
