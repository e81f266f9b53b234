"""The driver: the only room where core, layout, wire and transport meet.

Public names for engines and their adapters.
"""

from kvxfer.core.ids import Initiator, Reason, Role, TransferId
from kvxfer.driver.agent import Agent, AgentFailed
from kvxfer.driver.commands import ProducerAddress
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.keys import Key, KeyFile, KeyRing, keys_from
from kvxfer.driver.leftovers import Closed, Held, Leftover
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent
from kvxfer.driver.tls import TlsFiles
from kvxfer.limits import Limits, Timings
from kvxfer.transport.ops import Memory

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentFailed",
    "Closed",
    "Held",
    "Initiator",
    "Key",
    "KeyFile",
    "KeyRing",
    "Landed",
    "Leftover",
    "LetGo",
    "Limits",
    "Lost",
    "Memory",
    "ProducerAddress",
    "Reason",
    "Result",
    "Role",
    "Sent",
    "Timings",
    "TlsFiles",
    "TransferId",
    "Unsent",
    "keys_from",
]
