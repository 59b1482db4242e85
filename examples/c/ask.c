// ask MODEL TEXT QUESTION [MIB]: answers a question about a text file of any size, in a process that holds at most MIB (256).
// It reads block by block with the question in mind: the question is fed as a probe, and the cells that it attends to stay.
#include <edgekv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK   "@TEXT@" // where the text stands in a rendered prompt
#define PROMPT MARK "\n\nAnswer in one sentence: %s"
#define PIECE  16384 // bytes of the text that are read at once
#define MIB    1048576.0

static char                       err[1024];
static struct edgekv_plan_request request;
static struct edgekv_plan         plan = { .n_bytes = sizeof(plan) };
static struct llama_model *       model;
static struct llama_context *     ctx;
static struct edgekv_cache *      cache;
static llama_token                tokens[PIECE + 8], block[4096], question[64];
static size_t                     n_block, n_question;

static void give_up(const char * reason) {
    fprintf(stderr, "ask: %s\n", reason);
    exit(1);
}

static void check(enum edgekv_status status) {
    if (status != EDGEKV_STATUS_OK) {
        give_up(err);
    }
}

// Evict down to the budget. The question's attention decides what stays; while an answer is said, the policy for all else.
static void evict(int by_question) {
    const struct edgekv_protection  protection = { sizeof(protection), request.n_sink, by_question ? 0 : request.n_recent, NULL, 0 };
    struct edgekv_compaction_params how = { .n_bytes = sizeof(how), .policy = by_question ? &plan.probe_policy : &plan.policy,
                                            .protection = &protection, .budget = plan.setting.budget, .probed = by_question,
                                            .generating = !by_question };
    struct edgekv_compaction        done;
    if (by_question) {
        check(edgekv_cache_probe(cache, question, n_question, NULL, 0, err, sizeof(err)));
    }
    how.reposition = plan.cache.repositions && edgekv_cache_rope_past(cache) + plan.setting.block > plan.n_ctx_train / 2;
    check(edgekv_cache_compact(cache, &how, &done, err, sizeof(err)));
}

static void feed(const llama_token * some, size_t n, int want_logits) {
    if (edgekv_cache_n_past(cache) + n > plan.n_tokens_max) {
        give_up("the text is longer than the model's context, and its keys cannot be moved; choose a model with plain RoPE");
    }
    check(edgekv_cache_feed(cache, some, n, want_logits, err, sizeof(err)));
}

// Feed the tokens that wait in the block.
static void read_block(void) {
    for (size_t i = 0; i < n_block; i += plan.n_ubatch) {
        feed(block + i, n_block - i < plan.n_ubatch ? n_block - i : plan.n_ubatch, 0);
    }
    if (n_block > 0) {
        evict(1);
    }
    n_block = 0;
}

static void read_tokens(const llama_token * some, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        block[n_block++] = some[i];
        if (n_block == plan.setting.block) {
            read_block();
        }
    }
}

// `is_template`: names of control tokens are these tokens, which those in a text must not be.
static size_t tokenize(const char * text, size_t n_bytes, int is_template, int is_first, llama_token * found, size_t n_max) {
    const int32_t n = llama_tokenize(llama_model_get_vocab(model), text, (int32_t) n_bytes, found, (int32_t) n_max, is_first,
                                     is_template);
    if (n < 0) {
        give_up("the question has more than 50 words or so; give a shorter one");
    }
    return (size_t) n;
}

static void read_file(FILE * file) {
    static char piece[PIECE];
    size_t      n = 0;
    while ((n += fread(piece + n, 1, PIECE - n, file)) > 0) {
        size_t cut = n; // before the last word, since tokens may reach into what follows
        for (; n == PIECE && cut > 0 && piece[cut - 1] != ' '; --cut) {}
        cut = cut > 1 ? cut - (n == PIECE) : n;
        read_tokens(tokens, tokenize(piece, cut, 0, 0, tokens, PIECE + 8));
        memmove(piece, piece + cut, n -= cut);
    }
}

static void answer(llama_token token) {
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    struct llama_sampler *     chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init_penalties(0, 64, 1.1f, 0.0f, 0.0f));
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    for (int i = 0; i < 128 && !llama_vocab_is_eog(vocab, token); ++i) {
        char piece[256];
        if (edgekv_cache_n_free(cache) == 0) {
            evict(0);
        }
        feed(&token, 1, 1);
        token           = llama_sampler_sample(chain, ctx, -1);
        const int32_t n = llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, 0); // none of a control token
        fwrite(piece, 1, n > 0 ? (size_t) n : 0, stdout);
    }
    llama_sampler_free(chain);
}

int main(int argc, char ** argv) {
    static char content[4096], prompt[8192];
    FILE *      file = argc > 3 ? fopen(argv[2], "rb") : NULL;
    if (file == NULL || ungetc(fgetc(file), file) == EOF) {
        give_up(argc < 4 ? "usage: ask MODEL TEXT QUESTION [MIB]" : "the text cannot be read, or is empty; give another file");
    }
    request                = edgekv_plan_request_default();
    request.ceiling_bytes  = (uint64_t) ((argc > 4 ? atof(argv[4]) : 256) * MIB);
    request.reserved_bytes = 1 << 18; // the arrays above, which are touched later
    check(edgekv_plan_make(argv[1], &request, &plan, err, sizeof(err)));
    check(edgekv_plan_open(argv[1], &plan, &model, &ctx, &cache, err, sizeof(err)));

    const struct llama_chat_message message = { "user", content };
    const char * const              form    = llama_model_chat_template(model, NULL);
    snprintf(content, sizeof(content), PROMPT, argv[3]);
    const int32_t n     = form ? llama_chat_apply_template(form, &message, 1, 1, prompt, sizeof(prompt) - 1) : -1;
    const char *  after = n > 0 && n < (int32_t) sizeof(prompt) ? strstr(prompt, MARK) : NULL;
    if (after == NULL) {
        give_up("the model has no chat template that llama.cpp knows; choose an instruct model");
    }
    n_question = tokenize(after + strlen(MARK), strlen(after + strlen(MARK)), 1, 0, question, plan.layout.n_probe);
    read_tokens(tokens, tokenize(prompt, (size_t) (after - prompt), 1, 1, tokens, PIECE));
    read_file(file);
    read_tokens(question, n_question - 1);
    read_block();
    answer(question[n_question - 1]); // whose logits are the first of the answer
    puts(""); // the answer ends its line
    fflush(stdout);
    fprintf(stderr, "%d tokens read and said, %u of %u cells, peak %.1f of %.1f MiB\n", edgekv_cache_n_past(cache),
            edgekv_cache_n_cells(cache), plan.layout.n_cells, edgekv_process_peak_bytes() / MIB, plan.ceiling_bytes / MIB);
    edgekv_cache_free(cache);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
