"""Public test rigs: virtual time, fake wires, checkers. No pytest, no network.

An implementer or an adapter's author uses these to put the real machines into
any interleaving, deterministically.
"""
