"""`kvxfer bench peers`: one agent with many requests in flight over many peers.

The agent under test has a thread of its own, as in use. Its peers are whole, each with a
session, control connection and transport session of its own, but share one thread:
64 threads on a few cores would measure the scheduler. Rooms: `pool` (memory and blocks),
`crowd` (the peers), `arm` (an agent with its crowds, and the load), `memory`, `run`
(the rounds), `report`.
"""
