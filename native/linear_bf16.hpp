// Linear layers with weights of bfloat16 where the processor multiplies pairs of them: the input is rounded
// to bfloat16 too, and the sums are float32.
#pragma once

#include "linear_panels.hpp"

namespace octavo {
namespace {

// Rows x panels whose sums the registers hold, beside a weight of each panel and an input.
constexpr int kPairRows = 6, kPairPanels = 4;

OCTAVO_INLINE RoundedRows rounded_rows(const LinearArgs& args, void* place) {
    return {static_cast<uint16_t*>(place), (args.weight->num_inputs + 31) / 32 * 32};
}

inline void round_row(const LinearArgs& args, int64_t row, const RoundedRows& rounded) {
    uint16_t* out = rounded.row(row);
    const float* x = args.in.row(row);
    const int64_t width = args.weight->num_inputs;
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) store_bf16(out + i, load(x + i));
    if (i < width) store_bf16(out + i, load_first(x + i, int(width - i)));
}

// R rows on P panels. Per pair of inputs, in order: sum += the pair's dot product.
template <int R, int P>
OCTAVO_INLINE void pair_tile(const LinearArgs& args, const LinearItem& item, int row, int64_t first_panel) {
    const Segment& segment = *item.segment;
    const int64_t num_pairs = (args.weight->num_inputs + 1) / 2;
    const uint8_t* panels[P];
    const uint16_t* rows[R];
    F32x16 sums[R][P];
    for (int p = 0; p < P; p++) panels[p] = segment.tiles + (first_panel + p) * segment.tile_bytes;
    for (int r = 0; r < R; r++) {
        rows[r] = item.rounded.row(row + r);
        for (int p = 0; p < P; p++) sums[r][p] = splat(0.0f);
    }
    for (int64_t k = 0; k < num_pairs; k++) {
        I32x16 weights[P];
        for (int p = 0; p < P; p++) weights[p] = load_words(panels[p] + k * 64);
        for (int r = 0; r < R; r++) {
            const I32x16 input = splat_4_bytes(rows[r] + 2 * k);
            for (int p = 0; p < P; p++) sums[r][p] = dot_bf16(sums[r][p], weights[p], input);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) store_panel(args, segment, first_panel + p, row + r, sums[r][p]);
}

// Rows [row, end_row), R at a time, then the rest.
template <int R, int P>
inline void pair_panels(const LinearArgs& args, const LinearItem& item, int row, int64_t first_panel) {
    for (; row + R <= item.end_row; row += R) pair_tile<R, P>(args, item, row, first_panel);
    if constexpr (R > 1)
        if (row < item.end_row) pair_panels<(R > 4 ? 4 : R / 2), P>(args, item, row, first_panel);
}

inline void pair_item(const LinearArgs& args, const LinearItem& item) {
    int64_t panel = item.first_panel;
    for (; panel + kPairPanels <= item.end_panel; panel += kPairPanels)
        pair_panels<kPairRows, kPairPanels>(args, item, item.first_row, panel);
    for (; panel < item.end_panel; panel++) pair_panels<kPairRows, 1>(args, item, item.first_row, panel);
}

}  // namespace
}  // namespace octavo
