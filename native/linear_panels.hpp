// What both kinds of linear kernels share: an item of work, a panel's scales, and how its sums are stored.
#pragma once

#include <type_traits>

#include "blocks.hpp"
#include "kernels.hpp"
#include "packed_linear.hpp"
#include "quantize.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

// A layer's input rounded to bfloat16, each row filled up with zeros.
struct RoundedRows {
    uint16_t* data;
    int64_t width;  // a multiple of 32

    OCTAVO_INLINE uint16_t* row(int64_t i) const { return data + i * width; }
};

// Rows [first_row, end_row) of the layer's input, and panels [first_panel, end_panel) of a segment.
struct LinearItem {
    const Segment* segment;
    RowGroups groups;     // of these rows, if the input is quantized
    RoundedRows rounded;  // of all rows, if the input is rounded to bfloat16
    int64_t first_panel, end_panel;
    int first_row, end_row;
};

// Adds bias and residual and stores one panel's sums.
OCTAVO_INLINE void store_panel(const LinearArgs& args, const Segment& segment, int64_t panel, int row,
                               F32x16 sum) {
    const int64_t left = segment.num_outputs - panel * 16;
    const int count = int(left < 16 ? left : 16);
    const int64_t column = segment.first_output + panel * 16;
    if (segment.bias) sum = sum + load(segment.bias + panel * 16);
    if (args.residual) sum = sum + load_first(args.residual + row * args.out.width + column, count);
    store_first(args.out.row(row) + column, sum, count);
}

// Fetches the lines that the sums of these panels will be stored to, shortly before they are complete.
OCTAVO_INLINE void prefetch_outputs(const LinearArgs& args, const LinearItem& item, int64_t panel,
                                    int count) {
    const int64_t column = item.segment->first_output + panel * 16;
    for (int row = item.first_row; row < item.end_row; row++)
        for (int p = 0; p < count; p++) __builtin_prefetch(args.out.row(row) + column + p * 16, 1, 3);
}

template <Encoding encoding>
struct Quantized {
    static constexpr Form form = form_of(encoding);
    static constexpr int parts = form.halves ? 2 : 1;  // of a group, each with a scale of its own
    using Tile =
        std::conditional_t<form.code_bits == 4, Tile4, std::conditional_t<form.code_bits == 6, Tile6, Tile8>>;
};

// Scales and minimums of one panel's group, exactly as the file means them: a product of 11 bits and 8 is a
// float32.
template <Encoding encoding>
struct Scales {
    using Q = Quantized<encoding>;
    F32x16 scale[Q::parts], minimum[Q::parts];

    OCTAVO_INLINE Scales() = default;
    OCTAVO_INLINE Scales(const uint8_t* panel, int64_t group) {
        constexpr Form form = Q::form;
        constexpr int groups = form.block_values / 32;
        const uint8_t* block = panel + group / groups * form.scale_bytes();
        const F32x16 d = load_f16(block), m = form.has_minimum ? load_f16(block + 32) : splat(0.0f);
        const uint8_t* integers = block + form.half_bytes() + group % groups * form.integer_bytes();
        for (int h = 0; h < Q::parts; h++) {
            scale[h] = form.in_superblocks() ? load_int8(integers + 16 * h) * d : d;
            minimum[h] =
                form.in_superblocks() && form.has_minimum ? load_int8(integers + 16 * (Q::parts + h)) * m : m;
        }
    }
};

}  // namespace
}  // namespace octavo
