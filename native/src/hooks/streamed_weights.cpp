#include "hooks/streamed_weights.h"

#include "ggml-backend-impl.h"
#include "hooks/status.h"
#include "hooks/waiting.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <regex>
#include <set>

#if defined(__linux__)
#    include <sys/mman.h>
#    include <unistd.h>
#endif

namespace edgekv {

namespace {

std::atomic<int> n_alive{ 0 }; // models with streamed weights: where there are none, no node is looked at

uint64_t ns_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
}

#if defined(__linux__)

constexpr bool reserves = true; // addresses without memory

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Pages take memory when they are written to, and none after `drop_pages`.
char * reserve_pages(size_t n) {
    void * pages = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        throw std::bad_alloc();
    }
    madvise(pages, n, MADV_NOHUGEPAGE);
    return static_cast<char *>(pages);
}

void drop_pages(char * pages, size_t n) { madvise(pages, n, MADV_DONTNEED); }
void free_pages(char * pages, size_t n) { munmap(pages, n); }

#else

constexpr bool reserves = false;

size_t page_bytes() { return 4096; }
char * reserve_pages(size_t) { throw std::bad_alloc(); }
void   drop_pages(char *, size_t) {}
void   free_pages(char *, size_t) {}

#endif

const ggml_tensor & owner_of(const ggml_tensor & tensor) { return tensor.view_src != nullptr ? *tensor.view_src : tensor; }

} // namespace

// ---- which weights ----

// blk.LAYER.NAME: the layer, and where the name begins; none where a weight has another form.
static std::optional<std::pair<uint32_t, size_t>> parse(const std::string & weight) {
    uint32_t layer = 0;
    int      begin = 0;
    if (std::sscanf(weight.c_str(), "blk.%u.%n", &layer, &begin) != 1 || begin == 0) {
        return std::nullopt;
    }
    return { { layer, static_cast<size_t>(begin) } };
}

int32_t StreamedLayers::layer_of(const std::string & weight, int64_t n_rows) const {
    const auto found     = parse(weight);
    const bool is_matrix = n_rows > 1 && weight.find("norm") == std::string::npos;
    return found && is_matrix && found->first < n_layers && has(found->first) ? static_cast<int32_t>(found->first) : -1;
}

bool StreamedLayers::is_table(const std::string & weight) const {
    return reserves && n_streamed > 0 && ((has_output && weight == "token_embd.weight") || weight == "per_layer_token_embd.weight");
}

// llama.cpp compiles it for every weight, so it is short: layers and names apart.
std::string StreamedLayers::pattern(const WeightsFile & file) const {
    std::set<std::string> numbers, names, tables;
    file.each([&](const std::string & weight, int64_t n_rows) {
        if (const int32_t layer = layer_of(weight, n_rows); layer >= 0) {
            numbers.insert(std::to_string(layer));
            names.insert(weight.substr(parse(weight)->second));
        } else if (is_table(weight)) {
            tables.insert(weight);
        }
    });
    const auto any_of = [](const std::set<std::string> & words) {
        std::string all;
        for (const std::string & word : words) {
            all += (all.empty() ? "" : "|") + std::regex_replace(word, std::regex("\\."), "\\.");
        }
        return "(" + all + ")";
    };
    return "^(blk\\." + any_of(numbers) + "\\." + any_of(names) + (tables.empty() ? "" : "|" + any_of(tables)) + ")$";
}

size_t SlotSizes::add(uint32_t layer, const ggml_tensor & weight) {
    const size_t alignment = ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
    const size_t place     = used_[layer];
    used_[layer] += GGML_PAD(ggml_nbytes(&weight), alignment);
    return place;
}

size_t SlotSizes::held() const {
    const size_t n = used_.size() - std::count(used_.begin(), used_.end(), size_t(0));
    return std::min(n_slots, n) * largest();
}

size_t SlotSizes::largest() const { return used_.empty() ? 0 : *std::max_element(used_.begin(), used_.end()); }

size_t table_bytes(const ggml_tensor & table, size_t n) {
    return std::min(n * (GGML_PAD(table.nb[1], page_bytes()) + page_bytes()), ggml_nbytes(&table));
}

// ---- the buffer type: weights get their addresses once all of them are known ----

const char * StreamedWeights::name(ggml_backend_buffer_type_t) { return "Streamed"; }

size_t StreamedWeights::alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

ggml_backend_buffer_t StreamedWeights::allocate(ggml_backend_buffer_type_t type, size_t n_bytes) {
    static char             nowhere[GGML_MEM_ALIGN * 8]; // an address, at which nothing is read or written
    ggml_backend_buffer_i   interface = {};
    interface.get_base                = [](ggml_backend_buffer_t) -> void * {
        return reinterpret_cast<void *>(GGML_PAD(reinterpret_cast<uintptr_t>(nowhere), GGML_MEM_ALIGN * 4));
    };
    return ggml_backend_buffer_init(type, interface, nullptr, n_bytes);
}

bool is_streamed(ggml_backend_buffer_type_t type) { return type->iface.get_name == StreamedWeights::name; }

bool is_streamed(const ggml_tensor & weight) { return weight.buffer != nullptr && is_streamed(weight.buffer->buft); }

StreamedWeights::StreamedWeights(std::shared_ptr<const WeightsFile> file, StreamedLayers layers)
    : type_(new ggml_backend_buffer_type{ {}, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), this }), file_(std::move(file)),
      layers_(layers) {
    type_->iface.get_name      = name;
    type_->iface.alloc_buffer  = allocate;
    type_->iface.get_alignment = alignment;
    type_->iface.is_host       = [](ggml_backend_buffer_type_t) { return true; };
    ++n_alive;
}

StreamedWeights::~StreamedWeights() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stops_ = true;
    }
    to_do_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
    ggml_backend_buffer_free(slots_);
    for (auto & [weight, table] : tables_) {
        free_pages(table.data, table.n_bytes); // the weight itself is gone
    }
    --n_alive;
}

void StreamedWeights::begin(const std::vector<std::pair<std::string, ggml_tensor *>> & weights) {
    SlotSizes              sizes(layers_.n_layers);
    std::vector<int32_t>   by_layer(layers_.n_layers, none);
    std::vector<std::pair<ggml_tensor *, size_t>> places;
    for (const auto & [weight_name, weight] : weights) {
        if (!is_streamed(*weight)) {
            continue;
        }
        if (layers_.is_table(weight_name)) {
            const size_t n_bytes = ggml_nbytes(weight);
            Table &      table   = tables_.emplace(weight, Table{ file_->find(*weight), n_bytes, reserve_pages(n_bytes) }).first->second;
            weight->data         = table.data;
            continue;
        }
        const auto layer = static_cast<uint32_t>(layers_.layer_of(weight_name, ggml_nrows(weight)));
        if (by_layer[layer] == none) {
            by_layer[layer] = static_cast<int32_t>(streamed_.size());
            streamed_.emplace_back();
        }
        const size_t place = sizes.add(layer, *weight);
        streamed_[by_layer[layer]].reads.push_back({ file_->find(*weight), ggml_nbytes(weight), place });
        stats_.n_bytes += ggml_nbytes(weight);
        layer_of_[weight] = by_layer[layer];
        places.emplace_back(weight, place);
    }
    if (streamed_.empty()) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "the model has no layers whose weights could be streamed; load it with n_streamed = 0");
    }
    slot_bytes_         = sizes.largest();
    stats_.n_slot_bytes = sizes.held();
    slots_              = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), stats_.n_slot_bytes);
    if (slots_ == nullptr) {
        throw std::bad_alloc();
    }
    for (const auto & [weight, place] : places) {
        weight->data = slot(layer_of_.at(weight)) + place;
    }
    for (size_t i = 0; i < streamed_.size(); ++i) {
        Layer & layer = streamed_[i];
        layer.next    = static_cast<int32_t>((i + 1) % streamed_.size());
        std::sort(layer.reads.begin(), layer.reads.end(), [](const Read & a, const Read & b) { return a.offset < b.offset; });
    }
    thread_ = std::thread([this] { read_ahead(); });
}

char * StreamedWeights::slot(int32_t index) const {
    return static_cast<char *>(ggml_backend_buffer_get_base(slots_)) + index % SlotSizes::n_slots * slot_bytes_;
}

// ---- the thread that reads ----

// What to read now: what is waited for, or else what will be, where that does not overwrite the layer that computes.
int32_t StreamedWeights::to_read() const {
    if (failed_) {
        return none;
    }
    if (wanted_ != none && !is_there(wanted_)) {
        return wanted_;
    }
    const int32_t next    = last_ == none ? 0 : streamed_[last_].next;
    const bool    is_free = current_ == none || next % SlotSizes::n_slots != current_ % SlotSizes::n_slots;
    return is_there(next) || !is_free ? none : next;
}

void StreamedWeights::read_ahead() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        int32_t index = none;
        to_do_.wait(lock, [&] { return stops_ || (index = to_read()) != none; });
        if (stops_) {
            return;
        }
        there_[index % SlotSizes::n_slots] = none;
        lock.unlock();
        const auto begin  = std::chrono::steady_clock::now();
        const int  result = read(index);
        lock.lock();
        stats_.read_ns += ns_since(begin);
        if (result == 0) {
            there_[index % SlotSizes::n_slots] = index;
        } else {
            fail_to_read(result);
        }
        done_.notify_all();
    }
}

int StreamedWeights::read(int32_t index) {
    for (const Read & read : streamed_[index].reads) {
        if (const int result = file_->try_read(read.offset, slot(index) + read.place, read.n_bytes); result != 0) {
            return result;
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        stats_.n_read += read.n_bytes;
    }
    return 0;
}

// ---- the threads that compute ----

bool StreamedWeights::wait_for(const ggml_tensor & weight, const ggml_tensor & node) {
    auto &     weights = *static_cast<StreamedWeights *>(weight.buffer->buft->context);
    const auto layer   = weights.layer_of_.find(&weight);
    return layer != weights.layer_of_.end() ? weights.wait_for_layer(layer->second) : weights.wait_for_rows(weight, node);
}

bool StreamedWeights::wait_for_layer(int32_t index) {
    if (current_.load(std::memory_order_acquire) == index) {
        return true;
    }
    // All threads have left the layer before: ggml has them meet after every node.
    std::unique_lock<std::mutex> lock(mutex_);
    if (wanted_ != index) { // the first of them
        if (last_ != none) {
            streamed_[last_].next = index;
        }
        wanted_ = index;
        to_do_.notify_all();
    }
    const auto begin = std::chrono::steady_clock::now();
    done_.wait(lock, [&] { return failed_ || is_there(index) || current_ == index; });
    if (current_ == index) {
        return true;
    }
    if (!is_there(index)) {
        return false;
    }
    stats_.wait_ns += ns_since(begin);
    current_.store(index, std::memory_order_release);
    last_ = index;
    to_do_.notify_all();
    return true;
}

// One thread reads, while the others wait for it.
bool StreamedWeights::wait_for_rows(const ggml_tensor & weight, const ggml_tensor & node) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Table & table = tables_.at(&weight);
    if (table.read_for == &node || failed_) {
        return !failed_;
    }
    GGML_ASSERT(node.op == GGML_OP_GET_ROWS && ggml_is_contiguous(node.src[1]));
    const auto *  rows    = static_cast<const int32_t *>(node.src[1]->data);
    const int64_t n_rows  = ggml_nelements(node.src[1]);
    const size_t  n_bytes = weight.nb[1];
    for (int64_t i = 0; i < n_rows; ++i) {
        const size_t place = rows[i] * n_bytes;
        if (const int result = file_->try_read(table.offset + place, table.data + place, n_bytes); result != 0) {
            fail_to_read(result);
            return false;
        }
    }
    table.read_for = &node;
    return true;
}

void StreamedWeights::fail_to_read(int result) {
    failed_  = true;
    failure_ = "streamed weights " + file_->failure(result);
}

void StreamedWeights::drop_rows() {
    for (auto & [weight, table] : tables_) {
        drop_pages(table.data, table.n_bytes);
        table.read_for = nullptr;
    }
}

StreamedWeights::Pass::Pass(StreamedWeights * weights) : weights_(weights) {
    if (weights_ != nullptr) {
        weights_->pass_.lock();
        const std::lock_guard<std::mutex> lock(weights_->mutex_);
        weights_->failed_ = false; // the disk may be there again
        weights_->to_do_.notify_all();
    }
}

StreamedWeights::Pass::~Pass() {
    if (weights_ != nullptr) {
        {
            const std::lock_guard<std::mutex> lock(weights_->mutex_);
            weights_->current_ = none;
            weights_->wanted_  = none;
            weights_->drop_rows();
            weights_->to_do_.notify_all(); // the first layer of the next batch may be read now
        }
        weights_->pass_.unlock();
    }
}

void StreamedWeights::Pass::require_read() const {
    if (weights_ != nullptr) {
        const std::lock_guard<std::mutex> lock(weights_->mutex_);
        if (weights_->failed_) {
            throw Error(EDGEKV_STATUS_MODEL_INVALID, weights_->failure_);
        }
    }
}

StreamedWeights::Stats StreamedWeights::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
}

} // namespace edgekv

bool edgekv_await_weights(const struct ggml_tensor * node) {
    using namespace edgekv;
    if (n_alive.load(std::memory_order_relaxed) == 0) {
        return true;
    }
    for (const ggml_tensor * src : node->src) {
        if (src != nullptr && is_streamed(owner_of(*src)) && !StreamedWeights::wait_for(owner_of(*src), *node)) {
            return false;
        }
    }
    return true;
}
