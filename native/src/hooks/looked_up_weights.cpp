#include "hooks/looked_up_weights.h"

#include "hooks/pages.h"
#include "hooks/status.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace edgekv {

namespace {

size_t reserved_bytes(const ggml_tensor & weight) { return GGML_PAD(ggml_nbytes(&weight), page_bytes()); }

size_t expert_bytes(const ggml_tensor & weight) { return most_bytes(weight.nb[2], 1, page_bytes()); }

} // namespace

const bool LookedUpWeights::works = gives_pages;

size_t LookedUpWeights::bytes_of_rows(const ggml_tensor & table, size_t n) {
    return std::min(most_bytes(table.nb[1], n, page_bytes()), reserved_bytes(table));
}

size_t LookedUpWeights::bytes_of_experts(const ggml_tensor & weight) {
    const size_t of_notes = sizeof(Expert) + 4 * sizeof(void *) + sizeof(Expert *) + sizeof(ParallelReads::Span); // with a node of the list
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
    missing_.reserve(weight.experts.size());
    spans_.reserve(weight.experts.size());
}

int LookedUpWeights::read_for(const ggml_tensor & tensor, const ggml_tensor & node) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Weight & weight = weights_.at(&tensor);
    if (failed_ == 0 && weight.read_for != &node) {
        const bool has_experts = !weight.experts.empty();
        const auto begin       = std::chrono::steady_clock::now();
        GGML_ASSERT(node.op == (has_experts ? GGML_OP_MUL_MAT_ID : GGML_OP_GET_ROWS));
        failed_         = has_experts ? read_experts(weight, *node.src[2]) : read_rows(weight, *node.src[1]);
        weight.read_for = &node;
        read_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
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
    const auto n_bytes = weight.tensor->nb[2];
    missing_.clear();
    spans_.clear();
    each([&](Expert & expert) {
        if (expert.is_there) {
            return;
        }
        make_room(expert_bytes(*weight.tensor));
        recent_.splice(recent_.begin(), absent_, expert.place);
        expert.is_there = true;
        held_ += expert_bytes(*weight.tensor);
        n_read_ += n_bytes;
        missing_.push_back(&expert);
        spans_.push_back({ weight.offset + expert.number * n_bytes, weight.data + expert.number * n_bytes, n_bytes });
    });
    const int result = reads_.read(spans_);
    if (result != 0) {
        for (Expert * expert : missing_) {
            drop(*expert);
        }
    }
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
    const auto   is_there = [&](size_t i) { return experts[i].is_there; };
    const auto   pages = pages_of_part(expert.number, expert.weight->tensor->nb[2], experts.size(), page_bytes(), is_there);
    if (pages.begin < pages.end) {
        drop_pages(expert.weight->data + pages.begin, pages.end - pages.begin);
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

uint64_t LookedUpWeights::read_ns() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return read_ns_;
}

} // namespace edgekv
