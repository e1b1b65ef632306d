// How each kind of KV meets its queries and weights. See attention.hpp.
//
// A line is 64 bytes of a tile: of K, 8 tokens x 8 bytes of consecutive dimensions; of V, 16 dimensions x
// kUnit tokens. It is used as one or two parts, vectors that are each multiplied with an operand of their
// own: 8 bytes of the query, repeated, for K; 4 bytes of the weights, repeated, for V.
#pragma once

#include "attention_plan.hpp"
#include "quantize.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

// What the kinds with float32 sums have in common. Theirs, too, is defect(line): 0, but NaN in some lane if a
// value of V is not finite.
struct FloatSums {
    using Sum = F32x16;
    static constexpr bool kScaled = false;

    OCTAVO_INLINE static F32x16 start(const QueryScale&) { return splat(0.0f); }
    OCTAVO_INLINE static F32x16 score(F32x16 sum, const QueryScale&, const float*) { return sum; }
};

// What those with float32 operands have in common.
struct FloatOperands : FloatSums {
    // Bytes of a query per dimension, and of the weights per token.
    static constexpr int kOperandBytes = 4, kWeightBytes = 4;

    OCTAVO_INLINE static F32x16 multiply_k(F32x16 sum, F32x16 part, I32x16 operand) {
        return fma_in_place(part, as_float(operand), sum);
    }
    OCTAVO_INLINE static F32x16 multiply_v(F32x16 sum, F32x16 part, I32x16 operand) {
        return fma_in_place(part, as_float(operand), sum);
    }
    // Returns the weights as they are after rounding.
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        store(reinterpret_cast<float*>(out), weights);
        return weights;
    }
};

struct Float32KV : FloatOperands {
    static constexpr int kElementBytes = 4, kUnit = 1, kKParts = 1, kVParts = 1;

    OCTAVO_INLINE static F32x16 load_k(const uint8_t* line, int) {
        return load(reinterpret_cast<const float*>(line));
    }
    OCTAVO_INLINE static F32x16 load_v(const uint8_t* line, int) { return load_k(line, 0); }
    OCTAVO_INLINE static F32x16 defect(const uint8_t* line) { return load_v(line, 0) - load_v(line, 0); }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands, QueryScale&) {
        auto* out = reinterpret_cast<float*>(operands);
        for (int d = 0; d < head_dim; ++d) out[d] = q[d] * scale;
    }
};

struct BFloat16Pairs {
    OCTAVO_INLINE static F32x16 low(I32x16 pairs) { return low_bf16(pairs); }
    OCTAVO_INLINE static F32x16 high(I32x16 pairs) { return high_bf16(pairs); }
};
struct Float16Pairs {
    OCTAVO_INLINE static F32x16 low(I32x16 pairs) { return low_f16(pairs); }
    OCTAVO_INLINE static F32x16 high(I32x16 pairs) { return high_f16(pairs); }
};

// Each two-byte element is widened, and everything else stays float32.
template <class Pairs>
struct WideKV : FloatOperands {
    static constexpr int kElementBytes = 2, kUnit = 2, kKParts = 2, kVParts = 2;

    OCTAVO_INLINE static F32x16 load_k(const uint8_t* line, int part) {
        return part ? Pairs::high(load_words(line)) : Pairs::low(load_words(line));
    }
    OCTAVO_INLINE static F32x16 load_v(const uint8_t* line, int part) { return load_k(line, part); }
    OCTAVO_INLINE static F32x16 defect(const uint8_t* line) {
        return (load_v(line, 0) - load_v(line, 0)) + (load_v(line, 1) - load_v(line, 1));
    }
    // Of each four dimensions the two in the lower halves of words, then those in the upper halves.
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands, QueryScale&) {
        auto* out = reinterpret_cast<float*>(operands);
        for (int d = 0; d < head_dim; d += 4) {
            out[d] = q[d] * scale;
            out[d + 1] = q[d + 2] * scale;
            out[d + 2] = q[d + 1] * scale;
            out[d + 3] = q[d + 3] * scale;
        }
    }
};
using WideBFloat16KV = WideKV<BFloat16Pairs>;
using Float16KV = WideKV<Float16Pairs>;

// Dot products of bfloat16 pairs: queries and weights are rounded too. The sum of the weights is that of the
// rounded ones, so that they are a true average: where all values are the same, so is the result.
struct PairedBFloat16KV : FloatSums {
    static constexpr int kElementBytes = 2, kUnit = 2, kKParts = 1, kVParts = 1;
    static constexpr int kOperandBytes = 2, kWeightBytes = 2;

    OCTAVO_INLINE static F32x16 defect(const uint8_t* line) { return WideBFloat16KV::defect(line); }
    OCTAVO_INLINE static I32x16 load_k(const uint8_t* line, int) { return load_words(line); }
    OCTAVO_INLINE static I32x16 load_v(const uint8_t* line, int) { return load_words(line); }
    OCTAVO_INLINE static F32x16 multiply_k(F32x16 sum, I32x16 part, I32x16 operand) {
        return dot_bf16(sum, part, operand);
    }
    OCTAVO_INLINE static F32x16 multiply_v(F32x16 sum, I32x16 part, I32x16 operand) {
        return dot_bf16(sum, part, operand);
    }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands, QueryScale&) {
        for (int d = 0; d < head_dim; d += 16) store_bf16(operands + 2 * d, load(q + d) * splat(scale));
    }
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        return store_rounded_bf16(out, weights);
    }
};

// Bytes, with one scale per token for K and one for V. Queries become bytes too; weights, times the scale of
// their V, become 15-bit integers relative to the largest of the tile; the sums are exact. K is stored with
// 128 added, as byte dot products want one side unsigned, and sums start from what that would add up to.
struct Int8Sums {
    using Sum = I32x16;
    static constexpr bool kScaled = true;
    static constexpr int kElementBytes = 1, kUnit = 4, kVParts = 2, kWeightBytes = 2;
    static constexpr float kMaxWeight = 32767.0f;

    OCTAVO_INLINE static I32x16 load_v(const uint8_t* line, int part) {
        return part ? odd_bytes(load_words(line)) : even_bytes(load_words(line));
    }
    OCTAVO_INLINE static I32x16 multiply_v(I32x16 sum, I32x16 part, I32x16 operand) {
        return dot_int16(sum, part, operand);
    }
    OCTAVO_INLINE static I32x16 start(const QueryScale& query) { return splat_8_bytes(query.start); }
    OCTAVO_INLINE static F32x16 score(I32x16 sum, const QueryScale& query, const float* k_scales) {
        return to_float(sum) * (load(k_scales) * splat(query.scale));
    }
    static void quantize_query(const float* q, float scale, int head_dim, int8_t* out, QueryScale& query) {
        int32_t total;
        query.scale = quantize_head(q, head_dim, out, total) * scale;
        query.start[0] = start_below(0, 128, total);
        query.start[1] = 0;
    }
    // The operands of a unit: tokens 0 and 2, then 1 and 3.
    OCTAVO_INLINE static void store_weights(uint8_t* out, F32x16 weights) {
        store_int16_0213(out, round_to_int(weights));
    }
};

// Dot products of bytes.
struct ByteInt8KV : Int8Sums {
    static constexpr int kKParts = 1, kOperandBytes = 1;

    OCTAVO_INLINE static I32x16 load_k(const uint8_t* line, int) { return load_words(line); }
    OCTAVO_INLINE static I32x16 multiply_k(I32x16 sum, I32x16 part, I32x16 operand) {
        return dot_uint8_int8(sum, part, operand);
    }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands,
                              QueryScale& query) {
        quantize_query(q, scale, head_dim, reinterpret_cast<int8_t*>(operands), query);
    }
};

// The same sums from bytes that are widened, keys when they are loaded and queries once for all keys.
struct WideInt8KV : Int8Sums {
    static constexpr int kKParts = 2, kOperandBytes = 2;

    OCTAVO_INLINE static I32x16 load_k(const uint8_t* line, int part) {
        const I32x16 bytes = load_words(line);
        return (part ? shift_right<8>(bytes) : bytes) & splat(0x00ff00ff);
    }
    OCTAVO_INLINE static I32x16 multiply_k(I32x16 sum, I32x16 part, I32x16 operand) {
        return dot_int16(sum, part, operand);
    }
    // Of each eight dimensions the even ones, then the odd ones.
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands,
                              QueryScale& query) {
        alignas(64) int8_t bytes[kMaxHeadDim + 16];
        quantize_query(q, scale, head_dim, bytes, query);
        for (int d = 0; d < head_dim; d += 64) {
            uint8_t even[64], odd[64];
            store_words(even, even_bytes(load_words(bytes + d)));
            store_words(odd, odd_bytes(load_words(bytes + d)));
            for (int i = 0; i < 64 && d + i < head_dim; i += 8, operands += 16) {
                std::memcpy(operands, even + i, 8);
                std::memcpy(operands + 8, odd + i, 8);
            }
        }
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

template <bool bytes>
struct ChooseInt8KV {
    using type = WideInt8KV;
};
template <>
struct ChooseInt8KV<true> {
    using type = ByteInt8KV;
};
using Int8KV = ChooseInt8KV<kHasByteDot>::type;

}  // namespace
}  // namespace octavo
