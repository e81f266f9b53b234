"""This library's proofs, seals and tags as a subject of the vectors.

Owns the translation between the plain cases of seals.json and `kvxfer.wire.seal`. Knows no
formula. Invariant: frames are opened one by one, as a link would.
"""

from __future__ import annotations

from kvxfer.conformance.vectors import Plain, Rejected
from kvxfer.errors import RemoteFault
from kvxfer.wire.seal import LinkKeys, Notices, Opener


def open_frames(case: Plain) -> Plain:
    """Our opening as `check_seals` wants it."""
    halves = (bytes.fromhex(case[name]) for name in ("secret", "hello", "welcome"))
    keys = LinkKeys.derive(*halves)
    opened: list[str] = []
    seal = keys.dialler_seal if case["from"] == "dialler" else keys.acceptor_seal
    opener = Opener(seal)
    refused = False
    for frame in (bytes.fromhex(frame) for frame in case["frames"]):
        try:
            message = _notice(keys, frame) if case["from"] == "notice" else opener.open(frame)
        except (RemoteFault, Rejected):
            refused = True
            break
        opened.append(message.hex())
    return {
        "dialler_proof": keys.dialler_proof.hex(),
        "acceptor_proof": keys.acceptor_proof.hex(),
        "opened": opened,
        "refused": refused,
    }


def _notice(keys: LinkKeys, frame: bytes) -> bytes:
    opened = Notices(keys.notice).open(frame)
    if opened is None:
        raise Rejected
    return opened
