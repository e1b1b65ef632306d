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
OCTAVO_INLINE int32_t start_below(int32_t start, int zero, int32_t total) {
    return int32_t(uint32_t(start) - uint32_t(zero) * uint32_t(total));
}

// Symmetric: scale = max |x| / 127, values rounded to nearest even. A group with a NaN, an infinity or a
// value above 2^110 makes every output NaN; one too small to have a scale is zero.
OCTAVO_INLINE void quantize_group(F32x16 lo, F32x16 hi, QuantizedGroup& group) {
    const I32x16 magnitude = splat(0x7fffffff);
    const float largest =
        bits_to_float(uint32_t(max_lane(max(as_int(lo) & magnitude, as_int(hi) & magnitude))));
    float scale = bits_to_float(float_to_bits(largest / 127.0f) & ~3u);
    if (scale < 1e-30f) scale = 0.0f;
    if (!(largest < 0x1p110f)) scale = bits_to_float(0x7fc00000);
    const F32x16 inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f);
    const I32x16 first = round_to_int(lo * inverse);
    const int32_t total = store_int8(group.values, first, round_to_int(hi * inverse));
    group.half_sums[0] = sum(first);
    group.half_sums[1] = start_below(total, 1, group.half_sums[0]);
    group.scale = scale;
    group.unbias = -kSumBiasValue * scale;
    group.scaled_sum = scale * float(total);
    group.start_q4 = start_below(kSumBias, 8, total);
    group.start_q8 = start_below(kSumBias, kTile8Zero, total);
}

// Quantizes one row of a layer's input, `value(i)` being its values i to i + 15. The groups of a row lie
// `stride` apart: those of all rows for the same inputs are neighbours, as the kernels read them.
template <class F>
OCTAVO_INLINE void quantize_values(int64_t num_inputs, QuantizedGroup* groups, int64_t stride, F&& value) {
    for (int64_t i = 0; i < num_inputs; i += 32, groups += stride)
        quantize_group(value(i), value(i + 16), *groups);
}

inline void quantize_row(const LinearArgs& args, int64_t row, QuantizedGroup* groups, int64_t stride) {
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
        wrapping_total += uint32_t(store_int8(out + d, round_to_int(load(x + d) * splat(inverse)),
                                              round_to_int(second * splat(inverse))));
    }
    total = int32_t(wrapping_total);
    return largest / 127.0f + sum(defect);
}

}  // namespace
}  // namespace octavo
