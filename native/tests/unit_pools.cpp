// Rows in several pools, as heads of two sizes or in two memories would have them: what is shared, bounded and counted.
#include "cache_fixture.h"
#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "rows/flat_cache.h"

#include <numeric>
#include <random>

using namespace edgekv;

namespace {

constexpr uint32_t mean = 40, largest = 3 * mean;

const edgekv_layout layout = { sizeof(edgekv_layout), mean + 2 * n_ubatch, largest + 2 * n_ubatch, 0 };

// The rows of a context in a pool a layer; pool 0 in memory of the given type.
class Pools {
  public:
    Pools(const Context & context, ggml_backend_buffer_type_t first) {
        auto & kv   = dynamic_cast<llama_kv_cache &>(*context.ctx->get_memory());
        auto   flat = std::make_unique<FlatCache>(layout);
        for (const FlatCache::Layer & layer : kv.flat->layers()) {
            const auto type = flat->layers().empty() ? first : ggml_backend_cpu_buffer_type();
            contexts_.emplace_back(ggml_init({ 2 * ggml_tensor_overhead(), nullptr, true }));
            flat->add_layer(contexts_.back().get(), type, layer.il, layer.n_head(), layer.n_head_kv,
                            layer.k->type, layer.head_dim_k, layer.v->type, layer.head_dim_v);
            buffers_.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(contexts_.back().get(), type));
            ggml_backend_buffer_clear(buffers_.back().get(), 0);
        }
        flat->notes() = kv.flat->notes();
        kv.flat       = std::move(flat);
    }

  private:
    std::vector<ggml_context_ptr>        contexts_;
    std::vector<ggml_backend_buffer_ptr> buffers_;
};

// Memory that the host can read, but is said to be a device's.
ggml_backend_buffer_type_t device_memory() {
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type copy = *ggml_backend_cpu_buffer_type();
        copy.iface.is_host            = [](ggml_backend_buffer_type_t) { return false; };
        return copy;
    }();
    return &type;
}

std::vector<size_t> numbers_held(const Cache & cache) {
    std::vector<size_t> held;
    for (const Head & head : read_all(cache)) {
        held.push_back(head.positions.size());
    }
    return held;
}

} // namespace

// Two sizes of heads: what fits all rows together need not fit the pool.
void test_pools_of_rows() {
    const ggml_context_ptr context(ggml_init({ 8 * ggml_tensor_overhead(), nullptr, true }));
    FlatCache              flat({ sizeof(edgekv_layout), 64, 192 });
    flat.add_layer(context.get(), ggml_backend_cpu_buffer_type(), 0, 2, 2, GGML_TYPE_F16, 64, GGML_TYPE_F16, 64);
    flat.add_layer(context.get(), ggml_backend_cpu_buffer_type(), 3, 4, 2, GGML_TYPE_F16, 128, GGML_TYPE_F16, 128);
    CHECK(flat.pools().size() == 2 && flat.n_cells_total() == 256 && flat.n_cells_max() == 128);
    CHECK(flat.layer(3).k->ne[1] == 128);

    const std::vector<uint32_t> sound = { 100, 4, 20, 30 };
    flat.lay_out(sound);
    CHECK(flat.n_open() == 12);
    const auto version = flat.version();
    for (const std::vector<uint32_t> & kept : { std::vector<uint32_t>{ 100, 100, 10, 10 }, { 0, 0, 129, 0 }, { 64, 65, 0, 0 } }) {
        CHECK(!flat.fits(kept, 0));
        CHECK(guard(nullptr, 0, [&] { flat.lay_out(kept); }) == EDGEKV_STATUS_INTERNAL);
        CHECK(flat.version() == version && flat.n_open() == 12 && flat.head(0).kept == 100);
    }
    CHECK(flat.fits({ 64, 64, 128, 0 }, 0) && !flat.fits({ 64, 64, 128, 0 }, 1));
}

// On a device a head begins where a tensor may, however the rows are laid out. It has as many cells as it would have elsewhere.
void test_starts_of_heads() {
    static ggml_backend_buffer_type memory = *device_memory();
    memory.iface.get_alignment             = [](ggml_backend_buffer_type_t) -> size_t { return 64; };

    std::mt19937 random(5);
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) { // rows of 128, 68 and 36 bytes
        const ggml_context_ptr context(ggml_init({ 8 * ggml_tensor_overhead(), nullptr, true }));
        FlatCache              there({ sizeof(edgekv_layout), 61, 183 }), here({ sizeof(edgekv_layout), 61, 183 });
        for (uint32_t il = 0; il < 3; ++il) {
            there.add_layer(context.get(), &memory, il, 4, 2, type, 64, type, 64);
            here.add_layer(context.get(), ggml_backend_cpu_buffer_type(), il, 4, 2, type, 64, type, 64);
        }
        for (int round = 0; round < 20; ++round) {
            std::vector<uint32_t> kept(6);
            std::generate(kept.begin(), kept.end(), [&] { return random() % 61; });
            there.lay_out(kept);
            here.lay_out(kept);
            CHECK(there.n_open() == here.n_open());
            uint32_t end = 0;
            for (size_t h = 0; h < kept.size(); ++h) {
                const FlatCache::Head & head = there.head(h);
                CHECK(head.first * there.layer(0).k->nb[1] % 64 == 0 && head.first >= end);
                CHECK(head.cell == here.head(h).cell && here.head(h).cell == here.head(h).first);
                end = head.first + head.kept + there.n_open();
            }
            CHECK(end + 2 * 255 <= there.layer(0).k->ne[1]); // what attention reads too much
        }
    }
}

// A layer that reads another's rows brings query heads and nodes of a graph, and no rows.
void test_readers_of_rows() {
    const ggml_context_ptr context(ggml_init({ 8 * ggml_tensor_overhead(), nullptr, true }));
    FlatCache              flat({ sizeof(edgekv_layout), 64, 192 });
    flat.add_layer(context.get(), ggml_backend_cpu_buffer_type(), 3, 4, 2, GGML_TYPE_F16, 64, GGML_TYPE_F16, 64);
    const uint32_t n_nodes = flat.n_nodes();
    flat.add_reader(7, 8, 3);
    flat.add_reader(9, 2, 3);
    CHECK(flat.layers().size() == 1 && flat.n_heads() == 2 && flat.n_cells_total() == 128 && flat.n_nodes() == 3 * n_nodes);

    const FlatCache::Layer & layer = flat.layer(9);
    CHECK(layer.il == 3 && layer.n_group == 7 && layer.n_head() == 14 && layer.readers.size() == 3);
    CHECK(layer.readers[1].il == 7 && layer.readers[1].first == 2 && layer.readers[1].n_group == 4);
    CHECK(layer.readers[2].il == 9 && layer.readers[2].first == 6 && layer.readers[2].n_group == 1);
    CHECK(guard(nullptr, 0, [&] { flat.add_reader(11, 3, 3); }) != EDGEKV_STATUS_OK && layer.n_group == 7);
}

// A graph holds for one version: what it was built for has changed where the version has.
void test_versions_of_rows() {
    const ggml_context_ptr context(ggml_init({ 8 * ggml_tensor_overhead(), nullptr, true }));
    FlatCache              flat({ sizeof(edgekv_layout), 64, 192 });
    flat.add_layer(context.get(), ggml_backend_cpu_buffer_type(), 0, 2, 2, GGML_TYPE_F16, 64, GGML_TYPE_F16, 64);
    const auto outdates = [&](auto change) {
        const uint32_t before = flat.version();
        change();
        return flat.version() != before;
    };
    CHECK(outdates([&] { flat.lay_out({ 40, 4 }); }));
    CHECK(!outdates([&] { flat.lay_out({ 40, 4 }); }));
    CHECK(outdates([&] { flat.clear(); }));
    CHECK(outdates([&] { flat.clear(); })); // it may have attended to more open rows
    CHECK(outdates([&] { flat.queries().set({ nullptr }); }));
    CHECK(outdates([&] { flat.queries().aim(0, 8, 0); }));
    CHECK(!outdates([&] { flat.queries().aim(0, 8, 3); }));
    CHECK(outdates([&] { flat.queries().aim(8, 8, 3); }));
    CHECK(outdates([&] { flat.queries().aim(8, 4, 3); }));
    CHECK(outdates([&] { flat.queries().set({}); }));
    CHECK(!outdates([&] { flat.begin_part(7); }) && flat.n_filled() == 7);
}

namespace {

void test_budgets_of_every_pool(const Model & model, const char * kv_type) {
    const Context       context(model, kv_type, 2, layout);
    const Pools         pools(context, ggml_backend_cpu_buffer_type());
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.accumulates         = 1;
    needs.n_query_rows        = 2 * n_ubatch;
    needs.ragged              = EDGEKV_RAGGED_HEADS | EDGEKV_RAGGED_LAYERS; // neither lends its rows to the other
    edgekv_cache * refused    = nullptr;
    char           err[512];
    CHECK(edgekv_cache_open(context.ctx, &needs, &refused, err, sizeof(err)) == EDGEKV_STATUS_UNSUPPORTED && refused == nullptr);
    needs.ragged              = EDGEKV_RAGGED_HEADS;
    const Cache    cache      = open_cache(context, needs);
    const uint32_t n_heads    = cache->shape.n_head_total / cache->shape.n_layer;
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, n_ubatch) == EDGEKV_STATUS_OK);

    // one pool may not lend its rows to another, though all together were enough
    std::vector<uint32_t> budgets(cache->shape.n_head_total, mean);
    budgets.front() = mean + 1;
    budgets.back()  = mean - 1;
    const auto before = numbers_held(cache);
    CHECK(compact(cache, policy_of(EDGEKV_BASE_SINK), mean, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_INVALID_ARGUMENT);
    edgekv_policy policy = policy_of(EDGEKV_BASE_H2O);
    policy.pyramid       = 3.0;
    CHECK(compact(cache, policy, mean) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(numbers_held(cache) == before);

    // heads of one layer share, as those of one pool
    policy.pyramid = 0.0;
    policy.spread  = EDGEKV_SPREAD_LAYER;
    std::mt19937 random(3);
    for (int round = 0; round < 12; ++round) {
        const bool given = round % 2 == 0;
        for (size_t h = 0; h + 1 < budgets.size(); h += n_heads) {
            const uint32_t moved = random() % (mean / 2);
            std::fill_n(budgets.begin() + h, n_heads, mean);
            budgets[h] -= moved;
            budgets[h + 1] += moved;
        }
        const auto old = read_all(cache);
        CHECK(compact(cache, policy, mean, protecting(2, 3), nullptr, given ? budgets.data() : nullptr) == EDGEKV_STATUS_OK);
        const auto now = read_all(cache);
        uint64_t   sum = 0;
        for (size_t h = 0; h < now.size(); ++h) {
            check_survivors(old[h], now[h]);
            sum += now[h].positions.size();
            if ((h + 1) % n_heads == 0) {
                CHECK(sum == mean * n_heads);
                sum = 0;
            }
        }
        CHECK(edgekv_cache_n_free(cache.get()) >= 2 * n_ubatch);
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    }
}

// Budgets of 0 everywhere leave llama.cpp no cell to go on from.
void test_budgets_that_keep_nothing(const Model & model, const char * kv_type) {
    const Context       context(model, kv_type, 1, layout);
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.ragged              = EDGEKV_RAGGED_HEADS;
    const Cache           cache = open_cache(context, needs);
    std::vector<uint32_t> budgets(cache->shape.n_head_total, 0);
    const auto            refused = [&] {
        return compact(cache, policy_of(EDGEKV_BASE_SINK), mean, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_INVALID_ARGUMENT;
    };
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    const auto before = read_all(cache);
    CHECK(refused());
    CHECK(read_all(cache) == before);
    budgets.back() = 1;
    CHECK(compact(cache, policy_of(EDGEKV_BASE_SINK), mean, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_OK);
    CHECK(numbers_held(cache).back() == 1);
    budgets.back()  = 0;
    budgets.front() = 1; // of a head that holds nothing any more
    CHECK(refused());
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    CHECK(numbers_held(cache).back() == 1 + n_ubatch && numbers_held(cache).front() == n_ubatch);
}

// Where heads of a layer hold different cells, the head that holds most protected ones bounds a layer's budget.
void test_protected_cells_of_every_head(const Model & model, const char * kv_type) {
    const Context       context(model, kv_type, 1, layout);
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.ragged              = EDGEKV_RAGGED_HEADS | EDGEKV_RAGGED_LAYERS;
    const Cache           cache   = open_cache(context, needs);
    const uint32_t        n_heads = cache->shape.n_head_total / cache->shape.n_layer;
    std::vector<uint32_t> budgets(cache->shape.n_head_total, 50);
    for (size_t h = 0; h < budgets.size(); h += n_heads) {
        budgets[h] = 5; // of these head 0 keeps the newest
    }
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    CHECK(compact(cache, policy_of(EDGEKV_BASE_SINK), 50, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_OK);

    edgekv_policy policy    = policy_of(EDGEKV_BASE_SINK);
    policy.pyramid          = 20.0;
    const int32_t pinned[]  = { 20, 50 };
    CHECK(compact(cache, policy, mean, protecting(0, 0, pinned, 1)) == EDGEKV_STATUS_OK);
    for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
        const auto held = read_head(cache, layer, 1).positions;
        for (int32_t position = pinned[0]; position < pinned[1]; ++position) {
            CHECK(std::binary_search(held.begin(), held.end(), position));
        }
    }
}

void test_rows_that_cannot_be_counted(const Model & model) {
    llama_context_params params = llama_context_default_params();
    params.n_seq_max            = 1;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    const edgekv_layout many    = { sizeof(edgekv_layout), 1u << 31, 1u << 31, 0 };
    llama_context *     ctx     = nullptr;
    char                err[512] = "";
    CHECK(edgekv_context_new(model.model, &params, &many, &ctx, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    const std::string message = err;
    CHECK(message.find("2147483648 cells for each of ") == 0 && message.find("at most 4294967295 can be counted") != std::string::npos);
    CHECK(message.find("lower the budget") != std::string::npos && ctx == nullptr);
}

// Queries lie beside the keys: those on a device are no part of the host's memory.
void test_queries_are_counted_where_they_lie(const Model & model, const char * kv_type) {
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.n_query_rows        = 16;
    needs.n_probe_rows        = 8;
    const Context host(model, kv_type, 1, layout);
    Cache         plain;
    {
        const Staged staged("copies"); // as a cache on a device
        plain = open_cache(host, needs);
        CHECK(edgekv_cache_bytes(plain.get()) == edgekv_cache_estimate_bytes(&plain->shape, &needs));
        CHECK(edgekv_cache_device_bytes(plain.get()) == 0 && edgekv_cache_estimate_device_bytes(&plain->shape, &needs) == 0);
    }

    const Context context(model, kv_type, 1, layout);
    const Pools   pools(context, device_memory());
    edgekv_shape  shape = {};
    CHECK(edgekv_context_shape(context.ctx, &shape, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(shape.staged == 1 && shape.device_query_row_bytes > 0);
    CHECK(shape.device_query_row_bytes * (shape.n_layer - 1) == shape.query_row_bytes); // the first layer alone is there
    const Cache cache = open_cache(context, needs);
    CHECK(edgekv_cache_bytes(cache.get()) == edgekv_cache_estimate_bytes(&shape, &needs));
    CHECK(edgekv_cache_device_bytes(cache.get()) == edgekv_cache_estimate_device_bytes(&shape, &needs));
    CHECK(edgekv_cache_device_bytes(cache.get()) == shape.device_query_row_bytes * (16 + 8) + shape.device_graph_bytes);
    CHECK(edgekv_cache_estimate_device_bytes(nullptr, &needs) == 0 && edgekv_cache_device_bytes(nullptr) == 0);
    CHECK(edgekv_cache_bytes(cache.get()) + edgekv_cache_device_bytes(cache.get()) ==
          edgekv_cache_bytes(plain.get()) - plain->shape.head_bytes + shape.head_bytes + shape.device_graph_bytes +
              shape.graph_description_bytes + sizeof(float) * shape.n_head_total * shape.n_cells); // scores of a part of a probe
    CHECK(shape.graph_description_bytes > 64 * ggml_tensor_overhead()); // a graph's nodes, at least
}

} // namespace

void test_pools(const char * model_path, const char * kv_type) {
    const Model model(model_path);
    test_budgets_of_every_pool(model, kv_type);
    test_budgets_that_keep_nothing(model, kv_type);
    test_protected_cells_of_every_head(model, kv_type);
    test_rows_that_cannot_be_counted(model);
    test_queries_are_counted_where_they_lie(model, kv_type);
}
