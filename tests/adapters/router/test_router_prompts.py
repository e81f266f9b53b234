"""Which requests share a beginning, for every form of a prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer_router.legs import CHAT, COMPLETIONS
from kvxfer_router.prompts import BLOCK_TOKENS, BLOCKS_MAX, BYTES_PER_TOKEN, prompt_of

BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


def text(prompt: object, **fields: Any) -> Any:
    return prompt_of(COMPLETIONS, {"model": "m", "prompt": prompt, **fields})


def shared(one: Any, other: Any) -> int:
    return sum(a == b for a, b in zip(one.blocks, other.blocks, strict=False))


def test_texts_share_their_first_blocks() -> None:
    start = "x" * (2 * BLOCK_BYTES)
    one, other = text(start + "a" * BLOCK_BYTES), text(start + "b" * BLOCK_BYTES)
    assert len(one.blocks) == 3
    assert shared(one, other) == 2
    assert one.size_tokens == 3 * BLOCK_TOKENS


def test_a_difference_at_the_start_is_in_every_block() -> None:
    rest = "y" * (4 * BLOCK_BYTES)
    assert shared(text("a" + rest), text("b" + rest)) == 0


def test_token_ids_count_one_by_one() -> None:
    ids = list(range(BLOCK_TOKENS * 2 + 5))
    one = text(ids)
    assert (one.size_tokens, len(one.blocks)) == (BLOCK_TOKENS * 2 + 5, 2)
    assert shared(one, text([*ids[: BLOCK_TOKENS + 1], 999])) == 1


@pytest.mark.parametrize("odd", [1 << 40, "text", None, 1.5])
def test_a_list_that_is_no_list_of_ids_has_a_size_and_no_names(odd: object) -> None:
    one = text([*range(200), odd])
    assert (one.size_tokens, one.blocks) == (201, ())


def test_the_next_turn_of_a_conversation_begins_with_the_last_one() -> None:
    turn = [{"role": "system", "content": "s" * 600}, {"role": "user", "content": "u" * 600}]
    one = prompt_of(CHAT, {"messages": turn})
    reply = [{"role": "assistant", "content": "a" * 600}]
    assert shared(one, prompt_of(CHAT, {"messages": turn + reply})) == len(one.blocks) > 2


@pytest.mark.parametrize(
    "fields", [{"model": "other"}, {"cache_salt": "salt"}, {"tools": [{"type": "function"}]}]
)
def test_what_else_a_prefix_cache_depends_on(fields: dict[str, Any]) -> None:
    prompt = "z" * (3 * BLOCK_BYTES)
    assert shared(text(prompt), text(prompt, **fields)) == 0


def test_a_long_prompt_has_a_bounded_number_of_names() -> None:
    assert len(text("q" * (BLOCK_BYTES * (BLOCKS_MAX + 50))).blocks) == BLOCKS_MAX


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(path=st.sampled_from([COMPLETIONS, CHAT]), prompt=JSON, model=JSON)
def test_any_json_has_a_size(path: str, prompt: object, model: object) -> None:
    body = {"prompt": prompt, "messages": prompt, "model": model}
    assert prompt_of(path, body) == prompt_of(path, dict(body))
