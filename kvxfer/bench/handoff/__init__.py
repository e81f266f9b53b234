"""`kvxfer bench handoff`: what a transfer costs the engines' own threads.

Two processes stand for a prefill and a decode engine. Each runs steps of a known length
on its main thread and, between them, hands requests off and polls for results, as an
engine does. Rooms: `ways` (the same hand-off by kvxfer, by NIXL with a writer thread, by
NIXL inline), `engine` (a process), `run` (both processes and the rounds), `report`.
"""
