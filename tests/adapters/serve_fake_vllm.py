"""A stand-in for `vllm serve MODEL ...` in tests of `kvxfer pd`. Standard library only.

FAKE_FAULT in its environment: `dies` (ends at start), `silent` (never healthy), `stubborn`
(ignores SIGTERM). It starts a child, as vLLM does, and writes its pid to its output.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULT = os.environ.get("FAKE_FAULT", "")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(503 if FAULT == "silent" else 200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.log_message("asked for %s", body["model"])
        self.answer(200, {"choices": [{"token_ids": [1] * body["max_tokens"]}]})

    def answer(self, status: int, plain: dict[str, object]) -> None:
        data = json.dumps(plain).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--kv-transfer-config", type=json.loads)
    options, _ = parser.parse_known_args()
    if FAULT == "dies":
        sys.exit("no memory for the cache")
    if FAULT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    sys.stderr.write(f"child {child.pid}\n")
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
