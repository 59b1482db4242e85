"""Writes docs/server-fields.md: what the server does with each field of the requests of other APIs.

    python scripts/server_fields.py

Names are those of the APIs' own documentation; what is said of them is read off the code that parses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from edgekv.api.ollama_api import Options
from edgekv.server.application import ENDPOINTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "server-fields.md"
BODIES = {endpoint.path: endpoint.body for endpoint in ENDPOINTS} | {"options": Options}

_VLLM = """add_special_tokens allowed_token_ids bad_words cache_salt guided_choice guided_decoding_backend
        guided_grammar guided_json guided_regex guided_whitespace_pattern ignore_eos include_stop_str_in_output
        kv_transfer_params length_penalty logits_processors min_p min_tokens priority prompt_logprobs
        repetition_penalty request_id return_token_ids return_tokens_as_token_ids skip_special_tokens
        spaces_between_special_tokens stop_token_ids structured_outputs thinking_token_budget top_k
        truncate_prompt_tokens use_beam_search"""

# path (or the object `options`) and fields, by API
APIS = {
    "OpenAI: chat completions": (
        "/v1/chat/completions",
        """audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
        messages metadata modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key
        prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store
        stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options""",
    ),
    "OpenAI: completions": (
        "/v1/completions",
        """best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop
        stream stream_options suffix temperature top_p user""",
    ),
    "OpenAI: responses": (
        "/v1/responses",
        """background conversation include input instructions max_output_tokens max_tool_calls metadata model
        parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning
        safety_identifier service_tier store stream stream_options temperature text tool_choice tools
        top_logprobs top_p truncation user""",
    ),
    "Anthropic: messages": (
        "/v1/messages",
        """cache_control container context_management max_tokens mcp_servers messages metadata model output_config
        service_tier speed stop_sequences stream system temperature thinking tool_choice tools top_k top_p""",
    ),
    "Ollama: chat": (
        "/api/chat",
        "format keep_alive logprobs messages model options shift stream think tools top_logprobs truncate",
    ),
    "Ollama: generate": (
        "/api/generate",
        """context format images keep_alive logprobs model options prompt raw shift stream suffix system template
        think top_logprobs truncate""",
    ),
    "Ollama: the object `options`": (
        "options",
        """f16_kv frequency_penalty low_vram main_gpu min_p mirostat mirostat_eta mirostat_tau num_batch num_ctx
        num_gpu num_keep num_predict num_thread numa penalize_newline presence_penalty repeat_last_n
        repeat_penalty seed stop temperature tfs_z top_k top_p typical_p use_mlock use_mmap vocab_only""",
    ),
    "llama.cpp: completion": (
        "/completion",
        """cache_prompt dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers
        dynatemp_exponent dynatemp_range frequency_penalty grammar grammar_lazy grammar_triggers id_slot
        ignore_eos image_data json_schema logit_bias lora min_keep min_p mirostat mirostat_eta mirostat_tau n
        n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs post_sampling_probs presence_penalty
        prompt reasoning_format repeat_last_n repeat_penalty response_fields return_progress return_tokens
        samplers seed stop stream t_max_predict_ms t_max_prompt_ms temperature timings_per_token top_k
        top_n_sigma top_p typical_p xtc_probability xtc_threshold""",
    ),
    "llama.cpp: chat completions, beside OpenAI's": (
        "/v1/chat/completions",
        """add_generation_prompt chat_template_kwargs grammar json_schema min_p n_predict reasoning_budget
        reasoning_format repeat_penalty top_k typical_p""",
    ),
    "vLLM: chat completions, beside OpenAI's": (
        "/v1/chat/completions",
        "add_generation_prompt chat_template chat_template_kwargs continue_final_message documents echo "
        f"mm_processor_kwargs {_VLLM}",
    ),
    "vLLM: completions, beside OpenAI's": ("/v1/completions", f"prompt_embeds response_format {_VLLM}"),
}


HEAD = (
    "# Fields of requests",
    "",
    "*Reference.* Fields of the chat and completion requests of other APIs at the [server](server.md). *Honoured*",
    "fields have their effect. *Refused* ones are an error that names the field, unless the value is null or turns it",
    "off. Fields of *no effect* may have any value. A field that is not in the table is ignored.",
    "`python scripts/server_fields.py` writes this page from the code that parses requests.",
)


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


def page() -> str:
    """Return the page, as Markdown."""
    lines = [*HEAD]
    for api, (path, names) in APIS.items():
        body = BODIES[path]
        found = {name: standing_of(body, name) for name in sorted(set(names.split()))}
        off = {name: getattr(body, "refused", {}).get(name) for name in found}
        lines += ["", f"## {api}", "", "| | fields |", "|---|---|"]
        lines.append(f"| honoured | {_listed(name for name in found if found[name] == 'honoured')} |")
        lines.append(
            f"| refused | {_listed(_with_off(name, off[name]) for name in found if found[name] == 'refused')} |"
        )
        lines.append(f"| no effect | {_listed(name for name in found if found[name] == 'no effect')} |")
    lines += ["", "## Why some have no effect", "", "| because | fields |", "|---|---|"]
    for because in sorted(set(WITHOUT_EFFECT.values())):
        names = sorted(name for name, why in WITHOUT_EFFECT.items() if why == because)
        lines.append(f"| {because} | {_listed(names)} |")
    return "\n".join(lines) + "\n"


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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name if "`" in name else f"`{name}`" for name in names) or "none"


def _with_off(name: str, off: object) -> str:
    """Return a field with the values that turn it off."""
    values = off if isinstance(off, tuple) else ()
    return f"`{name}` (but {' or '.join(f'`{json.dumps(value)}`' for value in values)})" if values else f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
