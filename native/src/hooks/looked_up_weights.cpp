#include "hooks/looked_up_weights.h"

#include "hooks/status.h"

#include <algorithm>
#include <new>
#include <utility>

#if defined(__linux__)
#    include <sys/mman.h>
#    include <unistd.h>
#endif

namespace edgekv {

namespace {

#if defined(__linux__)

size_t page_bytes() {
    static const size_t n = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return n;
}

// Pages take memory when they are written to, one by one, and none after `drop_pages`.
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

size_t page_bytes() { return 4096; }
char * reserve_pages(size_t) { throw std::bad_alloc(); }
void   drop_pages(char *, size_t) {}
void   free_pages(char *, size_t) {}

#endif

size_t reserved_bytes(const ggml_tensor & weight) { return GGML_PAD(ggml_nbytes(&weight), page_bytes()); }

// An expert lies in pages of its own, but for the first and the last one.
size_t expert_bytes(const ggml_tensor & weight) { return weight.nb[2] + 2 * page_bytes(); }

} // namespace

#if defined(__linux__)
const bool LookedUpWeights::works = true;
#else
const bool LookedUpWeights::works = false;
#endif

size_t LookedUpWeights::bytes_of_rows(const ggml_tensor & table, size_t n) {
    return std::min(n * (GGML_PAD(table.nb[1], page_bytes()) + page_bytes()), reserved_bytes(table));
}

size_t LookedUpWeights::bytes_of_experts(const ggml_tensor & weight) {
    const size_t of_notes = sizeof(Expert) + 4 * sizeof(void *); // with a node of the list
    return weight.ne[2] * (expert_bytes(weight) + of_notes);
}

LookedUpWeights::~LookedUpWeights() {
    for (auto & [tensor, weight] : weights_) {
        free_pages(weight.data, reserved_bytes(*weight.tensor));
    }
}

LookedUpWeights::Weight & LookedUpWeights::add(ggml_tensor & tensor) {
    const uint64_t offset = file_->find(tensor);
    tensor.data           = reserve_pages(reserved_bytes(tensor));
    return weights_.emplace(&tensor, Weight{ &tensor, offset, static_cast<char *>(tensor.data), nullptr, {} }).first->second;
}

void LookedUpWeights::add_table(ggml_tensor & tensor) { add(tensor); }

void LookedUpWeights::add_experts(ggml_tensor & tensor) {
    Weight & weight = add(tensor);
    weight.experts.resize(tensor.ne[2]);
    for (uint32_t i = 0; i < weight.experts.size(); ++i) {
        weight.experts[i].weight = &weight;
        weight.experts[i].number = i;
        weight.experts[i].place  = absent_.insert(absent_.end(), &weight.experts[i]);
    }
}

int LookedUpWeights::read_for(const ggml_tensor & tensor, const ggml_tensor & node) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Weight & weight = weights_.at(&tensor);
    if (failed_ == 0 && weight.read_for != &node) {
        const bool has_experts = !weight.experts.empty();
        GGML_ASSERT(node.op == (has_experts ? GGML_OP_MUL_MAT_ID : GGML_OP_GET_ROWS));
        failed_         = has_experts ? read_experts(weight, *node.src[2]) : read_rows(weight, *node.src[1]);
        weight.read_for = &node;
    }
    return failed_;
}

int LookedUpWeights::read(const Weight & weight, size_t begin, size_t n_bytes) {
    n_read_ += n_bytes;
    return file_->try_read(weight.offset + begin, weight.data + begin, n_bytes);
}

int LookedUpWeights::read_rows(const Weight & weight, const ggml_tensor & ids) {
    GGML_ASSERT(ggml_is_contiguous(&ids));
    const auto * rows = static_cast<const int32_t *>(ids.data);
    for (int64_t i = 0; i < ggml_nelements(&ids); ++i) {
        if (const int result = read(weight, rows[i] * weight.tensor->nb[1], weight.tensor->nb[1]); result != 0) {
            return result;
        }
    }
    return 0;
}

// ids: experts of each token (chosen, tokens)
int LookedUpWeights::read_experts(Weight & weight, const ggml_tensor & ids) {
    const auto each = [&](auto f) {
        for (int64_t token = 0; token < ids.ne[1]; ++token) {
            for (int64_t i = 0; i < ids.ne[0]; ++i) {
                const char * id = static_cast<const char *>(ids.data) + token * ids.nb[1] + i * ids.nb[0];
                f(weight.experts[*reinterpret_cast<const int32_t *>(id)]);
            }
        }
    };
    each([&](Expert & expert) {
        if (expert.is_there) {
            recent_.splice(recent_.begin(), recent_, expert.place); // before others make room
        }
    });
    int        result  = 0;
    const auto n_bytes = weight.tensor->nb[2];
    each([&](Expert & expert) {
        if (expert.is_there || result != 0) {
            return;
        }
        make_room(expert_bytes(*weight.tensor));
        result = read(weight, expert.number * n_bytes, n_bytes);
        recent_.splice(recent_.begin(), absent_, expert.place);
        expert.is_there = true;
        held_ += expert_bytes(*weight.tensor);
        if (result != 0) {
            drop(expert);
        }
    });
    return result;
}

// What was chosen longest ago goes. What the node computes with was chosen last, and all experts of a weight have room.
void LookedUpWeights::make_room(size_t n_bytes) {
    while (held_ + n_bytes > room_ && !recent_.empty()) {
        drop(*recent_.back());
    }
}

void LookedUpWeights::drop(Expert & expert) {
    const auto & experts = expert.weight->experts;
    const size_t n_bytes = expert.weight->tensor->nb[2];
    const size_t begin = expert.number * n_bytes, end = begin + n_bytes;
    const bool   shares_first = expert.number > 0 && experts[expert.number - 1].is_there;
    const bool   shares_last  = expert.number + 1 < experts.size() && experts[expert.number + 1].is_there;
    const size_t page  = page_bytes();
    const size_t first = shares_first ? GGML_PAD(begin, page) : begin / page * page;
    const size_t last  = shares_last ? end / page * page : GGML_PAD(end, page);
    if (last > first) {
        drop_pages(expert.weight->data + first, last - first);
    }
    absent_.splice(absent_.end(), recent_, expert.place);
    expert.is_there = false;
    held_ -= expert_bytes(*expert.weight->tensor);
}

void LookedUpWeights::end_batch() {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed_ = 0;
    for (auto & [tensor, weight] : weights_) {
        weight.read_for = nullptr;
        if (weight.experts.empty()) {
            drop_pages(weight.data, reserved_bytes(*weight.tensor));
        }
    }
}

uint64_t LookedUpWeights::n_read() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_read_;
}

} // namespace edgekv
