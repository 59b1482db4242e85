"""Values that are wrong, at the edge, or unusual, for the parts of a GGUF file."""

from __future__ import annotations

import math

COUNTS = (0, 1, 2, 3, 127, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
INTEGERS = (
    *(0, 1, 2, 3, 5, 7, 15, 17, 30, 48, 63, 64, 65, 96, 128, 512, 513),
    *(1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, -1),
)
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 1e-45, 1e38, -1e38, 1e-5)
GGML_TYPES = (*range(44), 255, (1 << 32) - 1)
TOKENS = (
    *(b"", b" ", b"\0", b"\xff", b"\xf7\xbf\xbf\xbf", b"\xed\xa0\x80", b"<0x", b"<0xZZ>", b"<0x41>", b"<s>", b"</s>"),
    *(b"[EMPTY_7]", b"<|im_end|>", b"<|eot_id|>", b"a" * 5000, "\u2581".encode(), "\u0120".encode(), b"%s%n", b"a\0b"),
)
TOKENIZERS = (
    *(b"llama", b"gpt2", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4"),
    *(b"test", b"whitespace", b"hybriddna", b"x"),
)
PRE_TOKENIZERS = (
    *(b"gpt-2", b"llama-bpe", b"qwen2", b"deepseek-llm"),
    *(b"kimi-k2", b"gemma4", b"default", b"none"),
)
FLAGS = (
    *(b"add_bos_token", b"add_eos_token", b"add_sep_token"),
    *(b"add_space_prefix", b"remove_extra_whitespaces"),
)
ARCHITECTURES = (
    *(b"llama", b"qwen2", b"qwen3", b"gemma", b"gemma2", b"phi3", b"mistral3", b"starcoder2", b"falcon", b"mamba"),
    *(b"bert", b"deci", b"olmo", b"stablelm", b"granite", b"minicpm", b"clip", b"internlm2"),
    *(b"lfm2", b"gemma3", b"gemma3n", b"gemma4", b"granitehybrid", b"falcon-h1", b"jamba", b"nemotron_h", b"plamo2"),
    *(b"qwen3next", b"qwen35", b"mamba2", b"gpt-oss", b"cohere2", b"llama4", b"deepseek2", b"minicpm3", b"glm4moe"),
)
# What says how much a model keeps of its tokens, behind the architecture's name; patterns have one for each layer.
CACHE_PATTERNS = (
    *(b"attention.sliding_window_pattern", b"attention.recurrent_layers", b"attention.head_count_kv"),
    *(b"feed_forward_length", b"rope.dimension_sections"),
)
CACHE_KEYS = (
    *CACHE_PATTERNS,
    *(b"attention.sliding_window", b"attention.shared_kv_layers", b"attention.key_length_swa", b"rope.freq_base_swa"),
    *(b"attention.value_length_swa", b"rope.dimension_count_swa", b"embedding_length_per_layer_input"),
    *(b"attention.kv_lora_rank", b"attention.q_lora_rank", b"attention.key_length_mla", b"attention.value_length_mla"),
    *(b"ssm.conv_kernel", b"ssm.inner_size", b"ssm.state_size", b"ssm.time_step_rank", b"ssm.group_count"),
    *(b"shortconv.l_cache", b"full_attention_interval", b"nextn_predict_layers", b"leading_dense_block_count"),
    *(b"expert_count", b"expert_used_count", b"expert_shared_count", b"interleave_moe_layer_step"),
)
# A sandbox refuses steps that are too large, but not endlessly many small ones: those are left to a worker process.
TEMPLATES = (
    *(b"", b"{{", b"{% raise %}", b"{{ 1 / 0 }}", b"{{ messages[9].content }}", b"{{ none.x.y }}", b"\xff\xfe"),
    *(b"{{ 2 ** 99999999 }}", b"{{ 'x' * 2000000000 }}", b"{{ '%2000000000d' % 1 }}", b"{{ 'x'.center(2000000000) }}"),
    *(b"{% for m in messages %}{{ m.content }}{% endfor %}", b"{% for i in range(100000) %}{{ i }}{% endfor %}"),
    *(b"{% include 'x' %}", b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", b"{{ messages.__class__.__mro__ }}"),
    *(b"{{ [1] | sum(start='x') }}", b"{{ range(10 ** 9) | list }}", b"{{ messages | tojson }}"),
    *(b"{{ raise_exception('no') }}", b"{{ bos_token * 1000 }}"),
)
