"""Prints a folder for PYTHONPATH that holds vLLM's Python sources of the version named.

For versions of which PyPI has no build for CPU. Owns nothing; `sdist` has it.
"""

import sys

import click
import sdist

click.echo(sdist.library_of(sys.argv[1]))
