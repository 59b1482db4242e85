"""List fields of other servers' APIs that edgekv lacks. Fields that would change the reply are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

Off: TypeAlias = tuple[Any, ...]  # values with which a field changes nothing, beside null

# Each field has the values that turn it off. The error names the first.
OF_OPENAI: Mapping[str, Off] = {
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
}
OF_LLAMA: Mapping[str, Off] = {
    "mirostat": (0,),
    "typical_p": (1,),
    "top_n_sigma": (-1,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "samplers": ([],),
    "lora": ([],),
    "chat_template_kwargs": ({},),
    "image_data": ([],),
    "min_keep": (0,),
    "n_cmpl": (1,),
    "n_indent": (0,),
    "t_max_predict_ms": (-1, 0),
    "t_max_prompt_ms": (-1, 0),
    "reasoning_format": ("auto", "deepseek"),
    "reasoning_budget": (-1,),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
}
OF_VLLM: Mapping[str, Off] = {
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
OF_ANTHROPIC: Mapping[str, Off] = {"container": (), "mcp_servers": ([],)}
REFUSED: Mapping[str, Off] = {**OF_OPENAI, **OF_LLAMA, **OF_VLLM, **OF_ANTHROPIC}

# Fields that are taken with any value, since no reply depends on them here, and why.
_SAME_MODEL = "one model answers, on one machine"
_NO_EFFORT = "models that run here have no levels of it"
_KEPT_ANYWAY = "the beginning of a conversation is never read again"
_WITH_ANOTHER = "it belongs to a field that is refused"
_NOTHING_STORED = "nothing is stored"
WITHOUT_EFFECT: Mapping[str, str] = {
    "cache_control": _KEPT_ANYWAY,
    "cache_prompt": _KEPT_ANYWAY,
    "cache_salt": _KEPT_ANYWAY,
    "context_management": "what does not fit is evicted",
    "id_slot": _SAME_MODEL,
    "max_tool_calls": "it limits tools that a server carries out, and there are none",
    "metadata": _NOTHING_STORED,
    "prediction": "drafts change the speed alone",
    "priority": "requests come in their order",
    "prompt_cache_key": _KEPT_ANYWAY,
    "prompt_cache_retention": _KEPT_ANYWAY,
    "reasoning": _NO_EFFORT,
    "reasoning_effort": _NO_EFFORT,
    "request_id": "replies have ids of their own",
    "safety_identifier": _NOTHING_STORED,
    "service_tier": _SAME_MODEL,
    "speed": _SAME_MODEL,
    "spaces_between_special_tokens": "control tokens have no text",
    "store": _NOTHING_STORED,
    "verbosity": _NO_EFFORT,
    "guided_decoding_backend": "there is one",
    "kv_transfer_params": _SAME_MODEL,
    "n_cache_reuse": _KEPT_ANYWAY,
    "n_discard": "what does not fit is evicted",
    "n_keep": "what does not fit is evicted",
    "return_progress": "comments of the stream tell the progress",
    "timings_per_token": "the end of the reply has the timings",
    "dry_allowed_length": _WITH_ANOTHER,
    "dry_base": _WITH_ANOTHER,
    "dry_penalty_last_n": _WITH_ANOTHER,
    "dry_sequence_breakers": _WITH_ANOTHER,
    "dynatemp_exponent": _WITH_ANOTHER,
    "mirostat_eta": _WITH_ANOTHER,
    "mirostat_tau": _WITH_ANOTHER,
    "xtc_threshold": _WITH_ANOTHER,
}

Standing: TypeAlias = Literal["honoured", "refused", "no effect"]


def standing_of(body: type[BaseModel], name: str) -> Standing | None:
    """Return the effect of a body's field on the reply; None = unknown field.

    Refused: with a value that would change the reply
    """
    declared = {field.alias or own: field for own, field in body.model_fields.items()}
    if name in getattr(body, "never", ()) or (name not in declared and name in getattr(body, "refused", ())):
        return "refused"
    if name in declared:
        has_effect = declared[name].annotation is not Any and name not in getattr(body, "told_apart", ())
        return "honoured" if has_effect else "no effect"
    return "no effect" if name in WITHOUT_EFFECT else None
