"""Shared keys of an agent: from a file, from the environment, several live at a time.

Owns their form and their reading. Knows no protocol. Invariants: a secret is never
shown, in no error and in no repr; a key ring that was built is usable, and one that
cannot be read any more never takes the place of one that could.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import attrs

from kvxfer.errors import BadValue
from kvxfer.wire.schema import KEY_ID_BYTES_MAX, KEY_IDS_MAX

ENVIRONMENT = "KVXFER_KEYS"
SECRET_BYTES_MIN = 32
SECRET_BYTES_MAX = 1024
FILE_BYTES_MAX = 1 << 16
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_BYTES_MAX}}}")
_BASE64 = "base64:"


@attrs.frozen
class Key:
    """One shared key: a public name, and at least 32 random bytes that are secret."""

    id: str
    secret: bytes = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            bound = f"1 to {KEY_ID_BYTES_MAX} letters, digits, '.', '_' or '-'"
            raise BadValue("key id", self.id, bound)
        if not SECRET_BYTES_MIN <= len(self.secret) <= SECRET_BYTES_MAX:
            bound = f"a secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
            raise BadValue(f"length of key {self.id}", len(self.secret), bound)


@attrs.frozen
class KeyRing:
    """The live keys, the preferred one first. Two of them are a rotation under way."""

    keys: tuple[Key, ...]

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.keys) <= KEY_IDS_MAX:
            raise BadValue("number of keys", len(self.keys), f"1 to {KEY_IDS_MAX}")
        if len(set(self.ids)) != len(self.keys):
            raise BadValue("key ids", self.ids, "every id once")

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(key.id for key in self.keys)

    def secret(self, key_id: str) -> bytes:
        """The secret of a key of this ring."""
        return next(key.secret for key in self.keys if key.id == key_id)

    def current(self, _logger: logging.Logger) -> KeyRing:
        """Itself: this ring does not change."""
        return self

    @classmethod
    def parse(cls, text: str, source: str) -> KeyRing:
        """Keys from text: `id secret` a line, in hex, or in base64 behind `base64:`.

        Empty lines and lines that begin with # are skipped.
        Raises BadValue with the number of the line, never with what is in it.
        """
        keys = []
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2:
                raise BadValue(source, f"line {number}", "an id and a secret")
            keys.append(Key(words[0], _secret(words[1], f"{source} line {number}")))
        return cls(tuple(keys))

    @classmethod
    def from_environment(
        cls, name: str = ENVIRONMENT, environment: Mapping[str, str] = os.environ
    ) -> KeyRing | None:
        """Keys from a variable, None where it is not set; a semicolon ends a line there, too.

        BadValue where it cannot be read.
        """
        text = environment.get(name)
        return cls.parse(text.replace(";", "\n"), name) if text is not None else None


def _secret(word: str, place: str) -> bytes:
    try:
        if word.startswith(_BASE64):
            return base64.b64decode(word[len(_BASE64) :], validate=True)
        return bytes.fromhex(word)
    except (ValueError, binascii.Error):
        raise BadValue(place, "a secret", "hex, or base64 behind 'base64:'") from None


@attrs.define(eq=False)
class KeyFile:
    """Keys from a file that is read again once it has changed: rotation without a restart.

    A file that cannot be read at the start is BadValue; later the keys of before stay.
    """

    path: Path = attrs.field(converter=Path)
    _ring: KeyRing = attrs.field(init=False)
    _seen: tuple[int, int, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._seen, self._ring = self._read()

    def current(self, logger: logging.Logger) -> KeyRing:
        """The keys as they are now. Looks at the file's time, reads it where it is another."""
        try:
            if _state(os.stat(self.path)) != self._seen:
                self._seen, self._ring = self._read()
                logger.info("keys read again from %s: %s", self.path, ", ".join(self._ring.ids))
        except (OSError, BadValue) as error:
            logger.warning("%s cannot be read, the keys of before stay: %s", self.path, error)
        return self._ring

    @property
    def world_readable(self) -> bool:
        """Can users beside owner and group read the file?"""
        return bool(os.stat(self.path).st_mode & stat.S_IROTH)

    def _read(self) -> tuple[tuple[int, int, int], KeyRing]:
        try:
            with self.path.open("rb") as file:
                state = _state(os.fstat(file.fileno()))
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise BadValue("key file", str(self.path), f"at most {FILE_BYTES_MAX} bytes")
            return state, KeyRing.parse(data.decode(), str(self.path))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise BadValue("key file", str(self.path), f"a file of keys ({why})") from None


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


Keys = KeyRing | KeyFile


def keys_from(key_file: str = "", environment: Mapping[str, str] = os.environ) -> Keys | None:
    """The keys of this file, else of the variable KVXFER_KEYS, else none.

    BadValue where the one that is given cannot be read.
    """
    if key_file:
        return KeyFile(Path(key_file))
    return KeyRing.from_environment(environment=environment)
