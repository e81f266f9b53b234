"""The control connection of one link as bytes: frames, and seals where a key was agreed.

Owns what turns a link's messages into bytes and back: the bound of each frame, both
halves of what is proven, the link's keys and counts. Knows no socket and decides
nothing: which messages come when is the handshake's matter. Invariants: behind a
side's PROOF each of its frames is sealed; a frame is opened with the count of its
place, so none is taken twice, late, or on another link.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kvxfer.core.credentials import Credentials
from kvxfer.core.messages import Describe, Hello, Message, Proof, Welcome
from kvxfer.driver.keys import KeyRing
from kvxfer.limits import Limits
from kvxfer.wire.codec import encode
from kvxfer.wire.framing import FrameReader, frame
from kvxfer.wire.seal import (
    TAG_BYTES,
    LinkKeys,
    Notices,
    Opener,
    Sealer,
    same_proof,
)


@attrs.define(eq=False, kw_only=True)
class Channel:
    """One link's bytes, and the `Prover` of its handshake."""

    limits: Limits
    dialled: bool
    keys: KeyRing | None
    _reader: FrameReader = attrs.field(init=False)
    _hello: bytes = b""
    _welcome: bytes = b""
    _link_keys: LinkKeys | None = None
    _notices: Notices | None = None
    _sealer: Sealer | None = None
    _opener: Opener | None = None

    def __attrs_post_init__(self) -> None:
        self._reader = FrameReader(self.limits, self.limits.hello_bytes_max)

    def credentials(self, nonce: bytes, *, required: bool) -> Credentials:
        """What this side brings to the handshake."""
        if self.keys is None:
            return Credentials(required=required)
        return Credentials(nonce=nonce, key_ids=self.keys.ids, required=required, prover=self)

    # --- what leaves ---

    def outgoing(self, message: Message) -> bytes:
        """A message as it goes over the connection."""
        payload = encode(message)
        if self._sealer is not None:
            return frame(self._sealer.seal(payload))
        if isinstance(message, Proof) and self._link_keys is not None:
            keys = self._link_keys
            self._sealer = Sealer(keys.dialler_seal if self.dialled else keys.acceptor_seal)
        return frame(payload)

    def notice(self, message: Message) -> bytes:
        """A message as it goes over the transport."""
        payload = encode(message)
        return self._notices.seal(payload) if self._notices is not None else payload

    # --- what comes ---

    def incoming(self, data: bytes) -> Iterator[bytes]:
        """Messages that are whole now, each opened only once those before it were looked at.

        Raises RemoteFault at a frame out of its bound, or with a wrong seal.
        """
        self._reader.push(data)
        while (payload := self._reader.pop()) is not None:
            yield self._opener.open(payload) if self._opener is not None else payload

    def took(self, message: Message, payload: bytes) -> None:
        """A message that came, before anything is done with it."""
        match message:
            case Hello() if not self.dialled:
                self._hello = payload
                if not (message.key_ids and self.keys):
                    self._reader.bytes_max = self.limits.describe_bytes_max
            case Welcome() if self.dialled:
                self._welcome = payload
                if not message.key_id:
                    self._reader.bytes_max = self.limits.describe_bytes_max
            case Describe():
                self._reader.bytes_max = self.limits.message_bytes_max + TAG_BYTES

    def opened_notice(self, data: bytes) -> bytes | None:
        """The notification that came over the transport; None where it is not the peer's."""
        return self._notices.open(data) if self._notices is not None else data

    # --- the prover ---

    def sent(self, message: Hello | Welcome) -> None:
        if isinstance(message, Hello):
            self._hello = encode(message)
        else:
            self._welcome = encode(message)

    def proof(self, key_id: str) -> bytes:
        keys = self._derived(key_id)
        return keys.dialler_proof if self.dialled else keys.acceptor_proof

    def check(self, key_id: str, mac: bytes) -> bool:
        keys = self._derived(key_id)
        if not same_proof(mac, keys.acceptor_proof if self.dialled else keys.dialler_proof):
            return False
        self._opener = Opener(keys.acceptor_seal if self.dialled else keys.dialler_seal)
        self._reader.bytes_max = self.limits.describe_bytes_max
        return True

    def _derived(self, key_id: str) -> LinkKeys:
        if self._link_keys is None:
            assert self.keys is not None
            secret = self.keys.secret(key_id)
            self._link_keys = LinkKeys.derive(secret, self._hello, self._welcome)
            self._notices = Notices(self._link_keys.notice)
        return self._link_keys
