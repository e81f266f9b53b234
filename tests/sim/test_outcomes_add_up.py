"""Each transfer ends in exactly one outcome: real agents, virtual time, faults.

Every world of the simulator checks it on each look of its engines
(`kvxfer.testing.outcomes`); here are the seeds, and the proof that the check can fail.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvxfer.core.ids import Reason
from kvxfer.driver.watch import Watch
from kvxfer.testing.sim import run_agents


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32))
def test_outcomes_add_up_under_faults(seed: int) -> None:
    result = run_agents(seed, 10)
    assert result.broken is None, result.broken
    assert result.unended == 0


def test_an_outcome_that_is_not_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Watch._end

    def forgetful(self: Watch, side: str, outcome: str, reason: Reason = Reason.NONE) -> None:
        if outcome != "failed":
            count(self, side, outcome, reason)

    monkeypatch.setattr(Watch, "_end", forgetful)
    broken = [found for seed in range(12) if (found := run_agents(seed, 10).broken) is not None]
    assert broken
    assert "outcomes of " in broken[0].rule


def test_an_outcome_that_is_counted_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Watch._end

    def eager(self: Watch, side: str, outcome: str, reason: Reason = Reason.NONE) -> None:
        for _ in range(2 if outcome == "failed" else 1):
            count(self, side, outcome, reason)

    monkeypatch.setattr(Watch, "_end", eager)
    assert any(run_agents(seed, 10).broken is not None for seed in range(12))
