// How each kind of KV meets its queries and weights. See attention.hpp.
//
// A line is 64 bytes of a tile: of K, 8 tokens x 8 bytes of consecutive dimensions; of V, 16 dimensions x
// kUnit tokens. It is used as one or two parts, vectors that are each multiplied with an operand of their
// own: 8 bytes of the query, repeated, for K; 4 bytes of the weights, repeated, for V.
#pragma once

#include "simd.hpp"

namespace octavo {
namespace {

// What the kinds with float32 sums have in common.
struct FloatKV {
    // Bytes of a query per dimension, and of the weights per token.
    static constexpr int kOperandBytes = 4, kWeightBytes = 4;

    OCTAVO_INLINE static F32x16 multiply(F32x16 sum, F32x16 part, I32x16 operand) {
        return fma(part, as_float(operand), sum);
    }
    // Returns the weights as they are after rounding.
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        store(reinterpret_cast<float*>(out), weights);
        return weights;
    }
};

struct Float32KV : FloatKV {
    static constexpr int kElementBytes = 4, kUnit = 1, kParts = 1;

    OCTAVO_INLINE static F32x16 load_part(const uint8_t* line, int) {
        return load(reinterpret_cast<const float*>(line));
    }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands) {
        auto* out = reinterpret_cast<float*>(operands);
        for (int d = 0; d < head_dim; ++d) out[d] = q[d] * scale;
    }
};

// Each bfloat16 is widened, and everything else stays float32.
struct WideBFloat16KV : FloatKV {
    static constexpr int kElementBytes = 2, kUnit = 2, kParts = 2;

    OCTAVO_INLINE static F32x16 load_part(const uint8_t* line, int part) {
        return part ? high_bf16(load_words(line)) : low_bf16(load_words(line));
    }
    // Of each four dimensions the two in the lower halves of words, then those in the upper halves.
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands) {
        auto* out = reinterpret_cast<float*>(operands);
        for (int d = 0; d < head_dim; d += 4) {
            out[d] = q[d] * scale;
            out[d + 1] = q[d + 2] * scale;
            out[d + 2] = q[d + 1] * scale;
            out[d + 3] = q[d + 3] * scale;
        }
    }
};

// Dot products of bfloat16 pairs: queries and weights are rounded too. The sum of the weights is that of the
// rounded ones, so that they are a true average: where all values are the same, so is the result.
struct PairedBFloat16KV {
    static constexpr int kElementBytes = 2, kUnit = 2, kParts = 1, kOperandBytes = 2, kWeightBytes = 2;

    OCTAVO_INLINE static I32x16 load_part(const uint8_t* line, int) { return load_words(line); }
    OCTAVO_INLINE static F32x16 multiply(F32x16 sum, I32x16 part, I32x16 operand) {
        return dot_bf16(sum, part, operand);
    }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands) {
        for (int d = 0; d < head_dim; d += 16) store_bf16(operands + 2 * d, load(q + d) * splat(scale));
    }
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        store_bf16(out, weights);
        return as_float(round_bf16(weights) & splat(int32_t(0xffff0000)));
    }
};

template <bool paired>
struct ChooseBFloat16KV {
    using type = WideBFloat16KV;
};
template <>
struct ChooseBFloat16KV<true> {
    using type = PairedBFloat16KV;
};
using BFloat16KV = ChooseBFloat16KV<kHasBf16Dot>::type;

}  // namespace
}  // namespace octavo
