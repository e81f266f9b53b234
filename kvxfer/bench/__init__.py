"""Benchmarks that ship with the library: what `kvxfer bench` measures.

Owns cases, their timing and the record of where they ran. Knows no threshold that fails
a run: a figure is reported, never asserted. Invariant: every number in a report was
measured in the same process and the same interleaved rounds as its neighbours.
"""
