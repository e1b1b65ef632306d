// The two inner loops of attention, on as many queries as the registers hold. See attention.hpp.
#pragma once

#include "attention_kv.hpp"
#include "attention_plan.hpp"

namespace octavo {
namespace {

// Queries that share each load of K and V, and octets of keys or vectors of values that share each load of an
// operand.
constexpr int kBlockQueries = kNumVectors >= 32 ? 6 : 2;
constexpr int kBlockColumns = kNumVectors >= 32 ? 4 : 2;

template <int n>
struct Count {
    static constexpr int value = n;
};

// f(Count<n>) for n in 1..max.
template <int max, class F>
OCTAVO_INLINE void with_count(int n, F&& f) {
    if constexpr (max > 1) {
        if (n < max) return with_count<max - 1>(n, f);
    }
    f(Count<max>{});
}

// scores[r][0 : 8 C] of R queries against C octets of keys. `ahead`: C octets to fetch meanwhile, or null.
template <class KV, int R, int C>
void score_block(const uint8_t* operands, int64_t operand_stride, const QueryScale* query_scales,
                 const uint8_t* const* k, const float* k_scales, int num_lines, float* scores,
                 const uint8_t* const* ahead) {
    typename KV::Sum acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = KV::start(query_scales[r]);
    for (int line = 0, octet = 0; octet < C; ++octet) {
        // One octet after the other, so that the hardware sees runs.
        const uint8_t* next = ahead ? ahead[octet] : nullptr;
        for (const int stop = (octet + 1) * num_lines / C; line < stop; ++line) {
            if (next) {
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) prefetch_l2(next + c * 64);
                next += C * 64;
            }
#pragma GCC unroll 2
            for (int part = 0; part < KV::kKParts; ++part, operands += 8) {
                decltype(KV::load_k(k[0], 0)) keys[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) keys[c] = KV::load_k(k[c] + line * 64, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const I32x16 operand = splat_8_bytes(operands + r * operand_stride);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c) acc[r][c] = KV::multiply_k(acc[r][c], keys[c], operand);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; c += 2)
            store(scores + r * kTileTokens + c * 8,
                  KV::score(add_neighbours(acc[r][c], acc[r][c + 1]), query_scales[r], k_scales + c * 8));
}

// values[r][0 : 16 C] = values * decay[r] + weights[r] V, over octets of tokens and C vectors of dimensions.
// Integer weights are in units of weight_scale[r]. `ahead`: as many octets to fetch meanwhile, or null.
template <class KV, int R, int C>
void value_block(const uint8_t* weights, const float* decay, const float* weight_scale,
                 const uint8_t* const* v, int num_octets, int first_vector, int head_dim, float* values,
                 const uint8_t* const* ahead) {
    constexpr int kUnits = 8 / KV::kUnit;
    const int64_t unit_bytes = int64_t{head_dim} * 4;
    typename KV::Sum acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            if constexpr (KV::kScaled)
                acc[r][c] = splat(0);
            else
                acc[r][c] = load(values + r * head_dim + c * 16) * splat(decay[r]);
        }
    for (int octet = 0; octet < num_octets; ++octet) {
        const uint8_t* lines = v[octet] + first_vector * 64;
        const uint8_t* next = ahead ? ahead[octet] + first_vector * kUnits * 64 : nullptr;
        for (int unit = 0; unit < kUnits; ++unit, lines += unit_bytes) {
            if (next) {
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) prefetch_l2(next + c * 64);
                next += C * 64;
            }
#pragma GCC unroll 2
            for (int part = 0; part < KV::kVParts; ++part, weights += 4) {
                decltype(KV::load_v(lines, 0)) vectors[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) vectors[c] = KV::load_v(lines + c * 64, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const I32x16 operand = splat_4_bytes(weights + r * kTileTokens * KV::kWeightBytes);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c) acc[r][c] = KV::multiply_v(acc[r][c], vectors[c], operand);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float* out = values + r * head_dim + c * 16;
            if constexpr (KV::kScaled)
                store(out, fma(to_float(acc[r][c]), splat(weight_scale[r]), load(out) * splat(decay[r])));
            else
                store(out, acc[r][c]);
        }
}

}  // namespace
}  // namespace octavo
