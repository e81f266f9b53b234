"""The vector files as a whole: notes, settings, cases, and how they are written.

Owns the list of files and their text. Invariant: the text of a file depends on nothing but
the modules beside this one, and for codec.json on the cases that were there before them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vectorgen import (
    authentication,
    codec,
    completion,
    drain,
    expiry,
    handshake,
    pairing,
    parts,
    pull,
    seals,
    streaming,
)
from vectorgen.words import Plain

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
DIGESTS = VECTORS / "digests.txt"

SETTINGS: Plain = {
    "engine_id": "eng-P",
    "rank": 0,
    "incarnation": 1,
    "transport": "vector",
    "check_digest": True,
    "features": [],
    "keys": [],
    "require_key": False,
    "timings": {
        "handshake_ms": 10_000,
        "renew_ms": 2_000,
        "silence_ms": 10_000,
        "cancel_silence_ms": 5_000,
        "lease_bound_ms": 30_000,
        "lease_margin_ms": 1_000,
        "fence_retry_ms": 1_000,
        "remember_ms": 600_000,
    },
    "limits": {"transfers": 65536, "grants": 65536, "remembered": 65536},
    "shard": handshake.SHARD,
}

NOTES = [
    "A case is a machine made from `settings` (the file's, with those of the case over them, map"
    " by map) and steps. In each step the time becomes `at_ms`: what fell due until then happens"
    " first, each at its own time; then `in` happens; `out` is every effect of both.",
    "Effects of one step may come in any order, but for messages over one link. A message must have"
    " the keys that are given, with these values; keys that are left out are not judged.",
    "accept: the link or the transfer comes about as the two sides meant it. reject: somebody's"
    " input must be refused, ignored or answered by an end other than success.",
    "Flag timing: the case depends on the times of `settings`, which a peer may choose otherwise.",
    "Events. connection: a control connection is open, `dialled` by this side or null. message:"
    " over the control connection. notification: by the transport. undecodable: a message that"
    " cannot be decoded. connection_lost. link_up: the four messages of a handshake that the case"
    " is not about; `ranks` are those of the other engine that share an edge with this rank; its"
    " own messages are not in `out`. time: it passes. shut_down: this peer refuses new work and"
    " ends what it has.",
    "Events of the consuming engine. register: it wants `wants` of `producers` (those without an"
    " entry share no edge); everything else is known. decline: it needs nothing of this transfer."
    " cancel: the request named `tag` has ended.",
    "Events of the producing engine. expect: a prefill runs. offer: tokens [0, tokens) are final."
    " withdraw: the engine takes back what `tag` named. An offer that is not sealed is followed by"
    " grow: tokens [0, tokens) are final, and of those below tokens_ahead the first layers_final"
    " layers. drain: this peer takes nothing new and finishes what it has.",
    "Events of the transport. claim: the part is about to be posted; `post` in `out` is the"
    " permission. op_ended: all operations of it have ended: done, failed and quiet, or failed and"
    " not proven quiet. not_posted: nothing of it was posted. fence_result: of an earlier fence."
    " unreachable: an earlier dial has failed.",
    "Effects. send, dial, close: of control connections. up: the handshake is over. fence: the"
    " transport shall prove that this life can write no more, and end our operations towards it."
    " queue: the part may be posted once it is claimed. post: see claim. stop: post nothing more of"
    " a claimed part. landed, lost, let_go, sent, unsent, drained: told to the engine; let_go gives"
    " the blocks back. In pull, queue, claim, post and stop are the consumer's, about its reads.",
    "keys: ids of this side's keys, the preferred one first; require_key: it refuses a peer"
    " without one. proof: a PROOF came, right or wrong by 4.6. Seals are not seen (seals.json).",
    "features: those of this side; where link_up has `features`, those of the other side.",
]


def machine_file(part: str, cases: list[Plain]) -> Plain:
    return {
        "protocol": "kvxfer-1",
        "part": part,
        "notes": NOTES,
        "settings": SETTINGS,
        "vectors": cases,
    }


def codec_file() -> Plain:
    """The cases that were written by hand stay as they are; generated ones follow."""
    whole: Plain = json.loads((VECTORS / "codec.json").read_text(encoding="utf-8"))
    made = codec.cases()
    names = {case["id"] for case in made}
    old = [case for case in whole["vectors"] if case["id"] not in names]
    return {**whole, "vectors": old + made}


def parts_file() -> Plain:
    return {
        "protocol": "kvxfer-1",
        "part": "parts",
        "notes": [
            "parts: what a GRANT to this producer rank names, for tokens [start, stop) of groups in"
            " which every token has a slot. Their order is free, their set is not.",
        ],
        "vectors": parts.cases(),
    }


def seals_file() -> Plain:
    return {
        "protocol": "kvxfer-1",
        "part": "seals",
        "notes": [
            "What follows from the secret of a key and the bytes of HELLO and WELCOME (4.6): both"
            " proofs, and what is behind them. `frames` are what came from `from`, in order and"
            " without their lengths, or notifications where it is `notice`; `opened` the messages"
            " in them. accept: all of them open. reject: `opened` is what opens, and the frame"
            " behind it does not.",
        ],
        "vectors": seals.cases(),
    }


FILES: dict[str, Callable[[], Plain]] = {
    "codec": codec_file,
    "handshake": lambda: machine_file("handshake", handshake.cases()),
    "pairing": lambda: machine_file("pairing", pairing.cases()),
    "completion": lambda: machine_file("completion", completion.cases()),
    "expiry": lambda: machine_file("expiry", expiry.cases()),
    "parts": parts_file,
    "pull": lambda: machine_file("pull", pull.cases()),
    "streaming": lambda: machine_file("streaming", streaming.cases()),
    "drain": lambda: machine_file("drain", drain.cases()),
    "authentication": lambda: machine_file("authentication", authentication.cases()),
    "seals": seals_file,
}
"""Files that are made here. layout.json has a generator of its own."""


def text_of(whole: Plain) -> str:
    """JSON with a line for each step, so that a case can be read and compared."""
    if whole["part"] == "codec":
        return json.dumps(whole, indent=1) + "\n"
    head = {key: value for key, value in whole.items() if key != "vectors"}
    lines = json.dumps(head, indent=1)[:-2] + ',\n "vectors": ['
    return lines + ",".join(_case(case) for case in whole["vectors"]) + "\n ]\n}\n"


def _case(case: Plain) -> str:
    head = [f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in case.items() if k != "steps"]
    if "steps" not in case:
        return "\n  {\n" + ",\n".join(head) + "\n  }"
    steps = [f"    {json.dumps(step)}" for step in case["steps"]]
    body = ",\n".join([*head, '   "steps": [\n' + ",\n".join(steps) + "\n   ]"])
    return "\n  {\n" + body + "\n  }"


def digest(case: Plain) -> str:
    """Names the content of a case, however its file is laid out."""
    plain = json.dumps(case, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def digests(files: dict[str, Plain]) -> dict[str, str]:
    """`part/id` to digest, of every case of every file."""
    return {
        f"{name}/{case['id']}": digest(case)
        for name, whole in files.items()
        for case in whole["vectors"]
    }


def recorded() -> dict[str, str]:
    """The committed list."""
    if not DIGESTS.exists():
        return {}
    lines = DIGESTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines)


def digests_text(files: dict[str, Plain]) -> str:
    """The list with the new cases added. ValueError where an old one is gone or was edited."""
    old, new = recorded(), digests(files)
    edited = sorted(name for name in old if new.get(name, "") != old[name])
    if edited:
        raise ValueError(
            f"edited or gone: {', '.join(edited)}; add a case, and name the old one in"
            ' "superseded" of its file'
        )
    return "".join(f"{name} {value}\n" for name, value in {**old, **new}.items())


def all_files() -> dict[str, Any]:
    """Every vector file that is in the folder, made here or not."""
    made = {name: make() for name, make in FILES.items()}
    for path in sorted(VECTORS.glob("*.json")):
        if path.stem not in made:
            made[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return made
