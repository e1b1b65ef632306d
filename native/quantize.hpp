// Activations as int8 in groups of 32, once per layer input, for all integer dot products that read it.
#pragma once

#include "elementwise.hpp"
#include "kernels.hpp"
#include "packed_linear.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

// Integer sums start here rather than at 0: then their bits, read as a float, are 1.5 * 2^23 + the sum, and
// one FMA with a scale converts and scales in one go. It rounds like float(sum) * scale provided that 1.5 *
// 2^23 * scale is exact, so scales keep two bits of their mantissa clear.
constexpr int32_t kSumBias = 0x4b400000;
constexpr float kSumBiasValue = 0x1.8p23f;

OCTAVO_INLINE F32x16 scale_sum(I32x16 biased_sum, const QuantizedGroup& group) {
    if constexpr (kHasFma) return fma(as_float(biased_sum), splat(group.scale), splat(group.unbias));
    return to_float(biased_sum - splat(kSumBias)) * splat(group.scale);
}

// start - zero * total. Wraps around, as the total of a NaN's bytes may be any number.
template <class T>
OCTAVO_INLINE T start_below(int32_t start, int zero, T total) {
    return uint32_t(start) - uint32_t(zero) * total;
}

// Four vectors of one field each become four of one group each.
template <class T>
OCTAVO_INLINE void transpose(T (&rows)[4]) {
    const U32x4 low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, front = {0, 1, 4, 5}, back = {2, 3, 6, 7};
    const T a = __builtin_shuffle(rows[0], rows[1], low), b = __builtin_shuffle(rows[2], rows[3], low);
    const T c = __builtin_shuffle(rows[0], rows[1], high), d = __builtin_shuffle(rows[2], rows[3], high);
    rows[0] = __builtin_shuffle(a, b, front), rows[1] = __builtin_shuffle(a, b, back);
    rows[2] = __builtin_shuffle(c, d, front), rows[3] = __builtin_shuffle(c, d, back);
}

// N groups, at most four, whose scales are worked out side by side: one alone would be spent on waiting.
// Symmetric: scale = max |x| / 127, values rounded to nearest even. A group with a NaN, an infinity or a
// value above 2^110 makes every output NaN; one too small to have a scale is zero.
template <int N, class F>
OCTAVO_INLINE void quantize_groups(F&& value, QuantizedGroup* groups, int64_t stride) {
    F32x16 lo[N], hi[N];
    I32x16 top[4];
    for (int n = 0; n < N; n++) {
        lo[n] = value(32 * n), hi[n] = value(32 * n + 16);
        const I32x16 magnitude = splat(0x7fffffff);
        top[n] = max(as_int(lo[n]) & magnitude, as_int(hi[n]) & magnitude);
    }
    for (int n = N; n < 4; n++) top[n] = top[0];
    const F32x4 largest = F32x4(max_lanes(top)), zero = {};
    F32x4 scale = F32x4(U32x4(largest / 127.0f) & ~3u);
    scale = scale < 1e-30f ? zero : scale;
    scale = largest < 0x1p110f ? scale : zero + bits_to_float(0x7fc00000);
    const F32x4 inverse = scale > 0.0f ? 1.0f / scale : zero;
    I32x16 fours[4];  // sums of four values each
    for (int n = 0; n < N; n++) {
        const F32x16 by = splat(inverse[n]);
        fours[n] = store_int8(groups[n * stride].values, round_to_int(lo[n] * by), round_to_int(hi[n] * by));
    }
    for (int n = N; n < 4; n++) fours[n] = fours[0];
    U32x4 first, second;
    sum_halves(fours, first, second);
    const U32x4 total = first + second;
    U32x4 fields[2][4] = {
        {U32x4(scale), U32x4(-kSumBiasValue * scale),
         U32x4(scale * __builtin_convertvector(I32x4(total), F32x4)), first},
        {second, start_below(kSumBias, 8, total), start_below(kSumBias, kTile8Zero, total), {}}};
    for (int i = 0; i < 2; i++) {
        transpose(fields[i]);
        for (int n = 0; n < N; n++) std::memcpy(groups[n * stride].values + 32 + 16 * i, &fields[i][n], 16);
    }
}

constexpr int kRowBlock = 64;  // rows whose sums fit in the first-level cache

// The groups of a block of rows as the kernels read them: those of all its rows for the same inputs are
// neighbours. A block's are all together: strides of thousands of rows would have them meet in few sets of
// the caches.
struct RowGroups {
    QuantizedGroup* first;
    int num_rows;
};

// Of the block that begins with a row.
OCTAVO_INLINE RowGroups row_groups(const LinearArgs& args, QuantizedGroup* groups, int64_t first_row) {
    const int64_t left = args.num_rows - first_row;
    return {groups + first_row * (args.weight->num_inputs / 32), int(left < kRowBlock ? left : kRowBlock)};
}

// Quantizes one row of a layer's input, `value(i)` being its values i to i + 15.
template <class F>
OCTAVO_INLINE void quantize_values(int64_t num_inputs, QuantizedGroup* groups, int64_t stride, F&& value) {
    int64_t i = 0;
    for (; i + 128 <= num_inputs; i += 128, groups += 4 * stride)
        quantize_groups<4>([&](int64_t j) { return value(i + j); }, groups, stride);
    for (; i < num_inputs; i += 32, groups += stride)
        quantize_groups<1>([&](int64_t j) { return value(i + j); }, groups, stride);
}

inline void quantize_row(const LinearArgs& args, int64_t row, QuantizedGroup* all_groups) {
    const RowGroups block = row_groups(args, all_groups, row / kRowBlock * kRowBlock);
    QuantizedGroup* groups = block.first + row % kRowBlock;
    const int stride = block.num_rows;
    const float* x = args.in.row(row);
    const int64_t width = args.weight->num_inputs;
    switch (args.prologue.kind) {
        case Prologue::None:
            return quantize_values(width, groups, stride, [&](int64_t i) { return load(x + i); });
        case Prologue::RmsNorm: {
            const F32x16 scale = splat(norm_scale(x, width, args.prologue.eps));
            const float* weight = args.prologue.norm_weight;
            return quantize_values(width, groups, stride,
                                   [&](int64_t i) { return load(x + i) * scale * load(weight + i); });
        }
        case Prologue::SiluMul:
            return quantize_values(width, groups, stride,
                                   [&](int64_t i) { return silu(load(x + i)) * load(x + width + i); });
    }
}

// One head of K, V or q as int8 with one scale: returns the scale, and the sum of the bytes in `total`. A NaN
// or infinity makes the scale NaN. Writes 16 bytes beyond the head if its width is an odd multiple of 16.
inline float quantize_head(const float* x, int head_dim, int8_t* out, int32_t& total) {
    F32x16 top = splat(0.0f), defect = top;
    for (int d = 0; d < head_dim; d += 16) {
        top = max(top, absolute(load(x + d)));
        defect = defect + (load(x + d) - load(x + d));
    }
    const float largest = max_lane(top), inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    uint32_t wrapping_total = 0;
    for (int d = 0; d < head_dim; d += 32) {
        const F32x16 second = d + 16 < head_dim ? load(x + d + 16) : splat(0.0f);
        I32x16 fours[4];
        fours[0] = store_int8(out + d, round_to_int(load(x + d) * splat(inverse)),
                              round_to_int(second * splat(inverse)));
        for (int i = 1; i < 4; i++) fours[i] = fours[0];
        U32x4 halves[2];
        sum_halves(fours, halves[0], halves[1]);
        wrapping_total += halves[0][0] + halves[1][0];
    }
    total = int32_t(wrapping_total);
    return largest / 127.0f + sum(defect);
}

}  // namespace
}  // namespace octavo
