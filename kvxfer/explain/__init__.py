"""How the cache of one engine lands in another's, for people who debug a mismatch.

Owns descriptor files, the words and the picture. Knows no transport and no clock.
Invariant: every count and every range shown is that of a plan that `kvxfer.layout`
made; nothing is worked out a second time for show but the reasons, and tests hold those
against the plans.
"""
