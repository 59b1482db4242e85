#include "hooks/streamed_weights.h"

#include "ggml-backend-impl.h"
#include "hooks/status.h"
#include "hooks/waiting.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace edgekv {

namespace {

std::atomic<int> n_alive{ 0 }; // models with streamed weights: if there are none, no node is looked at

uint64_t ns_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
}

const ggml_tensor & owner_of(const ggml_tensor & tensor) { return tensor.view_src != nullptr ? *tensor.view_src : tensor; }

} // namespace

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
      layers_(layers), reads_(file_), looked_up_(file_, reads_) {
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
    --n_alive;
}

void StreamedWeights::begin(const std::vector<std::pair<std::string, ggml_tensor *>> & weights) {
    StreamedSizes        sizes(layers_.n_layers);
    std::vector<int32_t> by_layer(layers_.n_layers, none);
    std::vector<std::pair<ggml_tensor *, size_t>> places;
    for (const auto & [weight_name, weight] : weights) {
        if (!is_streamed(*weight)) {
            continue;
        }
        if (layers_.is_table(weight_name)) {
            looked_up_.add_table(*weight);
            continue;
        }
        const auto   layer = static_cast<uint32_t>(layers_.layer_of(weight_name, ggml_nrows(weight)));
        const size_t place = sizes.add(layer, *weight);
        if (is_experts(*weight)) {
            looked_up_.add_experts(*weight);
            continue;
        }
        if (by_layer[layer] == none) {
            by_layer[layer] = static_cast<int32_t>(streamed_.size());
            streamed_.emplace_back();
        }
        layer_of_[weight] = by_layer[layer];
        places.emplace_back(weight, place);
    }
    if (streamed_.empty() && layers_.n_streamed == 0) {
        return; // tables alone, which have no slots
    }
    if (streamed_.empty()) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "the model has no layers whose weights could be streamed; load it with n_streamed = 0");
    }
    slot_bytes_ = sizes.slot();
    looked_up_.set_room(sizes.room_for_experts());
    stats_.n_bytes        = sizes.n_bytes();
    stats_.n_expert_bytes = sizes.n_expert_bytes();
    stats_.n_slot_bytes   = sizes.slots() + sizes.room_for_experts();
    slots_                = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), sizes.slots());
    if (slots_ == nullptr) {
        throw std::bad_alloc();
    }
    for (const auto & [weight, place] : places) {
        const int32_t index = layer_of_.at(weight);
        char *        begin = slot(index) + place;
        weight->data        = begin;
        streamed_[index].weights.push_back({ file_->find(*weight), begin, ggml_nbytes(weight) });
    }
    for (size_t i = 0; i < streamed_.size(); ++i) {
        Layer & layer = streamed_[i];
        layer.next    = static_cast<int32_t>((i + 1) % streamed_.size());
        std::sort(layer.weights.begin(), layer.weights.end(), [](const auto & a, const auto & b) { return a.offset < b.offset; });
    }
    reads_.begin();
    thread_ = std::thread([this] { read_ahead(); });
}

char * StreamedWeights::slot(int32_t index) const {
    return static_cast<char *>(ggml_backend_buffer_get_base(slots_)) + index % StreamedSizes::n_slots * slot_bytes_;
}

// ---- the thread that reads ----

// What to read now: what is waited for, or else what will be, where that does not overwrite the layer that computes.
int32_t StreamedWeights::to_read() const {
    if (failure_ != 0) {
        return none;
    }
    if (wanted_ != none && !is_there(wanted_)) {
        return wanted_;
    }
    const int32_t next    = last_ == none ? 0 : streamed_[last_].next;
    const bool    is_free = current_ == none || next % StreamedSizes::n_slots != current_ % StreamedSizes::n_slots;
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
        there_[index % StreamedSizes::n_slots] = none;
        lock.unlock();
        const auto begin  = std::chrono::steady_clock::now();
        const int  result = reads_.read(streamed_[index].weights);
        lock.lock();
        stats_.read_ns += ns_since(begin);
        if (result == 0) {
            there_[index % StreamedSizes::n_slots] = index;
            for (const auto & weight : streamed_[index].weights) {
                stats_.n_read += weight.n_bytes;
            }
        } else {
            failure_ = result;
        }
        done_.notify_all();
    }
}

// ---- the threads that compute ----

bool StreamedWeights::wait_for(const ggml_tensor & weight, const ggml_tensor & node) {
    auto &     weights = *static_cast<StreamedWeights *>(weight.buffer->buft->context);
    const auto layer   = weights.layer_of_.find(&weight);
    return layer != weights.layer_of_.end() ? weights.wait_for_layer(layer->second) : weights.wait_for_parts(weight, node);
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
    done_.wait(lock, [&] { return failure_ != 0 || is_there(index) || current_ == index; });
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

bool StreamedWeights::wait_for_parts(const ggml_tensor & weight, const ggml_tensor & node) {
    const int result = looked_up_.read_for(weight, node);
    if (result != 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = result;
    }
    return result == 0;
}

StreamedWeights::Pass::Pass(StreamedWeights * weights) : weights_(weights) {
    if (weights_ != nullptr) {
        weights_->pass_.lock();
        const std::lock_guard<std::mutex> lock(weights_->mutex_);
        weights_->failure_ = 0; // the disk may be there again
        weights_->to_do_.notify_all();
    }
}

StreamedWeights::Pass::~Pass() {
    if (weights_ != nullptr) {
        weights_->looked_up_.end_batch();
        {
            const std::lock_guard<std::mutex> lock(weights_->mutex_);
            weights_->current_ = none;
            weights_->wanted_  = none;
            weights_->to_do_.notify_all(); // the first layer of the next batch may be read now
        }
        weights_->pass_.unlock();
    }
}

void StreamedWeights::Pass::require_read() const {
    if (weights_ != nullptr) {
        const std::lock_guard<std::mutex> lock(weights_->mutex_);
        if (weights_->failure_ != 0) {
            throw Error(EDGEKV_STATUS_MODEL_INVALID, "streamed weights " + weights_->file_->failure(weights_->failure_));
        }
    }
}

StreamedWeights::Stats StreamedWeights::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    Stats                             stats = stats_;
    stats.n_read += looked_up_.n_read();
    stats.read_ns += looked_up_.read_ns();
    stats.wait_ns += looked_up_.read_ns(); // nobody reads them ahead
    return stats;
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
