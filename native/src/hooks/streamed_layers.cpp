#include "hooks/streamed_layers.h"

#include "ggml-backend.h"
#include "hooks/looked_up_weights.h"
#include "hooks/weights_file.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <regex>
#include <set>
#include <utility>

namespace edgekv {

namespace {

// blk.LAYER.NAME: the layer, and where the name begins; none if a weight has another form.
std::optional<std::pair<uint32_t, size_t>> parse(const std::string & weight) {
    uint32_t layer = 0;
    int      begin = 0;
    if (std::sscanf(weight.c_str(), "blk.%u.%n", &layer, &begin) != 1 || begin == 0) {
        return std::nullopt;
    }
    return { { layer, static_cast<size_t>(begin) } };
}

std::string any_of(const std::set<std::string> & words) {
    std::string all;
    for (const std::string & word : words) {
        all += (all.empty() ? "" : "|") + std::regex_replace(word, std::regex("\\."), "\\.");
    }
    return "(" + all + ")";
}

size_t largest(const std::vector<size_t> & sizes) { return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end()); }

// Of the largest layer as often as there are slots, or layers where they are fewer.
size_t of_slots(const std::vector<size_t> & sizes) {
    const size_t n = sizes.size() - std::count(sizes.begin(), sizes.end(), size_t(0));
    return std::min(StreamedSizes::n_slots, n) * largest(sizes);
}

} // namespace

int32_t StreamedLayers::layer_of(const std::string & weight, int64_t n_rows) const {
    const auto found     = parse(weight);
    const bool is_matrix = n_rows > 1 && weight.find("norm") == std::string::npos;
    return found && is_matrix && found->first < n_layers && has(found->first) ? static_cast<int32_t>(found->first) : -1;
}

bool StreamedLayers::is_table(const std::string & weight) const {
    const bool is_looked_up = (has_output && weight == "token_embd.weight") || weight == "per_layer_token_embd.weight";
    return LookedUpWeights::works && is_looked_up;
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
    std::string all = tables.empty() ? "" : any_of(tables);
    if (!numbers.empty()) {
        all += (all.empty() ? "" : "|") + ("blk\\." + any_of(numbers) + "\\." + any_of(names));
    }
    return "^(" + all + ")$";
}

bool is_experts(const ggml_tensor & weight) {
    return LookedUpWeights::works && weight.ne[2] > 1 && std::string(ggml_get_name(&weight)).find("_exps.") != std::string::npos;
}

size_t StreamedSizes::add(uint32_t layer, const ggml_tensor & weight) {
    if (is_experts(weight)) {
        n_expert_bytes_ += ggml_nbytes(&weight);
        experts_[layer] += LookedUpWeights::bytes_of_experts(weight);
        return 0;
    }
    const size_t place = in_slot_[layer];
    n_bytes_ += ggml_nbytes(&weight);
    in_slot_[layer] += GGML_PAD(ggml_nbytes(&weight), ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type()));
    return place;
}

size_t StreamedSizes::slot() const { return largest(in_slot_); }

size_t StreamedSizes::slots() const { return of_slots(in_slot_); }

size_t StreamedSizes::room_for_experts() const { return of_slots(experts_); }

} // namespace edgekv
