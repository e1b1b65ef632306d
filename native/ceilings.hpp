// What the machine can do at most, in the kernels' own vocabulary and with their threads: read memory, and
// multiply. Measurements divide a kernel's rate by these. Included once per instruction set.
#pragma once

#include "kernels.hpp"
#include "matrix_unit.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

constexpr int64_t kMaxReadChunk = 1 << 20;  // a prefetcher needs some way to find its pace

// Makes the compiler believe that a result is needed, and that memory behind `p` may have changed.
OCTAVO_INLINE void keep(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// Adds up all whole blocks of 256 bytes. The hardware's prefetcher does better here than instructions would.
inline void read_range(const uint8_t* data, int64_t num_bytes) {
    I32x16 sums[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (int64_t i = 0; i + 256 <= num_bytes; i += 256)
        for (int j = 0; j < 4; j++) sums[j] = sums[j] + load_words(data + i + 64 * j);
    alignas(64) int32_t lanes[16];
    store_words(lanes, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    keep(lanes);
}

// Reads `passes` times. Private: every worker its own share again and again, so that it stays in that core's
// caches if it fits. Otherwise workers claim chunks, as they claim a kernel's items.
inline void read_memory(const ReadArgs& args, Worker& worker) {
    if (args.is_private) {
        const int64_t share = args.num_bytes / worker.count() / 256 * 256;
        worker.for_each(worker.count(), [&](int64_t i) {
            for (int64_t pass = 0; pass < args.passes; pass++) read_range(args.data + i * share, share);
        });
        return;
    }
    const int64_t fair = args.num_bytes / (8 * int64_t(worker.count())) / 256 * 256;
    const int64_t chunk = fair < 256 ? 256 : fair > kMaxReadChunk ? kMaxReadChunk : fair;
    for (int64_t pass = 0; pass < args.passes; pass++)
        worker.for_each((args.num_bytes + chunk - 1) / chunk, [&](int64_t i) {
            const int64_t first = i * chunk, left = args.num_bytes - first;
            read_range(args.data + first, left < chunk ? left : chunk);
        });
}

// Sums that do not wait for each other: enough to hide an instruction's latency, few enough to stay in
// registers beside `num_operands` vectors.
constexpr int num_chains(int num_operands) {
    const int fitting = kNumVectors - num_operands;
    return fitting > 12 ? 12 : fitting < 2 ? 2 : fitting;
}

// `step(chain)` continues one of the sums. Returns how many steps were made.
template <int chains, class Vector, class Step>
OCTAVO_INLINE int64_t repeat(int64_t rounds, Vector (&sums)[chains], Step&& step) {
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 16
            for (int c = 0; c < chains; c++) sums[c] = step(sums[c]);
    return rounds * 8 * chains;
}

template <int chains>
OCTAVO_INLINE void keep_all(const I32x16 (&sums)[chains]) {
    alignas(64) int32_t lanes[chains][16];
    for (int c = 0; c < chains; c++) store_words(lanes[c], sums[c]);
    keep(lanes);
}

inline int64_t multiply_float32(int64_t rounds) {
    alignas(64) float operands[2][16];
    for (int i = 0; i < 16; i++) operands[0][i] = 1e-3f * float(i), operands[1][i] = 1e-3f;
    keep(operands);
    const F32x16 a = load(operands[0]), b = load(operands[1]);
    constexpr int chains = num_chains(2);
    F32x16 sums[chains];
    for (int c = 0; c < chains; c++) sums[c] = splat(float(c));
    const int64_t steps = repeat(rounds, sums, [&](F32x16 sum) { return fma(a, b, sum); });
    I32x16 bits[chains];
    for (int c = 0; c < chains; c++) bits[c] = as_int(sums[c]);
    keep_all(bits);
    return steps * 32;
}

// Where there is no instruction for it, both halves are widened once, outside, as attention widens K and V.
inline int64_t multiply_bfloat16(int64_t rounds) {
    alignas(64) uint16_t operands[2][32];
    for (int i = 0; i < 32; i++) operands[0][i] = uint16_t(0x3c00 + i), operands[1][i] = 0x3c00;
    keep(operands);
    const I32x16 a = load_words(operands[0]), b = load_words(operands[1]);
    constexpr int chains = num_chains(kHasBf16Dot ? 2 : 4);
    F32x16 sums[chains];
    for (int c = 0; c < chains; c++) sums[c] = splat(float(c));
    const int64_t steps = repeat(rounds, sums, [&](F32x16 sum) { return dot_bf16(sum, a, b); });
    I32x16 bits[chains];
    for (int c = 0; c < chains; c++) bits[c] = as_int(sums[c]);
    keep_all(bits);
    return steps * 64;
}

// On a matrix unit, as deep as it goes.
inline int64_t multiply_matrices(int64_t rounds) {
    alignas(64) uint8_t operands[1024];
    for (int i = 0; i < 1024; i++) operands[i] = uint8_t(i % 128);
    keep(operands);
    MatrixUnit unit(64);
    unit.load<4>(operands, 64);
    unit.load<6>(operands, 64);
    unit.clear<0>(), unit.clear<1>(), unit.clear<2>(), unit.clear<3>();
    for (int64_t round = 0; round < rounds; round++) {
        unit.multiply<0, 4, 6>(), unit.multiply<1, 4, 6>();
        unit.multiply<2, 4, 6>(), unit.multiply<3, 4, 6>();
    }
    keep(&unit);
    return rounds * 4 * 16 * 16 * 64 * 2;
}

// Where there is no instruction for it: the products of 4-bit tiles, the fastest that linear layers have.
inline int64_t multiply_int8(int64_t rounds) {
    if constexpr (kHasMatrixUnit) return multiply_matrices(rounds);
    alignas(64) uint8_t operands[512];
    for (int i = 0; i < 512; i++) operands[i] = uint8_t(i % 128);
    keep(operands);
    if constexpr (kHasInt8Dot) {
        const I32x16 a = load_words(operands), b = load_words(operands + 64);
        constexpr int chains = num_chains(2);
        I32x16 sums[chains];
        for (int c = 0; c < chains; c++) sums[c] = splat(int32_t(c));
        const int64_t steps = repeat(rounds, sums, [&](I32x16 sum) { return dot_int8(sum, a, b); });
        keep_all(sums);
        return steps * 128;
    }
    const Tile4 tiles[1] = {Tile4(operands)};
    const int8_t* rows[kDotRows];
    I32x16 sums[kDotRows][1];
    for (int r = 0; r < kDotRows; r++) {
        rows[r] = reinterpret_cast<const int8_t*>(operands) + 32 * (r % 8);
        sums[r][0] = splat(int32_t(r));
    }
    for (int64_t round = 0; round < rounds; round++) {
        dot_rows<0, 8>(tiles, rows, sums);
        keep(operands);  // the rows are read anew, as a kernel reads them
    }
    for (int r = 0; r < kDotRows; r++) {
        const I32x16 one[1] = {sums[r][0]};
        keep_all(one);
    }
    return rounds * kDotRows * 1024;
}

inline int64_t multiply(Arithmetic arithmetic, int64_t rounds) {
    switch (arithmetic) {
        case Arithmetic::Float32:
            return multiply_float32(rounds);
        case Arithmetic::BFloat16:
            return multiply_bfloat16(rounds);
        case Arithmetic::Int8:
            return multiply_int8(rounds);
    }
    return 0;
}

}  // namespace
}  // namespace octavo
