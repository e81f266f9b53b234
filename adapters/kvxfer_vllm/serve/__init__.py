"""`kvxfer pd`: a set of prefill and decode engines with a router, from one small file.

Owns the file, the command lines it stands for, and the life of what was started from it.
Knows vLLM's options by name only and imports nothing of it.
"""
