"""Benchmarks that are part of the library: what its own rooms cost, measured anywhere.

Each module measures one thing and gives plain numbers; `kvxfer bench` shows them.
"""
