// A linear layer as the kernels read it; packing.hpp says how a panel looks inside.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace octavo {

// Outputs that share an encoding: neighbours in the layer's output row.
struct Segment {
    Encoding encoding;
    int64_t first_output, num_outputs;
    int64_t num_panels;
    int64_t tile_bytes, scale_bytes;  // of one panel
    const uint8_t *tiles, *scales;
    const float* bias;  // [num_panels * 16], or null

    [[gnu::always_inline]] inline bool is_quantized() const { return encoding >= Encoding::Q8_0; }
};

struct PackedLinear {
    int64_t num_inputs, num_outputs;
    int num_segments;
    const Segment* segments;
};

// Input values quantized in groups of 32, with what the integer dot products of a group need around them.
struct alignas(64) QuantizedGroup {
    int8_t values[32];
    float scale;       // input value = scale * values[i]
    float unbias;      // -1.5 * 2^23 * scale, exact
    float scaled_sum;  // scale * the sum of values
    int32_t
        start_q4;  // where the sums start: 1.5 * 2^23 as a float's bits, less the zero point times the sum
    int32_t start_q8;
};

constexpr int64_t quantized_bytes(int64_t num_rows, int64_t num_inputs) {
    return num_rows * (num_inputs / 32) * int64_t(sizeof(QuantizedGroup));
}

}  // namespace octavo
