"""Rules between fields, which the published description can only give as text; schemathesis loads this as its hooks.

A request that the description allows is refused by these rules alone. They are repeated here, for a model whose
tokens are bytes.
"""

import os
from typing import Any

import schemathesis

CONTEXT, SEQUENCES, TOKENS, API_TOKENS = (int(number) for number in os.environ["LIMITS_OF_THE_SERVER"].split())


def keeps_completion_rules(body: dict[str, Any]) -> bool:
    n, prompt = body.get("n") or 1, body["prompt"]
    new = 16 if body.get("max_tokens") is None else body["max_tokens"]
    several = isinstance(prompt, list) and isinstance(prompt[0], str | list)
    lengths = [max(1, _tokens(one)) for one in (prompt if several else [prompt])]
    return (
        body.get("best_of") in (None, n)
        and bool(body.get("stream") or body.get("stream_options") is None)
        and len(lengths) * n <= SEQUENCES
        and max(lengths) + new <= CONTEXT
        and (sum(lengths) + new * len(lengths)) * n <= TOKENS
    )


def keeps_api_rules(body: dict[str, Any]) -> bool:
    new = 64 if body.get("tokens_to_generate") is None else body["tokens_to_generate"]
    top_p, beams = body.get("top_p") or 0, body.get("beam_width")
    longest = max(map(_tokens, body["prompts"])) + bool(body.get("add_BOS"))
    return (
        ("" not in body["prompts"] or bool(body.get("add_BOS")))
        and (new > 0 or (bool(body.get("logprobs")) and not beams))
        and not (top_p and body.get("top_k"))
        and bool(top_p or not (body.get("top_p_decay") or body.get("top_p_bound")))
        and (body.get("top_p_bound") or 0) <= top_p
        and (not beams or len(body["prompts"]) == 1)
        and longest + new <= CONTEXT
        and (longest + new) * max(len(body["prompts"]), beams or 1) <= API_TOKENS
    )


def keeps_chat_rules(body: dict[str, Any]) -> bool:
    """True if fields of /v1/chat/completions fit each other; the template writes a byte after each message."""
    n, new = body.get("n") or 1, body.get("max_tokens") or body.get("max_completion_tokens")
    contents = [one["content"] for one in body["messages"]]
    texts = [one if isinstance(one, str) else "".join(part["text"] for part in one) for one in contents]
    length = sum(_tokens(text) + 1 for text in texts)
    return (
        bool(body.get("stream") or body.get("stream_options") is None)
        and bool(body.get("logprobs") or not body.get("top_logprobs"))
        and (not body.get("max_tokens") or body.get("max_completion_tokens") in (None, new))
        and n <= SEQUENCES
        and length < CONTEXT
        and (length + 1) * n <= TOKENS
    )


def _tokens(text: str | list[int]) -> int:
    return len(text.encode() if isinstance(text, str) else text)


RULES = {"/api": keeps_api_rules, "/v1/completions": keeps_completion_rules, "/v1/chat/completions": keeps_chat_rules}


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Leave out what the description allows and a rule between fields refuses."""
    mode = case.meta and case.meta.generation.mode
    if not (mode and mode.is_positive and case.path in RULES and isinstance(case.body, dict)):
        return True
    return RULES[case.path](case.body)
