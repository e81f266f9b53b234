"""Windows and states under vLLM's own scheduler: the blocks of what is handed over are there.

vLLM drops the blocks that a window has left behind. At every length of a prompt, P must
still hold, and D must have been given, the blocks of all tokens that D's window reaches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_loopback_pair import tensor
from vllm_real_engine import BLOCK, BLOCKS, Engine, write_config

from kvxfer.layout.tokens import wanted_tokens
from kvxfer_vllm.geometry import cache_groups, describe_groups

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
base = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")
if not hasattr(base, "KVConnectorTransferResults"):
    pytest.skip("this vLLM is served with one plain group only", allow_module_level=True)

WINDOW = 20
LENGTHS = range(2, 70)
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
CONSUME = {
    "do_remote_prefill": True,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_config(tmp_path)
    return tmp_path


def missing(tables: Any, tokens: int) -> list[int]:
    """Tokens that the next one's window reaches and that lie in no block."""
    _, window = tables
    first = max(0, tokens - (WINDOW - 1))
    blocks = window.blocks.tolist()
    at = {token: (token - window.first_token) // BLOCK for token in range(first, tokens)}
    return [token for token, entry in at.items() if blocks[entry] == 0]


def test_a_producer_holds_the_whole_window(folder: Path) -> None:
    engine = Engine(folder, "kv_producer", "fail", "KvxferConnector", window=WINDOW)
    for length in LENGTHS:
        engine.add(f"cmpl-{length}-0-0badcafe", PRODUCE, prompt=range(length))
        engine.step()
        (send,), _, _ = engine.step()
        assert send.offer.token_count == length - 1
        assert missing(send.offer.tables, length - 1) == []
        engine.step(finished_sending={f"cmpl-{length}-0-0badcafe"})


def test_a_consumer_is_given_the_whole_window(folder: Path) -> None:
    engine = Engine(folder, "kv_consumer", "fail", "KvxferConnector", window=WINDOW)
    dropped = 0
    for length in LENGTHS:
        name = f"cmpl-{length}-0-0badcafe"
        engine.add(name, CONSUME, prompt=range(length))
        (receive,), _, _ = engine.step()
        register = receive.register
        assert (register.token_start, register.token_stop) == (0, length - 1)
        assert missing(register.tables, length - 1) == []
        dropped += register.tables[1].blocks.tolist().count(0)
        engine.step(finished_recving={name})
        # The last token of the prompt is computed here.
        assert engine.step()[2] == {name: 1}
    assert dropped > 0


def test_no_block_that_the_prefix_cache_gives_on_lacks_a_token(folder: Path) -> None:
    """vLLM hashes every full block of a load, the one in which a window begins, too."""
    engine = Engine(folder, "kv_consumer", "fail", "KvxferConnector", window=WINDOW)
    groups = cache_groups(engine.scheduler.kv_cache_config, prefix_caching=True)
    memory = {f"l{i}": tensor(np.zeros((BLOCKS, 2, BLOCK, 8), np.uint16)) for i in range(2)}
    window = describe_groups(memory, groups, 2)[0].groups[1]
    for length in LENGTHS:
        name = f"cmpl-{length}-0-0badcafe"
        engine.add(name, CONSUME, prompt=range(length))
        (receive,), _, _ = engine.step()
        register = receive.register
        first, _ = wanted_tokens(window, register.token_start, register.token_stop)
        filled = [i for i, block in enumerate(register.tables[1].blocks.tolist()) if block]
        assert first == filled[0] * BLOCK
        engine.step(finished_recving={name})
        engine.step()


@pytest.mark.parametrize("length", [2, 16, 17, 33, 64])
def test_a_state_is_that_of_the_tokens_handed_over(folder: Path, length: int) -> None:
    name = "cmpl-a-0-0badcafe"
    producer = Engine(folder, "kv_producer", "fail", "KvxferConnector", states=True)
    producer.add(name, PRODUCE, prompt=range(length))
    _, _, computed = producer.step()
    assert computed == {name: length - 1}
    (send,), _, _ = producer.step()
    consumer = Engine(folder, "kv_consumer", "fail", "KvxferConnector", states=True)
    consumer.add(name, CONSUME, prompt=range(length))
    (receive,), _, _ = consumer.step()
    for tables in (send.offer.tables, receive.register.tables):
        _, state = tables
        assert (state.first_token, state.blocks.size) == (0, 1)
        assert int(state.blocks[0]) != 0
    assert send.offer.token_count == receive.register.token_stop == length - 1
    assert send.offer.digest == receive.register.digest
    consumer.step(finished_recving={name})
    assert consumer.step()[2] == {name: 1}
