// W_O read in the model's file: the bytes that were loaded, and errors where the file is not what it was.
#include "cache_fixture.h"
#include "failing.h"
#include "hooks/status.h"
#include "hooks/weights_file.h"
#include "llama-model.h"

#include <filesystem>
#include <fstream>

using namespace edgekv;

namespace {

template <typename F> edgekv_status status_of(F f) {
    return guard(nullptr, 0, f);
}

Bytes rows_of(const WeightsFile & file, const ggml_tensor & w_o) {
    Bytes bytes(ggml_nbytes(&w_o));
    file.read(file.find(w_o), bytes.data(), bytes.size());
    return bytes;
}

void test_bytes(const llama_model & model, const WeightsFile & file) {
    for (const auto & layer : model.layers) {
        Bytes loaded(ggml_nbytes(layer.wo));
        ggml_backend_tensor_get(layer.wo, loaded.data(), 0, loaded.size());
        CHECK(rows_of(file, *layer.wo) == loaded);
    }
}

void test_other_tensors(const llama_model & model, const WeightsFile & file) {
    ggml_tensor other = *model.layers[0].wo;
    other.type        = GGML_TYPE_F16;
    CHECK(status_of([&] { file.find(other); }) == EDGEKV_STATUS_MODEL_INVALID);
    for (const int dimension : { 0, 1 }) {
        other = *model.layers[0].wo;
        other.ne[dimension] /= 2;
        CHECK(status_of([&] { file.find(other); }) == EDGEKV_STATUS_MODEL_INVALID);
    }
    CHECK(status_of([&] { file.find(*model.layers[0].ffn_up); }) == EDGEKV_STATUS_MODEL_INVALID); // its place was not noted
}

// Change a copy after it was opened.
template <typename F> void test_change(const llama_model & model, const char * path, F change) {
    const std::string copy = std::string(path) + ".changed";
    std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::last_write_time(copy, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    auto file = WeightsFile::open(copy.c_str());
    if (CHECK(file != nullptr)) {
        test_bytes(model, *file);
        change(copy);
        for (const auto & layer : model.layers) {
            CHECK(status_of([&] { rows_of(*file, *layer.wo); }) == EDGEKV_STATUS_MODEL_INVALID);
        }
    }
    file.reset(); // Windows removes no open file
    std::filesystem::remove(copy);
}

std::string replaced; // and what takes its place
std::string other;

// A model whose file is replaced after the library opened it and before llama.cpp does: W_O would be that of the old file.
void test_replacement(const char * path) {
    replaced = std::string(path) + ".replaced";
    other    = std::string(path) + ".other";
    for (const bool replaces : { false, true }) {
        std::filesystem::copy_file(path, replaced, std::filesystem::copy_options::overwrite_existing);
        std::filesystem::copy_file(path, other, std::filesystem::copy_options::overwrite_existing);
        std::filesystem::last_write_time(other, std::filesystem::last_write_time(replaced));
        if (replaces) {
            failing::before_load = [] { std::filesystem::rename(other, replaced); };
        }
        llama_model_params params = llama_model_default_params();
        params.use_extra_bufts    = true;
        llama_model *       model = nullptr;
        char                err[512] = "";
        const edgekv_status status   = edgekv_model_load(replaced.c_str(), &params, 0, &model, err, sizeof(err));
        failing::before_load         = nullptr;
        CHECK(status == (replaces ? EDGEKV_STATUS_MODEL_INVALID : EDGEKV_STATUS_OK));
        CHECK(!replaces || (model == nullptr && std::string(err).find("was replaced") != std::string::npos));
        llama_model_free(model);
    }
    std::filesystem::remove(replaced);
    std::filesystem::remove(other);
}

} // namespace

void test_weights_file(const char * path) {
    const Model         model(path, false);
    const llama_model & loaded = *model.model;
    CHECK(loaded.weights_file == nullptr); // nothing is repacked that would be read there
    const Model repacked(path);
    const auto  file = repacked.model->weights_file;
    if (!CHECK(file != nullptr)) {
        return;
    }
    if (failing::works) {
        test_replacement(path);
    }
    test_bytes(loaded, *file);
    test_other_tensors(loaded, *file);

    char byte = 0;
    CHECK(status_of([&] { file->read(std::filesystem::file_size(path), &byte, 1); }) == EDGEKV_STATUS_MODEL_INVALID);

    test_change(loaded, path, [](const std::string & copy) { std::filesystem::resize_file(copy, 100); });
    test_change(loaded, path, [](const std::string & copy) { std::ofstream(copy, std::ios::app) << 'x'; });
    test_change(loaded, path, [](const std::string & copy) {
        std::fstream(copy, std::ios::in | std::ios::out | std::ios::binary) << 'x'; // as many bytes as before
    });

    CHECK(status_of([] { WeightsFile::open("/nowhere/model.gguf"); }) == EDGEKV_STATUS_MODEL_INVALID);
    const std::string text = std::string(path) + ".txt";
    std::ofstream(text) << "no model";
    CHECK(WeightsFile::open(text.c_str()) == nullptr);
    std::filesystem::remove(text);
}
