"""Random walks over the real machines: whatever the world does, the invariants hold.

`Duet` raises at the step that breaks one; at the end everything must come to
rest with empty tables. The walk that finds a fault shrinks to a short one.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvxfer.limits import Timings
from kvxfer.testing.between import Violation
from kvxfer.testing.duet import Duet
from kvxfer.testing.moves import Script, moves

WALK = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def walk(duet: Duet, script: Script, choices: list[int]) -> None:
    try:
        for choice in choices:
            enabled = moves(duet, script)
            if not enabled:
                break
            enabled[choice % len(enabled)][1]()
        duet.quiesce()
    except Violation as violation:
        lines = "\n".join(duet.transcript)
        raise AssertionError(f"{violation}\n{lines}") from violation


choices = st.lists(st.integers(0, 10_000), max_size=60)


@WALK
@given(choices)
def test_one_transfer_with_faults(choices: list[int]) -> None:
    walk(Duet(), Script(), choices)


@WALK
@given(choices)
def test_two_transfers_with_faults(choices: list[int]) -> None:
    walk(Duet(), Script(transfers=("t", "u"), registers_max=3, offers_max=3), choices)


@WALK
@given(choices)
def test_pull_and_streams_with_faults(choices: list[int]) -> None:
    walk(Duet(), Script(pulls=True, streams=True, registers_max=3, offers_max=3), choices)


@WALK
@given(choices)
def test_leases_that_end_while_reads_hang(choices: list[int]) -> None:
    """Time passes faster than renewals: leases end under READs that are posted."""
    timings = Timings(grant_lease_ms=2_000, renew_ms=1_500, lease_margin_ms=100, drain_ms=700)
    walk(Duet(timings=timings), Script(pulls=True, streams=True), choices)


@WALK
@given(choices)
def test_drains_between_everything(choices: list[int]) -> None:
    walk(Duet(), Script(pulls=True, streams=True, drains_max=2), choices)


@WALK
@given(choices)
def test_no_faults_no_loss_of_the_pair(choices: list[int]) -> None:
    walk(Duet(), Script(faults=False, cuts_max=0, restarts_max=0), choices)
