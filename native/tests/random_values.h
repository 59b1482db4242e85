// Normal values that are the same in every run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

inline std::vector<float> random_values(size_t n, uint32_t seed) {
    std::mt19937                    engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float>              values(n);
    std::generate(values.begin(), values.end(), [&] { return normal(engine); });
    return values;
}

inline std::vector<float> random_values(size_t n) { return random_values(n, static_cast<uint32_t>(n)); }
