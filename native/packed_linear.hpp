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

    [[gnu::always_inline]] inline bool is_quantized() const { return octavo::is_quantized(encoding); }
};

struct PackedLinear {
    int64_t num_inputs, num_outputs;
    int num_segments;
    const Segment* segments;

    [[gnu::always_inline]] inline bool any_quantized() const {
        for (int s = 0; s < num_segments; s++)
            if (segments[s].is_quantized()) return true;
        return false;
    }
    [[gnu::always_inline]] inline bool all_bf16() const {
        for (int s = 0; s < num_segments; s++)
            if (segments[s].encoding != Encoding::BF16) return false;
        return true;
    }
    [[gnu::always_inline]] inline bool all_quantized() const {
        for (int s = 0; s < num_segments; s++)
            if (!segments[s].is_quantized()) return false;
        return true;
    }
};

// Input values quantized in groups of 32, with what the integer dot products of a group need around them.
struct alignas(64) QuantizedGroup {
    int8_t values[32];
    float scale;           // input value = scale * values[i]
    float unbias;          // -1.5 * 2^23 * scale, exact
    float scaled_sum;      // scale * the sum of values
    int32_t half_sums[2];  // of the first and of the last 16 values
    // Where integer sums start: 1.5 * 2^23 as a float's bits, less the zero point times the sum of values.
    int32_t start_q4, start_q8;
};

// Up to this many rows, each worker quantizes the input for itself: sooner done than waiting for each other.
constexpr int kFewRows = 2;

// For the input of a layer in int8, or in bfloat16, which takes as much.
constexpr int64_t linear_scratch_bytes(int64_t max_rows, int64_t num_inputs, int num_workers) {
    const int64_t few_rows = int64_t(kFewRows) * num_workers;
    return (max_rows > few_rows ? max_rows : few_rows) * ((num_inputs + 31) / 32) *
           int64_t(sizeof(QuantizedGroup));
}

}  // namespace octavo
