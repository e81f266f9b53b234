"""A stand-in for vLLM's server in tests of the harness: same routes, made-up numbers.

Run as `python pd_fake_engine.py PORT FAULTS`. FAULTS is a comma-separated list:
`dies` (ends at start), `silent` (never healthy), `leaks` (keeps a block of each loaded
prompt), `lingers` (the same, but each scrape gives one back), `wrong` (answers other
tokens), `garbles` (the same, after a load only), `hangs` (never answers a load),
`recomputes` (loads nothing), `refuses` (fails each load and logs the digest as the reason),
`fails` (fails each load without a word). Standard library only: it starts fast.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCKS = 101


class Handler(BaseHTTPRequestHandler):
    """All state is the class's; requests of the tests that share it come one by one."""

    faults: frozenset[str] = frozenset()
    external = local = finished = computed_none = held = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if "silent" in self.faults else 200, "")
        else:
            self.answer(200, self.metrics())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(*self.complete(body))

    def complete(self, body: dict[str, Any]) -> tuple[int, str]:
        engine = type(self)
        prompt = body["prompt"]
        params = body.get("kv_transfer_params") or {}
        loads = bool(params.get("do_remote_prefill")) and "recomputes" not in self.faults
        if loads and self.faults & {"refuses", "fails"}:
            if "refuses" in self.faults:
                name = params["transfer_id"]
                sys.stderr.write(f"transfer x0.0:{name}: lost, DIGEST_MISMATCH\n")
            return 500, '{"error": "load failed"}'
        if loads and "hangs" in self.faults:
            time.sleep(600)
        # As vLLM does: a prompt of one token that was loaded counts as computed.
        counts = loads and len(prompt) > 1
        engine.external += len(prompt) if counts else 0
        engine.local += 0 if counts else len(prompt)
        engine.held += loads and bool(self.faults & {"leaks", "lingers"})
        engine.finished += 1
        engine.computed_none += loads or len(prompt) == 1
        shift = "wrong" in self.faults or (loads and "garbles" in self.faults)
        tokens = [(sum(prompt) + shift + i) % 2000 for i in range(body["max_tokens"])]
        return 200, json.dumps({"choices": [{"token_ids": tokens}]})

    def metrics(self) -> str:
        engine = type(self)
        held = engine.held
        if "lingers" in self.faults:
            engine.held = max(0, held - 1)
        lines = {
            'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': engine.external,
            'vllm:prompt_tokens_by_source_total{source="local_compute"}': engine.local,
            'vllm:request_prefill_kv_computed_tokens_bucket{le="1.0"}': engine.computed_none,
            "vllm:request_prefill_kv_computed_tokens_count": engine.finished,
            "vllm:kv_cache_usage_perc": held / (BLOCKS - 1),
            f'vllm:cache_config_info{{num_gpu_blocks="{BLOCKS}"}}': 1,
        }
        return "".join(f"{name} {value}\n" for name, value in lines.items())

    def answer(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the log is for what the tests look for."""


def main() -> None:
    port, faults = sys.argv[1:]
    Handler.faults = frozenset(faults.split(","))
    if "dies" in Handler.faults:
        sys.exit("no memory for the cache")
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
