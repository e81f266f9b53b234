"""Free loopback ports, picked together.

Owns the picking. A taken side-channel port makes vLLM hang at its start without a word,
so the ports lie below the range from which the kernel gives ports to outgoing
connections: between picking and listening nobody gets one by chance. Invariant: no two
ports of one call are equal, and each could be bound at the time.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from kvxfer.errors import LocalFault
from kvxfer_vllm.config import port_of_rank

LOOPBACK = "127.0.0.1"
LOWEST = 10_000
EPHEMERAL_LOW = 32_768
"""Where outgoing ports begin on Linux unless the system says otherwise."""

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_MAX = 1000


def ephemeral_low(range_file: Path = _RANGE_FILE) -> int:
    """The first port that the kernel may give to an outgoing connection."""
    try:
        return int(range_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_LOW


def pick_ports(count: int, ranks: int = 1) -> list[int]:
    """`count` different ports that nobody listens on. Raises LocalFault if there are too few.

    Those of the further `ranks` of an engine whose first one has such a port are free, too.
    """
    high = max(ephemeral_low(), LOWEST + 10 * count)
    rng = random.SystemRandom()
    picked: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_TRIES_MAX):
            if len(picked) == count:
                return picked
            port = rng.randrange(LOWEST, high)
            with contextlib.suppress(OSError):
                # Held until all are picked, so that no port is picked twice.
                for rank in range(ranks):
                    held.enter_context(_bound(port_of_rank(port, rank)))
                picked.append(port)
    raise LocalFault(f"found only {len(picked)} of {count} free ports in [{LOWEST}, {high})")


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind((LOOPBACK, port))
    except OSError:
        bound.close()
        raise
    return bound
