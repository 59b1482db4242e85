"""List fields of other servers' APIs that edgekv lacks. Fields that would change the reply are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

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
