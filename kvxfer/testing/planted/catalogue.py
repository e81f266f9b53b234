"""Every planted fault.

Owns the order. Invariant: names are unique.
"""

from __future__ import annotations

from kvxfer.testing.planted.fault import Fault
from kvxfer.testing.planted.linking import LINKING
from kvxfer.testing.planted.reading import READING
from kvxfer.testing.planted.sending import SENDING
from kvxfer.testing.planted.writing import WRITING

FAULTS: tuple[Fault, ...] = (*WRITING, *SENDING, *LINKING, *READING)
