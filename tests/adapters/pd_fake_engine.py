"""A stand-in for vLLM's server in tests of the harness: same routes, made-up numbers.

Run as `python pd_fake_engine.py PORT ROLE FAULTS`. FAULTS is a comma-separated list:
`dies` (ends at start), `silent` (never healthy), `leaks` (keeps a block of each loaded
prompt), `wrong` (answers other tokens), `recomputes` (loads nothing), `refuses` (fails
each load and logs the digest as the reason), `fails` (fails each load without a word).
"""

from __future__ import annotations

import sys

import attrs
from aiohttp import web

BLOCKS = 101


@attrs.define
class Engine:
    role: str
    faults: frozenset[str]
    external: int = 0
    local: int = 0
    finished: int = 0
    computed_none: int = 0
    held: int = 0

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body["prompt"]
        params = body.get("kv_transfer_params") or {}
        loads = bool(params.get("do_remote_prefill")) and "recomputes" not in self.faults
        if loads and self.faults & {"refuses", "fails"}:
            if "refuses" in self.faults:
                line = f"transfer x0.0:{params['transfer_id']}: lost, DIGEST_MISMATCH"
                sys.stderr.write(line + "\n")
            return web.json_response({"error": "load failed"}, status=500)
        self.external += len(prompt) if loads else 0
        self.local += 0 if loads else len(prompt)
        self.held += loads and "leaks" in self.faults
        self.finished += 1
        self.computed_none += loads or len(prompt) == 1
        shift = 1 if "wrong" in self.faults else 0
        tokens = [(sum(prompt) + shift + i) % 2000 for i in range(body["max_tokens"])]
        return web.json_response({"choices": [{"token_ids": tokens}]})

    async def metrics(self, _: web.Request) -> web.Response:
        lines = {
            'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': self.external,
            'vllm:prompt_tokens_by_source_total{source="local_compute"}': self.local,
            'vllm:request_prefill_kv_computed_tokens_bucket{le="1.0"}': self.computed_none,
            "vllm:request_prefill_kv_computed_tokens_count": self.finished,
            "vllm:kv_cache_usage_perc": self.held / (BLOCKS - 1),
            f'vllm:cache_config_info{{num_gpu_blocks="{BLOCKS}"}}': 1,
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in lines.items()))

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if "silent" in self.faults else 200)


def main() -> None:
    port, role, faults = sys.argv[1:]
    engine = Engine(role=role, faults=frozenset(faults.split(",")))
    if "dies" in engine.faults:
        sys.exit("no memory for the cache")
    app = web.Application()
    app.router.add_post("/v1/completions", engine.complete)
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_get("/health", engine.health)
    web.run_app(app, host="127.0.0.1", port=int(port), print=lambda _: None)


if __name__ == "__main__":
    main()
