// The two inner loops of attention, on as many queries as the registers hold. See attention.hpp.
#pragma once

#include "attention_kv.hpp"
#include "attention_plan.hpp"

namespace octavo {
namespace {

// Queries that share each load of K and V: as many as the registers hold sums of.
constexpr int kBlockQueries = kNumVectors >= 8 ? 6 : 2;

// Octets of keys or vectors of values that share each load of an operand, beside so many queries.
constexpr bool kFewRegisters = kNumVectors == 8;
constexpr int block_columns(int num_queries) {
    if (!kFewRegisters) return kNumVectors >= 32 ? 4 : 2;
    return num_queries >= 4 ? 1 : num_queries >= 2 ? 2 : 4;
}

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

// The same address, of which the compiler does not know what it has loaded from there before: it would keep
// that in registers, and spill sums for it.
OCTAVO_INLINE const uint8_t* reload(const uint8_t* p) {
    if constexpr (kFewRegisters) asm volatile("" : "+r"(p));
    return p;
}

// acc[r][c] = f(acc[r][c], column[c], operand[r]). Where the registers cannot hold all columns beside the
// sums, they are loaded one by one, and the operands once for each.
template <int R, int C, class Sum, class LoadColumn, class LoadOperand, class Multiply>
OCTAVO_INLINE void multiply_all(Sum (&acc)[R][C], LoadColumn&& load_column, LoadOperand&& load_operand,
                                Multiply&& multiply) {
    if constexpr (!kFewRegisters || R * C + C < kNumVectors) {
        decltype(load_column(0)) columns[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) columns[c] = load_column(c);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const I32x16 operand = load_operand(r);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = multiply(acc[r][c], columns[c], operand);
        }
    } else {
        [[maybe_unused]] I32x16 only;
        if constexpr (R == 1) only = load_operand(0);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            const auto column = load_column(c);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                if constexpr (R == 1)
                    acc[r][c] = multiply(acc[r][c], column, only);
                else
                    acc[r][c] = multiply(acc[r][c], column, load_operand(r));
            }
        }
    }
}

// sums[r][c] of R queries against C octets of keys: each score is yet to be made of two neighbouring lanes.
// `ahead`: C octets to fetch meanwhile, or null.
template <class KV, int R, int C>
OCTAVO_INLINE void score_octets(const uint8_t* operands, int64_t operand_stride,
                                const QueryScale* query_scales, const uint8_t* const* k, int num_lines,
                                const uint8_t* const* ahead, typename KV::Sum (&sums)[R][C]) {
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
            for (int part = 0; part < KV::kKParts; ++part, operands += 8)
                multiply_all(
                    acc, [&](int c) { return KV::load_k(reload(k[c] + line * 64), part); },
                    [&](int r) { return splat_8_bytes(operands + r * operand_stride); }, KV::multiply_k);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[r][c] = acc[r][c];
}

// scores[r][0 : 8 max(C, 2)] of R queries against C octets of keys at a time. `ahead`: as many octets to
// fetch meanwhile, or null.
template <class KV, int R, int C>
void score_block(const uint8_t* operands, int64_t operand_stride, const QueryScale* query_scales,
                 const uint8_t* const* k, const float* k_scales, int num_lines, float* scores,
                 const uint8_t* const* ahead) {
    constexpr int kTurns = C == 1 ? 2 : 1;
    typename KV::Sum sums[kTurns][R][C];
#pragma GCC unroll 1
    for (int turn = 0; turn < kTurns; ++turn)
        score_octets<KV>(operands, operand_stride, query_scales, k + turn * C, num_lines,
                         ahead ? ahead + turn * C : nullptr, sums[turn]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; c += 2) {
            const auto first = sums[0][r][c], second = C == 1 ? sums[kTurns - 1][r][0] : sums[0][r][c + 1];
            store(scores + r * kTileTokens + c * 8,
                  KV::score(add_neighbours(first, second), query_scales[r], k_scales + c * 8));
        }
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
            for (int part = 0; part < KV::kVParts; ++part, weights += 4)
                multiply_all(
                    acc, [&](int c) { return KV::load_v(reload(lines + c * 64), part); },
                    [&](int r) { return splat_4_bytes(weights + r * kTileTokens * KV::kWeightBytes); },
                    KV::multiply_v);
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
