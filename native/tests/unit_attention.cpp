// Attention of a token over the cells of a KV head: the same to the bit alone and in a batch of any length, and close to double.
#include "check.h"
#include "ggml.h"
#include "random_values.h"
#include "rows/attention_pass.h"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace edgekv;

namespace {

constexpr size_t n_before = 40, n_tokens = is_sanitized ? 131 : 512, n_cells = n_before + n_tokens;

struct Shape {
    size_t dim_k;
    size_t dim_v;
    size_t n_group; // query heads of the KV head
    bool   is_latent = false;
};

struct Extras {
    float softcap   = 0.0f;
    bool  has_sinks = false;
    bool  has_gaps  = false; // a mask hides every fifth cell
};

ggml_tensor tensor_of(void * data, size_t size, size_t dim, size_t n_rows, size_t n_matrices) {
    ggml_tensor tensor = {};
    tensor.data        = data;
    tensor.ne[0]       = static_cast<int64_t>(dim);
    tensor.ne[1]       = static_cast<int64_t>(n_rows);
    tensor.ne[2]       = static_cast<int64_t>(n_matrices);
    tensor.nb[0]       = size;
    tensor.nb[1]       = size * dim;
    tensor.nb[2]       = size * dim * n_rows;
    return tensor;
}

// Rows as a cache stores them.
struct StoredRows {
    RowFormat         format;
    std::vector<char> data;

    StoredRows(ggml_type type, size_t dim) : format{ type, dim, ggml_row_size(type, static_cast<int64_t>(dim)) }, data(n_cells * format.stride) {
        const auto values = random_values(n_cells * dim);
        for (size_t cell = 0; cell < n_cells; ++cell) {
            row_from_float(type)(values.data() + cell * dim, data.data() + cell * format.stride, static_cast<int64_t>(dim));
        }
    }

    std::vector<float> row(size_t cell) const {
        std::vector<float> values(format.dim);
        row_to_float(format.type)(data.data() + cell * format.stride, values.data(), static_cast<int64_t>(format.dim));
        return values;
    }
};

// Tokens, each of which sees n_before cells, those of the tokens before it, and its own.
class Text {
  public:
    Text(ggml_type type, const Shape & shape, const Extras & extras)
        : shape_(shape), extras_(extras), keys_(type, shape.dim_k), values_(type, shape.dim_v),
          queries_(random_values(n_tokens * shape.n_group * shape.dim_k)), sinks_(random_values(shape.n_group)) {}

    size_t row_size() const { return shape_.n_group * shape_.dim_v; }

    // The rows (n, row_size) of tokens [first, first + n) as one batch, whose queries threads share in two parts.
    std::vector<float> attend(size_t first, size_t n) {
        std::vector<float>       out(n * row_size());
        std::vector<ggml_fp16_t> shown(n * n_cells, ggml_fp32_to_fp16(-INFINITY));
        for (size_t token = 0; token < n; ++token) {
            for (size_t cell = 0; cell < n_cells; ++cell) {
                shown[token * n_cells + cell] = sees(first + token, cell) ? ggml_fp32_to_fp16(0.0f) : shown[token * n_cells + cell];
            }
        }
        float *     of_first = queries_.data() + first * shape_.n_group * shape_.dim_k;
        ggml_tensor queries  = tensor_of(of_first, sizeof(float), shape_.dim_k, shape_.n_group, n);
        ggml_tensor sinks    = tensor_of(sinks_.data(), sizeof(float), 1, shape_.n_group, 1);
        ggml_tensor mask     = tensor_of(shown.data(), sizeof(ggml_fp16_t), n_cells, n, 1);
        ggml_tensor rows     = tensor_of(out.data(), sizeof(float), row_size(), n, 1);

        AttentionOperands of = {};
        of.queries           = &queries;
        of.sinks             = extras_.has_sinks ? &sinks : nullptr;
        of.mask              = extras_.has_gaps ? &mask : nullptr;
        of.out               = &rows;
        of.n_head_kv         = 1;
        of.keys              = keys_.format;
        of.values            = values_.format;
        of.is_latent         = shape_.is_latent;
        of.scale             = scale();
        of.softcap           = extras_.softcap;

        const AttendedHead head = { keys_.data.data(), values_.data.data(), n_before + first + n };
        std::vector<char> memory(AttentionPass::work_bytes(shape_.dim_k, shape_.dim_v) + AttentionPass::n_aligned);
        const auto        begin = round_up(reinterpret_cast<uintptr_t>(memory.data()), AttentionPass::n_aligned);
        AttentionPass     pass(of, 0, n, reinterpret_cast<void *>(begin));
        const size_t      middle = std::min(pass.n_queries(), round_up(pass.n_queries() / 2, pass.step()));
        pass.attend_head(head, 0, 0, middle);
        pass.attend_head(head, 0, middle, pass.n_queries());
        return out;
    }

    // A token's row (row_size,) in double.
    std::vector<double> expected(size_t token) const {
        std::vector<double> out(row_size());
        std::vector<double> totals(shape_.n_group);
        for (size_t h = 0; h < shape_.n_group; ++h) {
            totals[h] = extras_.has_sinks ? std::exp(double(sinks_[h])) : 0.0;
        }
        for (size_t cell = 0; cell < n_cells; ++cell) {
            if (!sees(token, cell)) {
                continue;
            }
            const auto key   = keys_.row(cell);
            const auto value = shape_.is_latent ? key : values_.row(cell);
            for (size_t h = 0; h < shape_.n_group; ++h) {
                const float * query = queries_.data() + (token * shape_.n_group + h) * shape_.dim_k;
                double        logit = 0.0;
                for (size_t k = 0; k < shape_.dim_k; ++k) {
                    logit += double(scale()) * query[k] * key[k];
                }
                logit = extras_.softcap > 0.0f ? extras_.softcap * std::tanh(logit / extras_.softcap) : logit;
                totals[h] += std::exp(logit);
                for (size_t k = 0; k < shape_.dim_v; ++k) {
                    out[h * shape_.dim_v + k] += std::exp(logit) * value[k];
                }
            }
        }
        for (size_t i = 0; i < out.size(); ++i) {
            out[i] /= totals[i / shape_.dim_v];
        }
        return out;
    }

  private:
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.dim_k)); }
    bool  sees(size_t token, size_t cell) const { return cell <= n_before + token && !(extras_.has_gaps && cell % 5 == 3); }

    const Shape        shape_;
    const Extras       extras_;
    const StoredRows   keys_;
    const StoredRows   values_;
    std::vector<float> queries_;
    std::vector<float> sinks_;
};

void test_text(ggml_type type, const Shape & shape, const Extras & extras) {
    Text                text(type, shape, extras);
    const std::vector<size_t> alone = is_sanitized ? std::vector<size_t>{ 0, 130 } : std::vector<size_t>{ 0, 3, 7, 130, n_tokens - 1 };
    std::vector<std::vector<float>> rows;
    for (const size_t token : alone) {
        rows.push_back(text.attend(token, 1));
        const auto expected = text.expected(token);
        for (size_t i = 0; i < expected.size(); ++i) {
            CHECK(std::fabs(rows.back()[i] - expected[i]) <= 1e-5 * std::max(1.0, std::fabs(expected[i])));
        }
    }
    for (const size_t n : is_sanitized ? std::vector<size_t>{ 2, 8, 64, 128 } : std::vector<size_t>{ 2, 4, 8, 32, 64, 128, 512 }) {
        for (size_t i = 0; i < alone.size(); ++i) {
            for (const size_t before : { size_t(0), n - 1 }) { // the token comes first, or last
                if (before <= alone[i] && alone[i] - before + n <= n_tokens) {
                    const auto batch = text.attend(alone[i] - before, n);
                    CHECK(std::equal(rows[i].begin(), rows[i].end(), batch.begin() + static_cast<std::ptrdiff_t>(before * text.row_size())));
                }
            }
        }
    }
}

} // namespace

void test_columns() {
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        for (const Shape & shape : { Shape{ 32, 32, 4 }, { 64, 64, 3 }, { 64, 64, 7 }, { 96, 96, 1 }, { 128, 128, 6 }, { 192, 128, 2 }, { 256, 256, 2 } }) {
            test_text(type, shape, {});
        }
    }
    test_text(GGML_TYPE_F32, { 80, 80, 5 }, {});
    test_text(GGML_TYPE_F16, { 80, 80, 5 }, {}); // whole registers, and not
    test_text(GGML_TYPE_Q8_0, { 576, 512, 4, true }, {});
    test_text(GGML_TYPE_F16, { 64, 64, 3 }, { 2.0f, true });
    test_text(GGML_TYPE_Q8_0, { 64, 64, 3 }, { 30.0f });
    test_text(GGML_TYPE_Q8_0, { 64, 64, 3 }, { 0.0f, true, true });
    test_text(GGML_TYPE_F16, { 128, 128, 8 }, { 2.0f, true, true });
}
