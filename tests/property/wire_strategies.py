"""Messages of every type, drawn within the default limits."""

from __future__ import annotations

from hypothesis import strategies as st

from kvxfer.core import messages as m
from kvxfer.core.ids import Initiator, Part, Reason, Role

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
INCARNATION = st.integers(1, (1 << 64) - 1)
TOKEN = st.integers(0, 1 << 40)
VERSION = st.integers(0, 65535)
ROLE = st.sampled_from(Role)
REASON = st.sampled_from([r for r in Reason if r is not Reason.UNREGISTERED])


def text(low: int, high: int) -> st.SearchStrategy[str]:
    """Text of `low` to `high` bytes in UTF-8, a few characters at most."""
    alphabet = st.characters(exclude_categories=("Cs",))
    drawn = st.text(alphabet, min_size=low, max_size=min(high, 20))
    return drawn.filter(lambda value: low <= len(value.encode()) <= high)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    start = draw(st.integers(0, (1 << 40) - 1))
    stop = draw(st.integers(start + 1, 1 << 40))
    last = draw(st.integers(0, 4096))
    first = draw(st.integers(0, last - 1)) if last else 0
    return Part(draw(U32), draw(st.integers(0, 63)), start, stop, first, last)


@st.composite
def columns(draw: st.DrawFn, count: int) -> m.Column:
    width = draw(st.sampled_from([4, 8]))
    return m.Column(width, draw(st.binary(min_size=width * count, max_size=width * count)))


@st.composite
def lengths(draw: st.DrawFn, count: int) -> m.Column:
    """Run lengths that keep the bound on the blocks of a grant: 3 tables of 5 runs at most."""
    width = draw(st.sampled_from([4, 8]))
    drawn = draw(st.lists(st.integers(1, 1 << 16), min_size=count, max_size=count))
    return m.Column(width, b"".join(length.to_bytes(width, "little") for length in drawn))


@st.composite
def runs(draw: st.DrawFn, group: int) -> m.BlockRuns:
    count = draw(st.integers(0, 5))
    return m.BlockRuns(
        group=group,
        first_token=draw(TOKEN),
        starts=draw(columns(count)),
        lengths=draw(lengths(count)),
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[m.BlockRuns, ...]:
    groups = draw(st.lists(st.integers(0, 63), max_size=3, unique=True))
    return tuple(draw(runs(group)) for group in groups)


HEADER = st.builds(
    m.Header,
    transfer_id=text(1, 512),
    attempt=st.integers(1, (1 << 32) - 1),
    sender=INCARNATION,
    receiver=INCARNATION,
)

MESSAGES = st.one_of(
    st.builds(
        m.Hello,
        version_min=VERSION,
        version_max=VERSION,
        engine_id=text(1, 256),
        rank=U32,
        incarnation=INCARNATION,
        role=ROLE,
        features=U64,
        expected_engine_id=text(0, 256),
        expected_rank=U32,
        nonce=st.binary(max_size=32),
        key_ids=st.lists(text(1, 64), max_size=8, unique=True).map(tuple),
    ),
    st.builds(
        m.Welcome,
        version=VERSION,
        engine_id=text(1, 256),
        rank=U32,
        incarnation=INCARNATION,
        role=ROLE,
        features=U64,
        nonce=st.binary(max_size=32),
        key_id=text(0, 64),
    ),
    st.builds(m.Refuse, reason=REASON, detail=text(0, 1024)),
    st.builds(
        m.Describe,
        transport=text(1, 64),
        blob=st.binary(max_size=40),
        shard=st.binary(max_size=40),
        part_tokens=TOKEN,
        part_layers=U32,
    ),
    st.builds(m.Bye, reason=REASON),
    st.builds(m.Proof, mac=st.binary(min_size=32, max_size=32)),
    st.builds(
        m.Grant,
        header=HEADER,
        digest=st.binary(max_size=64),
        lease_ms=U32,
        parts=st.lists(parts(), max_size=4, unique=True).map(tuple),
        tables=tables(),
        initiator=st.sampled_from(Initiator),
    ),
    st.builds(m.GrantAck, header=HEADER, lease_ms=U32, serial=U32),
    st.builds(m.Renew, header=HEADER, lease_ms=U32, serial=U32),
    st.builds(
        m.Offer,
        header=HEADER,
        parts=st.lists(parts(), max_size=4, unique=True).map(tuple),
        tables=tables(),
        token_count=TOKEN,
    ),
    st.builds(m.Release, header=HEADER, landed=st.booleans(), reason=REASON),
    st.builds(m.Drain, reason=REASON),
    st.builds(m.Gone, header=HEADER, reason=REASON),
    st.builds(m.Cancel, header=HEADER, reason=REASON),
    st.builds(m.Cancelled, header=HEADER),
    st.builds(m.Done, header=HEADER, part=parts()),
    st.builds(m.Failed, header=HEADER, part=parts(), reason=REASON, quiet=st.booleans()),
    st.builds(m.NeverPosted, header=HEADER, part=parts(), reason=REASON),
)
