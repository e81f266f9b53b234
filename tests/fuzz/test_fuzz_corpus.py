"""Every input that is kept: alone against the session, and between two real agents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_rig
import fuzz_session
import make_corpus

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))
BY_NAME = {path.stem: path for path in CORPUS}


def test_the_corpus_is_what_its_script_makes_and_what_was_found() -> None:
    built = make_corpus.build()
    kept = {name: path.read_bytes() for name, path in BY_NAME.items()}
    stale = {n for n in built.keys() | kept.keys() if not n.startswith("found-")}
    stale = {n for n in stale if built.get(n) != kept.get(n)}
    assert stale == set(), "run python tests/fuzz/make_corpus.py"
    assert len(built) > 200
    assert max(map(len, kept.values())) <= 4096


@pytest.mark.parametrize("name", BY_NAME)
def test_input_ends_its_own_link_at_most(name: str) -> None:
    fuzz_session.run(BY_NAME[name].read_bytes())


@pytest.mark.parametrize("name", BY_NAME)
def test_byte_by_byte_is_the_same(name: str) -> None:
    whole = bytearray(BY_NAME[name].read_bytes())
    whole[1] = 1
    fuzz_session.run(bytes(whole))


@pytest.mark.parametrize("name", BY_NAME)
def test_input_between_two_agents_harms_neither(name: str) -> None:
    fuzz_rig.run(BY_NAME[name].read_bytes())
