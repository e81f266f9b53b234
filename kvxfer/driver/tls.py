"""TLS for control connections: certificates on both sides, over the standard library.

Owns the contexts. Knows no protocol and no socket. Invariant: neither side talks to one
whose certificate the given authority did not sign; nothing older than TLS 1.3.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs

from kvxfer.errors import BadValue


@attrs.frozen(kw_only=True)
class TlsFiles:
    """PEM files: this side's certificate (chain), its key, and whom to believe.

    `check_hostname`: the host that was dialled has to be in the certificate of whoever
    answers; off where engines are dialled by addresses that no certificate names.
    """

    cert: Path = attrs.field(converter=Path)
    key: Path = attrs.field(converter=Path)
    ca: Path = attrs.field(converter=Path)
    check_hostname: bool = True

    def contexts(self) -> TlsContexts:
        """Both contexts. BadValue, naming the file, where one cannot be used."""
        return TlsContexts(
            accepting=self._context(ssl.PROTOCOL_TLS_SERVER, check_hostname=False),
            dialling=self._context(ssl.PROTOCOL_TLS_CLIENT, check_hostname=self.check_hostname),
        )

    def _context(self, protocol: int, *, check_hostname: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = check_hostname
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.ca)
        except OSError as error:
            raise BadValue("tls.ca", str(self.ca), f"certificates in PEM ({error})") from None
        try:
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            bound = f"a certificate and its key in PEM ({error})"
            raise BadValue("tls.cert, tls.key", f"{self.cert}, {self.key}", bound) from None
        return context


@attrs.frozen(kw_only=True)
class TlsContexts:
    """One for each direction of dialling."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext
