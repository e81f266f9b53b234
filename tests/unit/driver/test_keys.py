"""Keys: what a file may hold, what a start refuses, and that no secret is ever shown."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from kvxfer.driver import Key, KeyFile, KeyRing
from kvxfer.errors import BadValue

SECRET = bytes(range(32))
LOGGER = logging.getLogger("kvxfer")


def test_a_file_names_keys_one_a_line_the_preferred_one_first(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# rotation of November\n\nnew {SECRET.hex()}\n  old base64:{'QUJD' * 12}  \n")
    ring = KeyFile(path).current(LOGGER)
    assert ring.ids == ("new", "old")
    assert ring.secret("new") == SECRET
    assert ring.secret("old") == b"ABC" * 12


def test_a_variable_holds_the_same_with_semicolons() -> None:
    given = {"KVXFER_KEYS": f"new {SECRET.hex()}; old {SECRET.hex()}"}
    ring = KeyRing.from_environment(environment=given)
    assert ring is not None
    assert ring.ids == ("new", "old")
    assert ring.current(LOGGER) is ring
    assert KeyRing.from_environment(environment={}) is None


@pytest.mark.parametrize("size", [0, 31, 1025])
def test_a_secret_has_a_least_length(size: int) -> None:
    with pytest.raises(BadValue, match=r"length of key k = \d+: a secret of 32 to 1024 bytes"):
        Key("k", bytes(size))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "number of keys"),
        ("# nothing", "number of keys"),
        ("k", "line 1.*an id and a secret"),
        (f"k {SECRET.hex()} more", "line 1.*an id and a secret"),
        (f"k {SECRET.hex()}\nk {SECRET.hex()}", "every id once"),
        ("k nothex", "line 1.*hex"),
        ("k base64:!!", "line 1.*hex, or base64"),
        (f"k/1 {SECRET.hex()}", "key id"),
        (f"{'k' * 65} {SECRET.hex()}", "key id"),
        ("\n".join(f"k{n} {SECRET.hex()}" for n in range(9)), "number of keys = 9: 1 to 8"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(text: str, match: str) -> None:
    with pytest.raises(BadValue, match=match) as caught:
        KeyRing.parse(text, "keys")
    assert SECRET.hex() not in str(caught.value)


def test_a_secret_is_not_in_what_is_printed() -> None:
    ring = KeyRing((Key("k", SECRET),))
    assert "secret" not in repr(ring)
    assert SECRET.hex() not in repr(ring)


def test_a_file_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"old {SECRET.hex()}")
    keys = KeyFile(path)
    assert keys.current(LOGGER) is keys.current(LOGGER)
    path.write_text(f"newer {SECRET.hex()}")
    assert keys.current(LOGGER).ids == ("newer",)


def test_a_file_that_cannot_be_read_any_more_leaves_what_was_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"k {SECRET.hex()}")
    keys = KeyFile(path)
    for breaking in (lambda: path.write_text("half"), path.unlink, path.mkdir):
        breaking()
        with caplog.at_level(logging.WARNING):
            assert keys.current(LOGGER).ids == ("k",)
        assert "the keys of before stay" in caplog.text


def test_a_file_that_is_not_there_or_no_text_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"key file.*No such file"):
        KeyFile(tmp_path / "none")
    binary, long = tmp_path / "binary", tmp_path / "long"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(BadValue, match="not UTF-8"):
        KeyFile(binary)
    long.write_bytes(b"#" * (1 << 17))
    with pytest.raises(BadValue, match="at most 65536 bytes"):
        KeyFile(long)


def test_who_else_can_read_a_file_is_known(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"k {SECRET.hex()}")
    for mode, open_to_all in ((0o600, False), (0o640, False), (0o644, True)):
        os.chmod(path, mode)
        assert KeyFile(path).world_readable is open_to_all
