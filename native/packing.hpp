// Weights rearranged for the vector unit; see linear.hpp for the kernels that read them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "team.hpp"

namespace octavo {

// A row-major weight matrix as its file holds it, and optionally a bias.
struct WeightView {
    Encoding encoding;
    const uint8_t* data;
    int64_t num_outputs, num_inputs;
    const float* bias;  // [num_outputs], or null
};

int64_t row_bytes(Encoding encoding, int64_t width);

}  // namespace octavo
