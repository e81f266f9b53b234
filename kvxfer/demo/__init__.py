"""The demo: a small model as a prefill and a decode engine, joined by kvxfer.

`kvxfer demo` runs it. Importing this package alone pulls in neither numpy nor
trio, so that `kvxfer.demo.threads` can still act before numpy is loaded.
"""
