// The vector vocabulary that kernels are written in. A vector always has 16 float32 or int32 lanes, however
// many registers that takes: every instruction set then adds and multiplies in the same order, and wherever
// FMA exists the results are the same to the last bit.
//
// Only kernels.cpp may include this file and the kernels, and all of it lies in an unnamed namespace: a
// function with external linkage compiled for AVX-512 could otherwise be the copy that the linker keeps for
// everyone.
//
// clang-format off
// Each simd_<isa>.hpp defines, for F32x16 and I32x16:
//   splat, load, store             one value in all lanes; 16 values from or to memory (no alignment needed)
//   load_first, store_first        the first n lanes only; the others load as zero
//   load_bf16, load_f16            16 two-byte values, widened exactly
//   store_bf16, store_f16          narrowed, to nearest even; what a float16 cannot hold becomes infinite
//   store_rounded_bf16             the same, of numbers that are not subnormal; returns what was stored
//   load_words, store_words        64 raw bytes as 16 int32
//   load_int8                      16 signed bytes, as float32
//   + - * /, fma(a, b, c)          a * b + c in one rounding (two where there is no FMA: kHasFma says)
//   fma_in_place(a, b, acc)        the same, for the sums of a loop that needs all registers
//   min, max                       of floats: b where either is NaN
//   to_float, round_to_int         conversion; to nearest even
//   as_float, as_int               the same bits
//   shift_left<n>, shift_right<n>  logical
//   sum, max_lane                  over the lanes of floats, as a tree: i with i + 8, then + 4, + 2, + 1
//   low_bf16, high_bf16            the lower and upper bfloat16 of each 32-bit lane, as float32
//   low_f16, high_f16              the same of float16
//   pair_bf16(lo, hi)              the inverse of low_bf16 and high_bf16, rounding to nearest even
//   dot_bf16(acc, a, b)            acc + a.hi * b.hi + a.lo * b.lo per lane, on lanes of bfloat16 pairs
//   dot_int8(acc, a, b)            acc + the products of four neighbouring bytes per lane; those of a are 0..127
//   splat_4_bytes, splat_8_bytes   the bytes at an address, repeated
//   add_neighbours(a, b)           the sums of lanes 2i and 2i + 1, those of a before those of b
//   even_bytes, odd_bytes          bytes 0 and 2, or 1 and 3, of each lane as two int16
//   dot_int16(acc, a, b)           acc + a.hi * b.hi + a.lo * b.lo per lane, on lanes of int16 pairs
//   dot_uint8_int8(acc, a, b)      the same on lanes of four unsigned bytes (a) and four signed ones (b)
//   store_int16_0213(p, a)         16 lanes as int16, each group of four in the order 0, 2, 1, 3
//   Tile4, Tile6, Tile8            32 x 16 packed codes of 4, 6 or 8 bits, ready for the dot product below
//   dot_rows<begin, end>(tiles, x, sums)   R rows x P tiles: sums[r][p] += the sum of tile[p][k] * x[r][k] over
//                                  4 begin <= k < 4 end, exact; of a code c of 8 bits, c - 128 + kTile8Zero counts
//   store_int8(p, lo, hi)          32 lanes as int8; returns the sums of each four, those of lo before those of hi
//   sum_halves(fours, first, second)   what four calls of it returned: the sums of lo and of hi of each
//   max_lanes(a)                   the largest lane of each of four, which may not be negative
//   kNumVectors                    vectors that the registers hold
//   kHasByteDot                    whether attention multiplies int8 keys with dot_uint8_int8, or widens them first
//   kDotRows, kDotPanels, kFloatRows, kFloatPanels: how much of a linear layer the registers hold at once
//   kFloatInputBytes               how much of its input, as float32, the second-level cache should hold
//
// matrix_unit.hpp adds, in whole matrices rather than vectors:
//   kHasMatrixUnit                 whether linear layers of int8 activations use what follows
//   MatrixUnit(depth)              the unit, set up for `depth` inputs at once (a multiple of 4 up to 64) while it lives
//   clear<sums>()                  a register of sums becomes 0
//   load<factor>(p, stride)        a factor's rows, from memory
//   store<sums>(p, stride)         16 rows of 16 int32, to memory
//   multiply<sums, left, right>()  sums[i][n] += the sum over k of left[i][k] * right[k / 4][n][k % 4]
// clang-format on
#pragma once

#include <cstdint>
#include <cstring>

#define OCTAVO_INLINE [[gnu::always_inline]] inline

namespace octavo {
namespace {

// For what is worked out for four things at once, on any processor.
typedef float F32x4 [[gnu::vector_size(16)]];
typedef int32_t I32x4 [[gnu::vector_size(16)]];
typedef uint32_t U32x4 [[gnu::vector_size(16)]];

}  // namespace
}  // namespace octavo

#if defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_avx512_vnni) || defined(OCTAVO_ISA_avx512_bf16) || \
    defined(OCTAVO_ISA_avx512_amx)
#include "simd_avx512.hpp"
#elif defined(OCTAVO_ISA_avx2)
#include "simd_avx2.hpp"
#elif defined(OCTAVO_ISA_neon) || defined(OCTAVO_ISA_neon_dotprod) || defined(OCTAVO_ISA_neon_bf16)
#include "simd_neon.hpp"
#else
#include "simd_generic.hpp"
#endif

namespace octavo {
namespace {

constexpr int kLanes = 16;

OCTAVO_INLINE int smaller(int a, int b) { return a < b ? a : b; }
OCTAVO_INLINE int larger(int a, int b) { return a > b ? a : b; }

OCTAVO_INLINE void prefetch_l1(const void* p) { __builtin_prefetch(p, 0, 3); }
OCTAVO_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

OCTAVO_INLINE uint16_t read_u16(const uint8_t* p) {
    uint16_t x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

OCTAVO_INLINE float bits_to_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

OCTAVO_INLINE uint32_t float_to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

OCTAVO_INLINE float f16_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = float(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

#if !defined(OCTAVO_ISA_avx2)
OCTAVO_INLINE F32x16 fma_in_place(F32x16 a, F32x16 b, F32x16 acc) { return fma(a, b, acc); }
#endif

#if !defined(__AVX512BF16__)
OCTAVO_INLINE F32x16 store_rounded_bf16(void* p, F32x16 a) {
    store_bf16(p, a);
    return as_float(round_bf16(a) & splat(int32_t(0xffff0000)));
}
#endif

// e^x to a relative error of about 1e-7 between -87.3 and 88.3; 0 below -87.7, e^88.3 above, NaN of NaN.
// Method: x = n ln 2 + r with |r| <= ln(2) / 2, a polynomial for e^r, and n added to the exponent. The
// polynomial is the minimax one of Cephes' expf.
OCTAVO_INLINE F32x16 exp(F32x16 x) {
    x = max(splat(-88.0f), min(splat(88.3f), x));
    const I32x16 n = round_to_int(x * splat(1.44269504f));
    const F32x16 whole = to_float(n);
    F32x16 r = fma(whole, splat(-0.693359375f), x);
    r = fma(whole, splat(2.12194440e-4f), r);
    F32x16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
    return p * as_float(shift_left<23>(n + splat(127)));
}

OCTAVO_INLINE F32x16 absolute(F32x16 x) { return as_float(as_int(x) & splat(0x7fffffff)); }

// 2^x to a relative error of 2e-7 between -126 and 126; exactly 1 of 0, and exactly 0 below -126.5.
// Method: x = n + r with |r| <= 1/2, a polynomial for 2^r (minimax, with a constant term of 1), and n added
// to the exponent. Adding 1.5 * 2^23 + 127 leaves n + 127 in the low bits of the mantissa.
OCTAVO_INLINE F32x16 exp2(F32x16 x) {
    x = max(splat(-127.0f), x);
    const F32x16 shifted = x + splat(0x1.8p23f + 127.0f);
    const F32x16 r = x - (shifted - splat(0x1.8p23f + 127.0f));
    F32x16 p = splat(0x1.5bba14p-10f);
    p = fma(p, r, splat(0x1.3cea88p-7f));
    p = fma(p, r, splat(0x1.c6b752p-5f));
    p = fma(p, r, splat(0x1.ebf9bcp-3f));
    p = fma(p, r, splat(0x1.62e42ap-1f));
    p = fma(p, r, splat(1.0f));
    return p * as_float(shift_left<23>(as_int(shifted)));
}

}  // namespace
}  // namespace octavo
