"""The configurations that are explored: small worlds, each with a few kinds of trouble.

Owns the catalogue. Knows no protocol. Invariant: names are unique; together the
configurations use every move that there is.
"""

from __future__ import annotations

from kvxfer.limits import Limits
from kvxfer.testing.explore.config import Config
from kvxfer.testing.explore.state import Budget

CONFIGS = (
    Config(
        name="one", about="one transfer of two parts, no faults, but time may pass at any moment"
    ),
    Config(
        name="notices",
        about="notices are lost, come twice and in any order",
        budgets={Budget.LOSE: 1, Budget.AGAIN: 1},
    ),
    Config(
        name="engines",
        about="both engines change their minds: expect, withdraw, decline, cancel",
        parts=1,
        budgets={Budget.EXPECT: 1, Budget.WITHDRAW: 1, Budget.DECLINE: 1, Budget.CANCEL: 1},
    ),
    Config(
        name="cancel",
        about="cancelled at any point and registered again, as the next attempt",
        parts=1,
        registers_max=2,
        budgets={Budget.CANCEL: 2},
    ),
    Config(
        name="parts",
        about="two parts, cancelled at any point",
        time_passes=False,
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="doubt",
        about="an operation of unknown end, a fence that is not proven, and the link up again",
        parts=1,
        time_passes=False,
        budgets={Budget.UNKNOWN: 1, Budget.NO_FENCE: 2, Budget.CANCEL: 1},
    ),
    Config(
        name="revive",
        about="P withdraws while operations are posted and renewals come in",
        budgets={Budget.WITHDRAW: 1},
    ),
    Config(
        name="posts",
        about="posts are refused, fail quietly, or end in a way that nobody knows",
        budgets={Budget.REFUSE_POST: 1, Budget.FAIL: 1, Budget.UNKNOWN: 1, Budget.NO_FENCE: 1},
    ),
    Config(
        name="cut",
        about="the link breaks at either end, at any point; a fence may not be proven",
        budgets={Budget.CUT: 1, Budget.NO_FENCE: 1},
    ),
    Config(
        name="dial",
        about="no link at the start; dials fail, the link breaks in the handshake or after it",
        parts=1,
        linked=False,
        budgets={Budget.REFUSE_DIAL: 1, Budget.CUT: 1, Budget.CANCEL: 1},
    ),
    Config(
        name="keyed",
        about="as dial, with keys: the link breaks between any two messages of the proofs",
        parts=1,
        linked=False,
        keyed=True,
        budgets={Budget.REFUSE_DIAL: 1, Budget.CUT: 1, Budget.CANCEL: 1},
    ),
    Config(
        name="restart-p",
        about="P dies and comes back at any point, with operations adrift",
        parts=1,
        registers_max=2,
        offers_max=2,
        budgets={Budget.RESTART_P: 1, Budget.NO_FENCE: 1},
    ),
    Config(
        name="restart-d",
        about="D dies and comes back at any point; its notices find the new life",
        parts=1,
        registers_max=2,
        roaming=True,
        budgets={Budget.RESTART_D: 1},
    ),
    Config(
        name="new-life",
        about="D dies with a notice on its way, and registers the same transfer again",
        parts=1,
        registers_max=2,
        roaming=True,
        time_passes=False,
        budgets={Budget.RESTART_D: 1},
    ),
    Config(
        name="prompts",
        about="the same transfer id, other prompts; a second offer; too few tokens",
        parts=1,
        registers_max=2,
        offers_max=2,
        digests={"D t.1": b"one", "D t.2": b"two", "P t.1": b"two", "P t.2": b"one"},
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="tokens",
        about="the offer covers the first part only",
        tokens={"t.1": 10},
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="two",
        about="two transfers over one link",
        transfers=("t", "ta"),
        parts=1,
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="resolve",
        about="the driver works the parts out in its own time, or finds that it cannot",
        parts=1,
        slow_resolve=True,
        registers_max=2,
        budgets={Budget.UNRESOLVED: 1, Budget.CUT: 1, Budget.CANCEL: 1},
    ),
    Config(
        name="producers",
        about="two producer ranks write one registration; one link breaks",
        parts=1,
        producers=2,
        budgets={Budget.CUT: 1, Budget.UNKNOWN: 1},
    ),
    Config(
        name="consumers",
        about="two consumer ranks are served from one offer",
        parts=1,
        consumers=2,
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="full-tables",
        about="tables with room for one: what does not fit is refused, not lost",
        transfers=("t", "u"),
        parts=1,
        limits=Limits(transfers_max=1, grants_parked_max=1),
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="calm",
        about="all goes well and time passes only when nothing is under way: leases hold",
        consumers=2,
        parts=1,
        deadline_ms=1200,
        time_passes=False,
        calm=True,
    ),
    Config(
        name="fences",
        about="two producer ranks, both links break: one fence proves nothing of the other rank",
        parts=1,
        producers=2,
        time_passes=False,
        budgets={Budget.CUT: 2},
    ),
    Config(
        name="relink",
        about="the link breaks, a second attempt is granted over the next one and cancelled",
        parts=1,
        registers_max=2,
        time_passes=False,
        budgets={Budget.CUT: 1, Budget.CANCEL: 2, Budget.NO_FENCE: 1},
    ),
    Config(
        name="pull",
        about="D reads: cancelled, failed, of unknown end, past its lease, the link broken",
        parts=1,
        pulls=True,
        registers_max=2,
        budgets={Budget.CANCEL: 1, Budget.UNKNOWN: 1, Budget.NO_FENCE: 1},
    ),
    Config(
        name="pull-drift",
        about="D reads, and its clock falls behind P's by less than the margin of a lease",
        parts=1,
        pulls=True,
        budgets={Budget.SKEW: 1},
    ),
    Config(
        name="pull-posts",
        about="D's own READs are refused, fail quietly, or end in a way that nobody knows",
        pulls=True,
        time_passes=False,
        budgets={
            Budget.REFUSE_POST: 1,
            Budget.FAIL: 1,
            Budget.UNKNOWN: 2,
            Budget.NO_FENCE: 1,
        },
    ),
    Config(
        name="idle-rank",
        about="one of two producer ranks has no part of the transfer",
        parts=1,
        producers=2,
        idle_producers=1,
        time_passes=False,
        budgets={Budget.CANCEL: 1, Budget.CUT: 1},
    ),
    Config(
        name="shut-down",
        about="either side shuts down at any point",
        parts=1,
        registers_max=2,
        time_passes=False,
        budgets={Budget.SHUT_DOWN: 2, Budget.CUT: 1},
    ),
    Config(
        name="pull-cut",
        about="D reads two parts; the link breaks, P withdraws",
        pulls=True,
        budgets={Budget.CUT: 1, Budget.WITHDRAW: 1},
    ),
    Config(
        name="pull-lives",
        about="D reads; P restarts and offers the same transfer again",
        parts=1,
        pulls=True,
        registers_max=2,
        offers_max=2,
        budgets={Budget.RESTART_P: 1},
    ),
    Config(
        name="stream",
        about="an offer grows piece by piece, is sealed, or sealed too short",
        streams=True,
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="stream-pull",
        about="an offer grows piece by piece while D reads it",
        streams=True,
        pulls=True,
        budgets={Budget.WITHDRAW: 1},
    ),
    Config(
        name="drain",
        about="either side drains at any point",
        parts=1,
        registers_max=2,
        budgets={Budget.DRAIN: 2, Budget.CANCEL: 1},
    ),
    Config(
        name="back",
        about="one transfer to D, one read back by P over the other link",
        transfers=("t", "b"),
        parts=1,
        back=("b",),
        budgets={Budget.CANCEL: 1},
    ),
    Config(
        name="crossing",
        about="cancel, withdraw, cut and unknown ends at once",
        registers_max=2,
        full_only=True,
        budgets={
            Budget.CANCEL: 1,
            Budget.WITHDRAW: 1,
            Budget.CUT: 1,
            Budget.UNKNOWN: 1,
            Budget.NO_FENCE: 1,
        },
    ),
    Config(
        name="lives",
        about="both sides restart, cut links, cancel and register again",
        parts=1,
        registers_max=3,
        offers_max=2,
        roaming=True,
        full_only=True,
        budgets={
            Budget.RESTART_P: 1,
            Budget.RESTART_D: 1,
            Budget.CUT: 1,
            Budget.CANCEL: 1,
            Budget.NO_FENCE: 1,
        },
    ),
)
"""In the order in which they are explored: what is quick to go through comes first."""


def by_name(name: str) -> Config | None:
    return next((config for config in CONFIGS if config.name == name), None)
