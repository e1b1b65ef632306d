// Weights rearranged at load for the vector unit: panels of 16 outputs, read from front to back by
// linear_int8.hpp and linear_float.hpp.
//
// With n the output in a panel and K the inputs, a panel's tiles are
//   codes of 4 bits       [K / 32][4][16 n][4]   byte j of part i: code 4 i + j of the group (low nibble) and
//                                                the one 16 after it (high)
//   codes of 6 or 8 bits  [K / 32][8][16 n][4]   byte j of part i: code 4 i + j
//   BF16                  [K / 2][16 n][2]
//   F16, F32              [K][16 n]
// and its scales, of the quantized ones: for each block float16 [1 or 2][16 n], the second with the minimums;
// in superblocks then for each group the integers, bytes [scales and minimums][halves][16 n]. blocks.hpp says
// which encoding has what. First come the tiles of all panels, then the scales of all. Nothing is rounded:
// the bits are the file's, reordered.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "team.hpp"
#include "weight_memory.hpp"

namespace octavo {

constexpr int kPanel = 16;
constexpr int kGroup = 32;

// A row-major weight matrix as its file holds it.
struct WeightView {
    Encoding encoding;
    const uint8_t* data;
    int64_t num_outputs, num_inputs;
    const float* bias;  // [num_outputs], or null
};

// Values that cannot be separated, and bytes of `width` values.
int64_t block_values(Encoding encoding);
int64_t row_bytes(Encoding encoding, int64_t width);

// Throws std::invalid_argument where a layer cannot consist of these matrices.
std::shared_ptr<PackedLinear> pack_linear(const std::vector<WeightView>& weights, WeightMemory& memory,
                                          Team& team);

}  // namespace octavo
