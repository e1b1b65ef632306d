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
void score_block(const uint8_t* operands, int64_t operand_stride, const uint8_t* const* k, int num_lines,
                 float* scores, const uint8_t* const* ahead) {
    F32x16 acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = splat(0.0f);
    for (int line = 0, c_ahead = 0; c_ahead < C; ++c_ahead) {
        // One octet after the other, so that the hardware sees runs.
        const uint8_t* next = ahead ? ahead[c_ahead] : nullptr;
        for (const int stop = (c_ahead + 1) * num_lines / C; line < stop; ++line) {
            if (next) {
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) prefetch_l2(next + c * 64);
                next += C * 64;
            }
#pragma GCC unroll 2
            for (int part = 0; part < KV::kParts; ++part, operands += 8) {
                decltype(KV::load_part(k[0], 0)) keys[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) keys[c] = KV::load_part(k[c] + line * 64, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const I32x16 operand = splat_8_bytes(operands + r * operand_stride);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c) acc[r][c] = KV::multiply(acc[r][c], keys[c], operand);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; c += 2)
            store(scores + r * kTileTokens + c * 8, add_neighbours(acc[r][c], acc[r][c + 1]));
}

// values[r][0 : 16 C] = values * decay[r] + weights[r] V, over octets of tokens and C vectors of dimensions.
template <class KV, int R, int C>
void value_block(const uint8_t* weights, const float* decay, const uint8_t* const* v, int num_octets,
                 int first_vector, int head_dim, float* values, const uint8_t* const* ahead) {
    constexpr int kUnits = 8 / KV::kUnit;
    const int64_t unit_bytes = int64_t{head_dim} * 4;
    F32x16 acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = load(values + r * head_dim + c * 16) * splat(decay[r]);
    for (int octet = 0; octet < num_octets; ++octet) {
        const uint8_t* lines = v[octet] + first_vector * 64;
        const uint8_t* next = ahead ? ahead[octet] + first_vector * kUnits * 64 : nullptr;
        for (int unit = 0; unit < kUnits; ++unit, lines += unit_bytes) {
            if (ahead) {
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) prefetch_l2(next + c * 64);
                next += C * 64;
            }
#pragma GCC unroll 2
            for (int part = 0; part < KV::kParts; ++part, weights += 4) {
                decltype(KV::load_part(lines, 0)) vectors[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) vectors[c] = KV::load_part(lines + c * 64, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const I32x16 operand = splat_4_bytes(weights + r * kTileTokens * KV::kWeightBytes);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c) acc[r][c] = KV::multiply(acc[r][c], vectors[c], operand);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) store(values + r * head_dim + c * 16, acc[r][c]);
}

}  // namespace
}  // namespace octavo
