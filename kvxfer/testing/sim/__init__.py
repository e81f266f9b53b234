"""The simulator: many engines, unlike caches, virtual time, and faults drawn per seed.

The real sessions of `kvxfer.core` and the real translation of `kvxfer.layout` run
over a network and a transport of their own, fast enough for a million transfers.
Same seed, same run, byte for byte. `agents` is a slower second level, over the real
driver. `simulate` and `find_by_seeds` are the doors.
"""

from kvxfer.testing.sim.agents import run_agents
from kvxfer.testing.sim.many import Found, Total, find_by_seeds, simulate
from kvxfer.testing.sim.run import Broken, SeedResult, run_seed

__all__ = [
    "Broken",
    "Found",
    "SeedResult",
    "Total",
    "find_by_seeds",
    "run_agents",
    "run_seed",
    "simulate",
]
