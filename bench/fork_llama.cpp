// Reads and generates with a fork of llama.cpp that its user built, at the defaults of that library.
//
// as_installed.py runs it in place of a Python (--fork). Compile it against the fork, of which nothing lies here:
//
//     g++ -O2 -I FORK/include -I FORK/ggml/include bench/fork_llama.cpp -o fork_llama -L LIBRARIES -lllama -lggml -Wl,-rpath,LIBRARIES
//     ./fork_llama MODEL TEXT_FILE THREADS TOKENS REPACK
//
// THREADS of 0 are the fork's own default. REPACK of 1 interleaves rows of weights as they are loaded (ik_llama.cpp's -rtr).
// It prints what stock_llama.py prints. Functions are those that old and new forks have.
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static constexpr int n_warm = 64; // tokens

// What llama_tokenize takes: a model in some forks, its vocabulary in others.
struct Tokenizer {
    const llama_model * model;
    operator const llama_model *() const { return model; }
    operator const llama_vocab *() const { return llama_model_get_vocab(model); }
};

static std::string clocks() {
    timespec processor;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &processor);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now().time_since_epoch();
    return "[" + std::to_string(wall.count()) + ", " + std::to_string(processor.tv_sec + processor.tv_nsec * 1e-9) + "]";
}

// Feed tokens, of which the last one is sampled after; return the likeliest token.
static llama_token feed(llama_context * context, int n_vocab, const llama_token * tokens, int n, int position, int n_batch) {
    llama_batch batch = llama_batch_init(std::min(n, n_batch), 0, 1);
    for (int begin = 0; begin < n; begin += n_batch) {
        batch.n_tokens = std::min(n_batch, n - begin);
        for (int i = 0; i < batch.n_tokens; ++i) {
            batch.token[i]     = tokens[begin + i];
            batch.pos[i]       = position + begin + i;
            batch.n_seq_id[i]  = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i]    = begin + i == n - 1;
        }
        if (llama_decode(context, batch) != 0) {
            std::fprintf(stderr, "cannot decode %d tokens\n", batch.n_tokens);
            std::exit(1);
        }
    }
    llama_batch_free(batch);
    const float * logits = llama_get_logits_ith(context, -1);
    return static_cast<llama_token>(std::max_element(logits, logits + n_vocab) - logits);
}

template <typename Params> static auto repack(Params & params, int) -> decltype(params.repack_tensors, void()) {
    params.repack_tensors = true;
    params.use_mmap       = false;
}

template <typename Params> static void repack(Params &, long) {
    std::fprintf(stderr, "this fork does not repack weights\n");
    std::exit(1);
}

static long peak_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("VmHWM:", 0) == 0) {
            return std::atol(line.c_str() + 6) * 1024;
        }
    }
    return 0;
}

int main(int argc, char ** argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: %s MODEL TEXT_FILE THREADS TOKENS REPACK\n", argv[0]);
        return 2;
    }
    std::ifstream     file(argv[2]);
    const std::string text{ std::istreambuf_iterator<char>(file), {} };
    const int         n_threads = std::atoi(argv[3]), n_generate = std::atoi(argv[4]);

    llama_log_set([](auto, auto, auto) {}, nullptr);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    if (std::atoi(argv[5]) != 0) {
        repack(model_params, 0);
    }
    llama_model * model = llama_model_load_from_file(argv[1], model_params);
    if (model == nullptr) {
        std::fprintf(stderr, "cannot load '%s'\n", argv[1]);
        return 1;
    }
    std::vector<llama_token> tokens(text.size() + 8);
    tokens.resize(llama_tokenize(Tokenizer{ model }, text.data(), text.size(), tokens.data(), tokens.size(), true, false));
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), n = static_cast<int>(tokens.size());

    llama_context_params params = llama_context_default_params();
    if (n_threads > 0) {
        params.n_threads = params.n_threads_batch = n_threads;
    }
    const int n_batch = static_cast<int>(params.n_batch);
    params.n_ctx      = 2 * n_warm;
    llama_context * warm = llama_init_from_model(model, params); // weights come in
    feed(warm, n_vocab, tokens.data(), std::min(n, n_warm), 0, n_batch);
    llama_free(warm);

    params.n_ctx            = n + n_generate + 8;
    llama_context * context = llama_init_from_model(model, params);
    if (context == nullptr) {
        std::fprintf(stderr, "cannot make a context of %d tokens\n", n + n_generate + 8);
        return 1;
    }
    const std::string begin = clocks();
    llama_token       token = feed(context, n_vocab, tokens.data(), n, 0, n_batch);
    const std::string read  = clocks();
    for (int i = 0; i < n_generate; ++i) {
        token = feed(context, n_vocab, &token, 1, n + i, n_batch);
    }
    const std::string end = clocks();
    std::printf("{\"tokens\": %d, \"times\": [%s, %s, %s], \"peak\": %ld}\n", n, begin.c_str(), read.c_str(), end.c_str(), peak_bytes());
    return 0;
}
