"""TLS for the control channel: certificates of one authority on both sides, or nothing."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trustme
from attacker import QUICK, Attacker, Side, fetch
from driver_rig import Start, config, new_memory, register, until

from kvxfer.core.ids import Reason, Role
from kvxfer.driver import Agent, Lost, TlsFiles
from kvxfer.errors import BadValue

SHORT = attrs.evolve(QUICK, handshake_ms=4_000)
"""Where somebody has to be cut off."""


def files(folder: Path, ca: trustme.CA, *names: str, believe: trustme.CA | None = None) -> TlsFiles:
    """A certificate for these names, signed by `ca`; the side believes `believe`, or `ca`."""
    folder.mkdir()
    leaf = ca.issue_cert(*names)
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    for part in leaf.cert_chain_pems:
        part.write_to_path(str(folder / "cert.pem"), append=True)
    (believe or ca).cert_pem.write_to_path(str(folder / "ca.pem"))
    return TlsFiles(cert=folder / "cert.pem", key=folder / "key.pem", ca=folder / "ca.pem")


@pytest.fixture
def ours() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secured(start: Start, tmp_path: Path, ours: trustme.CA) -> Side:
    tls = files(tmp_path / "p", ours, "127.0.0.1")
    return start("P", Role.PRODUCER, 1, tls=tls)


def test_a_transfer_over_tls(secured: Side, start: Start, tmp_path: Path, ours: trustme.CA) -> None:
    d = start("D", Role.CONSUMER, tls=files(tmp_path / "d", ours, "d.example"))
    for block in range(1, 5):
        fetch(secured, d, f"t{block}", block)


def lost_reason(consumer: Side, producer: Side) -> Lost:
    register(consumer, producer, "t", 1)
    lost, _ = consumer.collect(2)
    assert isinstance(lost, Lost)
    return lost


def test_a_certificate_of_another_authority_is_refused_by_the_dialler(
    secured: Side, start: Start, tmp_path: Path, ours: trustme.CA
) -> None:
    """D believes another authority than the one that signed P's certificate."""
    tls = files(tmp_path / "d", ours, "d.example", believe=trustme.CA())
    d = start("D", Role.CONSUMER, tls=tls)
    lost = lost_reason(d, secured)
    assert lost.reason is Reason.UNREACHABLE
    assert "CERTIFICATE_VERIFY_FAILED" in lost.detail
    good = start("E", Role.CONSUMER, tls=files(tmp_path / "e", ours, "e.example"))
    fetch(secured, good, "good", 2)


def test_a_certificate_of_another_authority_is_refused_by_the_acceptor(
    secured: Side, start: Start, tmp_path: Path, ours: trustme.CA
) -> None:
    theirs = files(tmp_path / "d", trustme.CA(), "d.example", believe=ours)
    d = start("D", Role.CONSUMER, tls=theirs)
    assert lost_reason(d, secured).reason in (Reason.UNREACHABLE, Reason.PEER_LOST)
    assert secured.agent.counters()["links"] == 0
    good = start("E", Role.CONSUMER, tls=files(tmp_path / "e", ours, "e.example"))
    fetch(secured, good, "good", 2)


def test_the_host_that_was_dialled_has_to_be_in_the_certificate(
    start: Start, tmp_path: Path, ours: trustme.CA
) -> None:
    p = start("P", Role.PRODUCER, 1, tls=files(tmp_path / "p", ours, "p.example"))
    strict = files(tmp_path / "d", ours, "d.example")
    d = start("D", Role.CONSUMER, tls=strict)
    assert "127.0.0.1" in lost_reason(d, p).detail
    lenient = start("E", Role.CONSUMER, tls=attrs.evolve(strict, check_hostname=False))
    fetch(p, lenient, "lenient", 1)


@pytest.mark.parametrize("plain", ["P", "D"])
def test_a_side_with_tls_and_one_without_make_no_link(
    start: Start, tmp_path: Path, ours: trustme.CA, plain: str
) -> None:
    tls = files(tmp_path / "x", ours, "127.0.0.1")
    p = start("P", Role.PRODUCER, 1, tls=None if plain == "P" else tls, timings=SHORT)
    d = start("D", Role.CONSUMER, tls=None if plain == "D" else tls, timings=SHORT)
    lost_reason(d, p)
    assert p.agent.counters()["links"] == 0


def test_keys_are_needed_inside_of_tls_too(
    secured: Side, start: Start, tmp_path: Path, ours: trustme.CA
) -> None:
    tls = files(tmp_path / "d", ours, "d.example")
    d = start("D", Role.CONSUMER, tls=tls, keys=None)
    assert lost_reason(d, secured).reason is Reason.UNAUTHENTICATED


def test_nothing_older_than_tls_1_3(secured: Side, tmp_path: Path, ours: trustme.CA) -> None:
    old = files(tmp_path / "o", ours, "o.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(old.ca)
    context.load_cert_chain(old.cert, old.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(secured.agent.address, timeout=60) as raw,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(raw)


def test_whoever_does_not_speak_tls_is_cut_off(
    start: Start, tmp_path: Path, ours: trustme.CA, attack: Callable[..., Attacker]
) -> None:
    """One says HELLO in clear, one says nothing at all."""
    tls = files(tmp_path / "p", ours, "127.0.0.1")
    p = start("P", Role.PRODUCER, 1, tls=tls, timings=SHORT)
    d = start("D", Role.CONSUMER, tls=files(tmp_path / "d", ours, "d.example"))
    fetch(p, d, "before", 1)
    loud, silent = attack(p), attack(p)
    loud.send(loud.hello)
    assert loud.ended()
    assert silent.ended()
    until(lambda: p.agent._loop._lobby.count == 0)
    fetch(p, d, "after", 2)


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_a_file_that_cannot_be_used_is_named_at_the_start(
    tmp_path: Path, ours: trustme.CA, name: str
) -> None:
    tls = files(tmp_path / "x", ours, "127.0.0.1")
    for content in (None, "no PEM"):
        path = getattr(tls, name)
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        with pytest.raises(BadValue, match=f"tls.*{path.name}"):
            Agent.start(config("P", Role.PRODUCER, new_memory(), tls=tls))
