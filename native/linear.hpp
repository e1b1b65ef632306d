// Linear layers. One kernel for any number of rows: each tile of 32 inputs x 16 outputs is unpacked once and
// meets all rows of a block, whose sums wait in the first-level cache. Each output adds up its groups of
// inputs from first to last, whatever the number of rows, so a row's result does not depend on its company.
#pragma once

#include <type_traits>

#include "blocks.hpp"
#include "kernels.hpp"
#include "packed_linear.hpp"
#include "quantize.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

constexpr int kRowBlock = 64;  // rows whose sums fit in the first-level cache

// Rows [first_row, end_row) of the layer's input, and panels [first_panel, end_panel) of a segment.
struct LinearItem {
    const Segment* segment;
    const QuantizedGroup* groups;  // of all the layer's rows
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

template <Encoding encoding>
OCTAVO_INLINE I32x16 sum_start(const QuantizedGroup& group, int part) {
    constexpr Form form = form_of(encoding);
    if constexpr (form.zero == 0) return splat(kSumBias);
    if constexpr (form.halves) return splat(kSumBias - form.zero * group.half_sums[part]);
    return splat(form.zero == 8 ? group.start_q4 : group.start_q8);
}

template <Encoding encoding>
OCTAVO_INLINE float scaled_sum(const QuantizedGroup& group, int part) {
    return form_of(encoding).halves ? group.scale * float(group.half_sums[part]) : group.scaled_sum;
}

// R rows x P panels of one group: all their integer sums side by side, so that none has to wait for another.
template <Encoding encoding, int R, int P, class Tile>
OCTAVO_INLINE void add_tiles(const Tile (&tiles)[P], const Scales<encoding> (&scales)[P],
                             const QuantizedGroup* groups, float* sums) {
    constexpr int parts = Quantized<encoding>::parts;
    I32x16 dots[parts][R][P];
    const int8_t* values[R];
    for (int r = 0; r < R; r++) {
        values[r] = groups[r].values;
        for (int h = 0; h < parts; h++)
            for (int p = 0; p < P; p++) dots[h][r][p] = sum_start<encoding>(groups[r], h);
    }
    if constexpr (parts == 1) {
        dot_rows<0, 8>(tiles, values, dots[0]);
    } else {
        dot_rows<0, 4>(tiles, values, dots[0]);
        dot_rows<4, 8>(tiles, values, dots[1]);
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) {
            float* place = sums + (r * P + p) * 16;
            F32x16 sum = load(place);
            for (int h = 0; h < parts; h++) {
                sum = fma(scale_sum(dots[h][r][p], groups[r]), scales[p].scale[h], sum);
                if constexpr (form_of(encoding).has_minimum)
                    sum = fma(scales[p].minimum[h], splat(scaled_sum<encoding>(groups[r], h)), sum);
            }
            store(place, sum);
        }
}

// int8 activations on P panels. Per group of inputs (where it has two scales: per half), in order:
// sum += (float(integer dot) * input scale) * weight scale [+ minimum * input sum].
template <Encoding encoding, int P>
inline void quantized_panels(const LinearArgs& args, const LinearItem& item, int64_t first_panel) {
    using Tile = typename Quantized<encoding>::Tile;
    constexpr int tile_bytes = form_of(encoding).tile_bytes();
    const Segment& segment = *item.segment;
    const int64_t num_groups = args.weight->num_inputs / 32;
    const int64_t group_scale_bytes = segment.scale_bytes / num_groups;
    const int num_rows = item.end_row - item.first_row;
    const QuantizedGroup* groups = item.groups + item.first_row;
    const uint8_t* tile_data = segment.tiles + first_panel * segment.tile_bytes;
    const uint8_t* scale_data = segment.scales + first_panel * segment.scale_bytes;
    alignas(64) float sums[kRowBlock * P * 16];
    for (int i = 0; i < num_rows * P; i++) store(sums + 16 * i, splat(0.0f));
    for (int64_t g = 0; g < num_groups; g++) {
        const auto tile_of = [&](int p) { return tile_data + p * segment.tile_bytes + g * tile_bytes; };
        Scales<encoding> scales[P];
        for (int p = 0; p < P; p++) {
            // The panels after these, from front to back: a fixed distance ahead would, with several panels
            // at once, often meet what is being read already.
            const int64_t ahead = g * P + p;
            for (int i = 0; i < tile_bytes; i += 64)
                prefetch_l2(tile_data + P * segment.tile_bytes + ahead * tile_bytes + i);
            prefetch_l2(scale_data + P * segment.scale_bytes + ahead * group_scale_bytes);
            scales[p] = Scales<encoding>(scale_data + p * segment.scale_bytes, g);
        }
        // A tile for itself: one that several rows share would have to lie in memory.
        const auto add_row = [&](const Tile(&tiles)[P]) {
            add_tiles<encoding, 1, P>(tiles, scales, groups, sums);
        };
        const auto add_rows = [&](const Tile(&tiles)[P]) {
            int r = 0;
            for (; r + kDotRows <= num_rows; r += kDotRows)
                add_tiles<encoding, kDotRows, P>(tiles, scales, groups + r, sums + r * P * 16);
            for (; r + 4 <= num_rows; r += 4)
                add_tiles<encoding, 4, P>(tiles, scales, groups + r, sums + r * P * 16);
            for (; r < num_rows; r++) add_tiles<encoding, 1, P>(tiles, scales, groups + r, sums + r * P * 16);
        };
        const auto with_tiles = [&](auto&& add) {
            if constexpr (P == 2)
                add({Tile(tile_of(0)), Tile(tile_of(1))});
            else
                add({Tile(tile_of(0))});
        };
        if (num_rows == 1)
            with_tiles(add_row);
        else
            with_tiles(add_rows);
        groups += args.num_rows;
        if (g + 2 == num_groups) prefetch_outputs(args, item, first_panel, P);
    }
    for (int r = 0; r < num_rows; r++)
        for (int p = 0; p < P; p++)
            store_panel(args, segment, first_panel + p, item.first_row + r, load(sums + (r * P + p) * 16));
}

template <Encoding encoding>
inline void quantized_item(const LinearArgs& args, const LinearItem& item) {
    int64_t panel = item.first_panel;
    for (; panel + kDotPanels <= item.end_panel; panel += kDotPanels)
        quantized_panels<encoding, kDotPanels>(args, item, panel);
    if (panel < item.end_panel) quantized_panels<encoding, 1>(args, item, panel);
}

// Up to 32 inputs of a panel as float32 [inputs][16], exactly the values that the file means: in `out`, or
// where they are.
using DecodeTile = const float* (*)(const uint8_t* panel, const uint8_t* scales, int64_t num_inputs,
                                    int64_t group, float* out);

template <Encoding encoding>
inline const float* decode_tile(const uint8_t* panel, [[maybe_unused]] const uint8_t* scales,
                                int64_t num_inputs, int64_t group, float* out) {
    const int64_t first = group * 32;
    const int count = int(num_inputs - first < 32 ? num_inputs - first : 32);
    if constexpr (encoding == Encoding::F32) {
        return reinterpret_cast<const float*>(panel) + first * 16;
    } else if constexpr (encoding == Encoding::F16) {
        for (int k = 0; k < count; k++) store(out + 16 * k, load_f16(panel + (first + k) * 32));
    } else if constexpr (encoding == Encoding::BF16) {
        for (int k = 0; k < count; k += 2) {
            const I32x16 pairs = load_words(panel + (first + k) * 32);
            store(out + 16 * k, low_bf16(pairs));
            store(out + 16 * (k + 1), high_bf16(pairs));
        }
    } else {
        constexpr Form form = form_of(encoding);
        const uint8_t* tile = panel + group * form.tile_bytes();
        const Scales<encoding> scale(scales, group);
        const I32x16 zero = splat(form.zero);
        const I32x16 mask = splat(form.code_bits == 4 ? 15 : 255);
        const auto put = [&](int k, I32x16 code) {
            const int part = form.halves ? k / 16 : 0;
            const F32x16 value = to_float((code & mask) - zero) * scale.scale[part];
            store(out + 16 * k, form.has_minimum ? value + scale.minimum[part] : value);
        };
        for (int i = 0; i < form.tile_bytes() / 64; i++) {
            const I32x16 word = load_words(tile + 64 * i);
            put(4 * i, word);
            put(4 * i + 1, shift_right<8>(word));
            put(4 * i + 2, shift_right<16>(word));
            put(4 * i + 3, shift_right<24>(word));
            if constexpr (form.code_bits == 4) {
                put(4 * i + 16, shift_right<4>(word));
                put(4 * i + 17, shift_right<12>(word));
                put(4 * i + 18, shift_right<20>(word));
                put(4 * i + 19, shift_right<28>(word));
            }
        }
    }
    return out;
}

// One input: its weights in P panels meet R rows of x.
template <int R, int P>
OCTAVO_INLINE void add_float_input(const F32x16 (&w)[P], const float* x, int64_t x_stride,
                                   F32x16 (&sums)[R][P]) {
    for (int r = 0; r < R; r++) {
        const F32x16 value = splat(x[r * x_stride]);
        for (int p = 0; p < P; p++) sums[r][p] = fma(w[p], value, sums[r][p]);
    }
}

// R rows x P panels of float sums over one tile, in registers.
template <int R, int P>
OCTAVO_INLINE void add_float_tile(const float* const (&tiles)[P], int count, const float* x, int64_t x_stride,
                                  float* sums) {
    F32x16 acc[R][P];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) acc[r][p] = load(sums + (r * P + p) * 16);
    for (int k = 0; k < count; k++) {
        F32x16 w[P];
        for (int p = 0; p < P; p++) w[p] = load(tiles[p] + 16 * k);
        add_float_input<R, P>(w, x + k, x_stride, acc);
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) store(sums + (r * P + p) * 16, acc[r][p]);
}

// Rows [r, num_rows) by groups of at most R.
template <int R, int P>
OCTAVO_INLINE void add_float_rows(const float* const (&tiles)[P], int count, const float* x, int64_t x_stride,
                                  float* sums, int num_rows, int r = 0) {
    for (; r + R <= num_rows; r += R)
        add_float_tile<R, P>(tiles, count, x + r * x_stride, x_stride, sums + r * P * 16);
    if constexpr (R > 1) add_float_rows<(R > 4 ? 4 : R / 2), P>(tiles, count, x, x_stride, sums, num_rows, r);
}

// float32 activations on P panels. Per input, in order: sum += weight * input.
template <int P>
inline void float_panels(const LinearArgs& args, const LinearItem& item, DecodeTile decode,
                         int64_t first_panel) {
    const Segment& segment = *item.segment;
    const int64_t num_inputs = args.weight->num_inputs;
    const int num_rows = item.end_row - item.first_row;
    alignas(64) float sums[kRowBlock * P * 16];
    alignas(64) float decoded[P][32 * 16];
    for (int i = 0; i < num_rows * P; i++) store(sums + 16 * i, splat(0.0f));
    for (int64_t g = 0; g * 32 < num_inputs; g++) {
        const int count = int(num_inputs - g * 32 < 32 ? num_inputs - g * 32 : 32);
        const float* tiles[P];
        for (int p = 0; p < P; p++)
            tiles[p] =
                decode(segment.tiles + (first_panel + p) * segment.tile_bytes,
                       segment.scales + (first_panel + p) * segment.scale_bytes, num_inputs, g, decoded[p]);
        add_float_rows<kFloatRows, P>(tiles, count, args.in.row(item.first_row) + g * 32, args.in.width, sums,
                                      num_rows);
    }
    for (int r = 0; r < num_rows; r++)
        for (int p = 0; p < P; p++)
            store_panel(args, segment, first_panel + p, item.first_row + r, load(sums + (r * P + p) * 16));
}

// The same sums of R rows with weights that need no decoding, which go from memory right into the FMA.
template <Encoding encoding, int R, int P>
inline void few_rows_panels(const LinearArgs& args, const LinearItem& item, int64_t first_panel) {
    const Segment& segment = *item.segment;
    const int64_t num_inputs = args.weight->num_inputs, width = args.in.width;
    const uint8_t* panels[P];
    for (int p = 0; p < P; p++) panels[p] = segment.tiles + (first_panel + p) * segment.tile_bytes;
    const float* x = args.in.row(item.first_row);
    F32x16 sums[R][P], w[P];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) sums[r][p] = splat(0.0f);
    if constexpr (encoding == Encoding::BF16) {
        for (int64_t k = 0; k < num_inputs; k += 2) {
            I32x16 pairs[P];
            for (int p = 0; p < P; p++) w[p] = low_bf16(pairs[p] = load_words(panels[p] + k * 32));
            add_float_input<R, P>(w, x + k, width, sums);
            if (k + 1 == num_inputs) break;
            for (int p = 0; p < P; p++) w[p] = high_bf16(pairs[p]);
            add_float_input<R, P>(w, x + k + 1, width, sums);
        }
    } else {
        for (int64_t k = 0; k < num_inputs; k++) {
            for (int p = 0; p < P; p++)
                w[p] = encoding == Encoding::F32 ? load(reinterpret_cast<const float*>(panels[p]) + k * 16)
                                                 : load_f16(panels[p] + k * 32);
            add_float_input<R, P>(w, x + k, width, sums);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++)
            store_panel(args, segment, first_panel + p, item.first_row + r, sums[r][p]);
}

// As many panels at once as give the FMA units independent sums enough.
template <Encoding encoding, int R>
inline void few_rows_item(const LinearArgs& args, const LinearItem& item) {
    if constexpr (R > 1)
        if (item.end_row - item.first_row < R) return few_rows_item<encoding, R - 1>(args, item);
    constexpr int fitting = kFloatRows * kFloatPanels / R, P = fitting > 4 ? 4 : fitting;
    int64_t panel = item.first_panel;
    for (; panel + P <= item.end_panel; panel += P) few_rows_panels<encoding, R, P>(args, item, panel);
    for (; panel < item.end_panel; panel++) few_rows_panels<encoding, R, 1>(args, item, panel);
}

template <Encoding encoding>
inline void float_item(const LinearArgs& args, const LinearItem& item) {
    if constexpr (!is_quantized(encoding))
        if (item.end_row - item.first_row <= kFloatRows)
            return few_rows_item<encoding, kFloatRows>(args, item);
    int64_t panel = item.first_panel;
    for (; panel + kFloatPanels <= item.end_panel; panel += kFloatPanels)
        float_panels<kFloatPanels>(args, item, decode_tile<encoding>, panel);
    for (; panel < item.end_panel; panel++) float_panels<1>(args, item, decode_tile<encoding>, panel);
}

inline void linear_item(const LinearArgs& args, const LinearItem& item) {
    with_encoding(item.segment->encoding, [&](auto encoding) {
        // What is packed as another never comes here.
        if constexpr (packed_as(encoding.value) == encoding.value) {
            if constexpr (is_quantized(encoding.value))
                if (args.quantize_input) return quantized_item<encoding.value>(args, item);
            float_item<encoding.value>(args, item);
        }
    });
}

OCTAVO_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How the work on a segment is cut into items.
struct Split {
    int rows;  // of a block
    int64_t row_blocks, panels;
    int64_t num_items;
};

// Small enough to share out evenly, large enough that claiming costs nothing. Few rows are bound by reading
// weights, and long reads are faster. Of many, a block's input should stay in the cache for all panels.
OCTAVO_INLINE Split split_of(const LinearArgs& args, const Segment& segment, int num_workers) {
    Split split;
    split.rows = kRowBlock;
    if (!args.quantize_input || !segment.is_quantized()) {
        const int64_t fitting = kFloatInputBytes / (4 * args.weight->num_inputs) / 12 * 12;
        split.rows = int(fitting < 12 ? 12 : fitting < kRowBlock ? fitting : kRowBlock);
    }
    split.row_blocks = divide_up(args.num_rows, split.rows);
    const bool few = args.num_rows < kRowBlock / 2;
    const int64_t fair =
        divide_up(segment.num_panels * split.row_blocks, (few ? 4 : 16) * int64_t(num_workers));
    const int64_t most = divide_up(few ? 256 << 10 : 1 << 20, segment.tile_bytes);
    const int64_t together = segment.is_quantized() ? kDotPanels : kFloatPanels;
    split.panels = divide_up(fair < most ? fair : most, together) * together;
    split.num_items = divide_up(segment.num_panels, split.panels) * split.row_blocks;
    return split;
}

// The input quantized, by all workers together or by each for itself.
OCTAVO_INLINE const QuantizedGroup* quantize_input(const LinearArgs& args, Worker& worker) {
    auto* groups = static_cast<QuantizedGroup*>(args.scratch);
    if (args.num_rows > kFewRows) {
        worker.for_each(args.num_rows, [&](int64_t r) { quantize_row(args, r, groups + r, args.num_rows); });
    } else {
        // A late worker may still be at an earlier layer, of another width: its place must not depend on it.
        groups += worker.id() * (args.scratch_bytes / int64_t(sizeof(QuantizedGroup)) / worker.count());
        for (int r = 0; r < args.num_rows; r++) quantize_row(args, r, groups + r, args.num_rows);
    }
    return groups;
}

inline void linear(const LinearArgs& args, Worker& worker) {
    const PackedLinear& layer = *args.weight;
    const QuantizedGroup* groups = args.quantize_input ? quantize_input(args, worker) : nullptr;
    const auto split = [&](const Segment& segment) { return split_of(args, segment, worker.count()); };
    int64_t num_items = 0;
    for (int s = 0; s < layer.num_segments; s++) num_items += split(layer.segments[s]).num_items;
    worker.for_each(num_items, [&](int64_t i) {
        const Segment* segment = layer.segments;
        Split by = split(*segment);
        for (; i >= by.num_items; by = split(*++segment)) i -= by.num_items;
        const int64_t first = i / by.row_blocks * by.panels;
        const int64_t end = first + by.panels < segment->num_panels ? first + by.panels : segment->num_panels;
        const int row = int(i % by.row_blocks) * by.rows;
        const int end_row = row + by.rows < args.num_rows ? row + by.rows : args.num_rows;
        linear_item(args, {segment, groups, first, end, row, end_row});
    });
}

}  // namespace
}  // namespace octavo
