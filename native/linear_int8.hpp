// Linear layers with an input of int8: integer dot products, scaled group by group.
#pragma once

#include "linear_matrix.hpp"
#include "linear_panels.hpp"

namespace octavo {
namespace {

template <Encoding encoding>
OCTAVO_INLINE I32x16 sum_start(const QuantizedGroup& group, int part) {
    constexpr Form form = form_of(encoding);
    if constexpr (form.zero == 0) return splat(kSumBias);
    if constexpr (form.halves) return splat(start_below(kSumBias, form.zero, group.half_sums[part]));
    return splat(form.zero == 8 ? group.start_q4 : group.start_q8);
}

template <Encoding encoding>
OCTAVO_INLINE float scaled_sum(const QuantizedGroup& group, int part) {
    return form_of(encoding).halves ? group.scale * float(group.half_sums[part]) : group.scaled_sum;
}

// What R rows x P panels of one group add to their sums.
template <Encoding encoding, int R, int P>
OCTAVO_INLINE void add_dots(const I32x16 (&dots)[Quantized<encoding>::parts][R][P],
                            const Scales<encoding> (&scales)[P], const QuantizedGroup* groups, float* sums) {
    for (int r = 0; r < R; r++) {
        F32x16 sum[P];
        for (int p = 0; p < P; p++) {
            sum[p] = load(sums + (r * P + p) * 16);
            for (int h = 0; h < Quantized<encoding>::parts; h++) {
                sum[p] = fma(scale_sum(dots[h][r][p], groups[r]), scales[p].scale[h], sum[p]);
                if constexpr (form_of(encoding).has_minimum)
                    sum[p] = fma(scales[p].minimum[h], splat(scaled_sum<encoding>(groups[r], h)), sum[p]);
            }
        }
        for (int p = 0; p < P; p++) store(sums + (r * P + p) * 16, sum[p]);
    }
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
    add_dots<encoding, R, P>(dots, scales, groups, sums);
}

// The same of all rows, multiplied by the matrix unit. `tile_of(p)` is where a panel's tile lies.
template <Encoding encoding, int P, class TileOf>
OCTAVO_INLINE void add_products(MatrixUnit& unit, TileOf&& tile_of, const Scales<encoding> (&scales)[P],
                                const QuantizedGroup* groups, int num_rows, float* sums) {
    constexpr int parts = Quantized<encoding>::parts, code_bits = form_of(encoding).code_bits;
    static_assert(!kHasMatrixUnit || code_bits != 8 || kTile8Zero == form_of(encoding).zero);
    alignas(64) uint8_t room[P][512];
    const uint8_t* codes[P];
    for (int p = 0; p < P; p++) codes[p] = unpacked_codes<code_bits>(tile_of(p), room[p]);
    alignas(64) Products<parts, P> products;
    multiply_group<parts, P>(unit, groups, num_rows, codes, products);
    for (int r = 0; r < num_rows; r++) {
        I32x16 dots[parts][1][P];
        for (int h = 0; h < parts; h++)
            for (int p = 0; p < P; p++)
                dots[h][0][p] = load_words(products[h][r][p]) + sum_start<encoding>(groups[r], h);
        add_dots<encoding, 1, P>(dots, scales, groups + r, sums + r * P * 16);
    }
}

// int8 activations on P panels. Per group of inputs (where it has two scales: per half), in order:
// sum += (float(integer dot) * input scale) * weight scale [+ minimum * input sum]. The dots are computed by
// `unit`, or, if that is nullptr, by vectors.
template <Encoding encoding, int P, class Unit>
inline void quantized_panels(const LinearArgs& args, const LinearItem& item, int64_t first_panel, Unit unit) {
    using Tile = typename Quantized<encoding>::Tile;
    constexpr int tile_bytes = form_of(encoding).tile_bytes();
    const Segment& segment = *item.segment;
    const int64_t num_groups = args.weight->num_inputs / 32;
    const int64_t group_scale_bytes = segment.scale_bytes / num_groups;
    const int num_rows = item.groups.num_rows;
    const QuantizedGroup* groups = item.groups.first;
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
            if constexpr (kDotRows > 4)
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
        if constexpr (!std::is_null_pointer_v<Unit>)
            add_products<encoding, P>(*unit, tile_of, scales, groups, num_rows, sums);
        else if (num_rows == 1)
            with_tiles(add_row);
        else
            with_tiles(add_rows);
        groups += num_rows;
        if (g + 2 == num_groups) prefetch_outputs(args, item, first_panel, P);
    }
    for (int r = 0; r < num_rows; r++)
        for (int p = 0; p < P; p++)
            store_panel(args, segment, first_panel + p, item.first_row + r, load(sums + (r * P + p) * 16));
}

template <Encoding encoding>
inline void quantized_item(const LinearArgs& args, const LinearItem& item) {
    const auto all_panels = [&](auto unit) {
        int64_t panel = item.first_panel;
        for (; panel + kDotPanels <= item.end_panel; panel += kDotPanels)
            quantized_panels<encoding, kDotPanels>(args, item, panel, unit);
        if (panel < item.end_panel) quantized_panels<encoding, 1>(args, item, panel, unit);
    };
    if constexpr (kHasMatrixUnit)
        if (item.groups.num_rows >= kMatrixRows) {
            MatrixUnit unit(32 / Quantized<encoding>::parts);
            return all_panels(&unit);
        }
    all_panels(nullptr);
}

}  // namespace
}  // namespace octavo
