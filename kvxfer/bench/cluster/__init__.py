"""`kvxfer sim cluster`: hundreds of engines by discrete events, from measured costs.

What a step, a descriptor and a byte cost is read from a file of measured figures; what
follows for time to first token and time per output token under load is computed. Rooms:
`costs` (the figures), `ways` (who posts and who polls), `engines` (steps of P and D),
`router`, `trace` (requests), `run`, `validate` (the same as was measured, first).
"""
