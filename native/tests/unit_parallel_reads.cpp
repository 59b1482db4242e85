// Reads in pieces: the bytes are where they belong, whoever reads them and whoever else asks. A file that was changed is said.
#include "cache_fixture.h"
#include "ggml-cpp.h"
#include "hooks/parallel_reads.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

using namespace edgekv;

void test_parallel_reads(const char * path) {
    constexpr size_t       n_numbers = 3'000'000, n_asking = 3;
    const std::string      name      = std::string(path) + ".pieces";
    const ggml_context_ptr whole(ggml_init({ 4 * n_numbers + (1 << 20), nullptr, false }));
    gguf_context_ptr       gguf(gguf_init_empty());
    ggml_tensor *          numbers = ggml_new_tensor_1d(whole.get(), GGML_TYPE_I32, n_numbers);
    ggml_set_name(numbers, "numbers");
    std::iota(static_cast<int32_t *>(numbers->data), static_cast<int32_t *>(numbers->data) + n_numbers, 0);
    gguf_add_tensor(gguf.get(), numbers);
    CHECK(gguf_write_to_file(gguf.get(), name.c_str(), false));
    std::ifstream stream(name, std::ios::binary);
    const Bytes   bytes{ std::istreambuf_iterator<char>(stream), {} };
    stream.close();
    {
        const auto    file = WeightsFile::open(name.c_str(), true);
        ParallelReads alone(file), reads(file);
        reads.begin();
        const auto ask = [&](ParallelReads & by, size_t seed) { // spans of a byte to 4 MiB
            Bytes                            found(bytes.size());
            std::vector<ParallelReads::Span> spans;
            size_t                           begin = 0;
            for (size_t n = seed; begin < bytes.size(); n = 7 * n % (4 << 20) + 1) {
                n = std::min(n, bytes.size() - begin);
                spans.push_back({ begin, found.data() + begin, n });
                begin += n;
            }
            const int result = by.read(spans);
            return result == 0 && found == bytes ? 0 : result == 0 ? 1000 : result;
        };
        CHECK(ask(alone, 1) == 0 && reads.read({}) == 0);
        const auto ask_at_once = [&](int expected) {
            std::vector<std::thread> asking;
            std::atomic<size_t>      n_right{ 0 };
            for (size_t i = 0; i < n_asking; ++i) {
                asking.emplace_back([&, i] {
                    for (size_t seed = 1; seed < 5; ++seed) {
                        n_right += ask(reads, 1'000'003 * seed + i) == expected;
                    }
                });
            }
            for (std::thread & thread : asking) {
                thread.join();
            }
            CHECK(n_right == 4 * n_asking);
        };
        ask_at_once(0);
        std::ofstream(name, std::ios::app) << 'x';
        ask_at_once(-1);
    }
    std::filesystem::remove(name);
}
