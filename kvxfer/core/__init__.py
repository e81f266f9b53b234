"""The protocol core: sans-I/O state machines.

No clock, no randomness, no thread, no socket, no logger. Events and the time go
in, one ordered batch of effects comes out. Imports attrs and the standard
library alone.
"""
