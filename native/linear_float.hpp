// Linear layers with an input of float32, for weights of any encoding.
#pragma once

#include "linear_panels.hpp"

namespace octavo {
namespace {

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

}  // namespace
}  // namespace octavo
