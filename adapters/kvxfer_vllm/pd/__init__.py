"""A real vLLM prefill/decode pair on this machine: start it, check it, break it.

Run as `python -m kvxfer_vllm.pd check | probes | up` in an environment that has vLLM.
Owns the harness only: the engines are vLLM's own servers in processes of their own,
loaded with the connector under test (kvxfer's or an in-tree one, to compare).
Refuses to import vLLM here. Invariant: everything listens on loopback, on ports that
were free at the start, and whatever was started is ended when the command ends.
"""
