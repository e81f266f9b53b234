"""Our core behind the lines of `kvxfer.conformance.vectors_process`, as a stranger might."""

from __future__ import annotations

import json
import sys

from kvxfer.conformance.vectors_core import CoreMachine


def main() -> None:
    machine = None
    for line in sys.stdin:
        question = json.loads(line)
        if "new" in question:
            machine = CoreMachine.make(question["new"])
            answer = {}
        else:
            assert machine is not None
            answer = {"out": list(machine.step(question["in"], question["at_ms"]))}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main()
