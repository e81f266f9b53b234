"""kvxfer moves KV caches from prefill to decode engines.

Public names live in the rooms: `kvxfer.driver` (the agent an engine talks to),
`kvxfer.layout` (cache geometry), `kvxfer.transport` (the table a network
implements), `kvxfer.testing` and `kvxfer.conformance`. Importing this package
alone pulls in neither trio nor numpy.
"""

__version__ = "0.1.0"
