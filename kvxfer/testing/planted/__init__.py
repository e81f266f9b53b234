"""Faults that are planted in the core on purpose, to prove that the checks can fail.

Each is one table cell or one method, replaced for the time of a search. Nothing
in the library imports this package.
"""
