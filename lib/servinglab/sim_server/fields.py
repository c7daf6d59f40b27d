"""Which fields of a request are honoured, which are taken and left unread, and which are refused?

None is passed over in silence. What would change only which words come is left unread, for the words mean nothing here;
what would change how many come, in what form, or after which text is done or refused, as is a name that nobody knows. A
field that is null asks for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

HONOURED = (
    "model", "max_tokens", "min_tokens", "ignore_eos", "stop", "include_stop_str_in_output", "stream",
    "stream_options", "priority",
)  # fmt: skip
"""What both endpoints do."""

CHAT, COMPLETION = ("messages", "max_completion_tokens"), ("prompt",)
"""What one of them does."""

IGNORED = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "length_penalty", "skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens",
    "add_generation_prompt", "chat_template_kwargs", "reasoning_effort", "include_reasoning", "verbosity",
    "parallel_tool_calls", "user", "metadata", "request_id", "safety_identifier", "service_tier", "store",
    "prompt_cache_key", "prompt_cache_retention", "cache_prompt",
)  # fmt: skip
"""Taken and left unread: they choose words, or are labels."""

_TEXT = {"type": "text"}
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "use_beam_search": (False,), "suffix": (None, ""),
    "logprobs": (None, False), "top_logprobs": (None, 0), "prompt_logprobs": (None,), "logit_bias": (None, {}),
    "tools": (None, []), "tool_choice": ("none", "auto"), "functions": (None, []), "function_call": ("none", "auto"),
    "response_format": (_TEXT,), "modalities": (["text"],), "audio": (None,), "prediction": (None,),
    "web_search_options": (None,), "stop_token_ids": (None, []), "bad_words": (None, []), "allowed_token_ids": (None,),
    "logits_processors": (None, []), "structured_outputs": (None,), "structural_tag": (None,), "guided_json": (None,),
    "guided_regex": (None,), "guided_choice": (None,), "guided_grammar": (None,), "guided_decoding_backend": (None,),
    "guided_whitespace_pattern": (None,), "truncate_prompt_tokens": (None,), "prompt_embeds": (None,),
    "documents": (None, []), "chat_template": (None,), "continue_final_message": (False,), "cache_salt": (None,),
    "mm_processor_kwargs": (None, {}), "kv_transfer_params": (None, {}), "vllm_xargs": (None, {}),
    "return_token_ids": (False,), "return_tokens_as_token_ids": (False,), "repetition_detection": (None,),
    "thinking_token_budget": (None,),
}  # fmt: skip
"""Not done here, and the values that don't ask for it; an error names the first of them."""

_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


def why_refused(fields: Mapping[str, Any], chat: bool) -> tuple[str, str] | None:
    """The first field that isn't done here, and why; None if all are.

    Examples
    --------
    >>> why_refused({"prompt": "soup", "temperature": 0.7, "tools": []}, chat=False)
    >>> why_refused({"prompt": "soup", "max_token": 7}, chat=False)
    ('max_token', 'max_token is not known here; did you mean max_tokens?')
    >>> why_refused({"prompt": "soup", "n": 2}, chat=False)
    ('n', 'n must be 1 here; got 2')
    """
    names = [*HONOURED, *(CHAT if chat else COMPLETION), *IGNORED, *REFUSED]
    for name, value in fields.items():
        if name not in names:
            near = get_close_matches(name, names, n=1)
            return name, f"{name} is not known here" + (f"; did you mean {near[0]}?" if near else "")
        harmless = REFUSED.get(name)
        # true is no 1, and 0 no false
        if harmless and value is not None and not any(type(value) is type(one) and value == one for one in harmless):
            return name, f"{name} must be {json.dumps(harmless[0])} here; got {json.dumps(value):.60}"
    options = fields.get("stream_options")
    for option in options if isinstance(options, dict) else ():
        if option not in _STREAM_OPTIONS:
            return "stream_options", f"stream_options.{option} is not known here"
    return None
