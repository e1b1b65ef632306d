// AVX2 with FMA and F16C: two registers a vector. See simd.hpp.
#pragma once

#include <immintrin.h>

namespace octavo {
namespace {

struct F32x16 {
    __m256 lo, hi;
};
struct I32x16 {
    __m256i lo, hi;
};

constexpr bool kHasFma = true;
constexpr int kDotRows = 4, kDotPanels = 1, kFloatRows = 6, kFloatPanels = 1;
constexpr int kFloatInputBytes = 128 << 10;
constexpr bool kHasBf16Dot = false;
constexpr int kNumVectors = 8;  // that the registers hold
constexpr bool kHasByteDot = false;

OCTAVO_INLINE F32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE I32x16 splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
OCTAVO_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void store(float* p, F32x16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
OCTAVO_INLINE I32x16 first_lanes(int n) {
    const __m256i count = _mm256_set1_epi32(n), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_cmpgt_epi32(count, lane),
            _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))};
}
OCTAVO_INLINE F32x16 load_first(const float* p, int n) {
    const I32x16 mask = first_lanes(n);
    return {_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
OCTAVO_INLINE void store_first(float* p, F32x16 a, int n) {
    const I32x16 mask = first_lanes(n);
    _mm256_maskstore_ps(p, mask.lo, a.lo);
    _mm256_maskstore_ps(p + 8, mask.hi, a.hi);
}
OCTAVO_INLINE I32x16 load_words(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
OCTAVO_INLINE void store_words(void* p, I32x16 a) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, a.lo);
    _mm256_storeu_si256(q + 1, a.hi);
}

OCTAVO_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

OCTAVO_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
OCTAVO_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
OCTAVO_INLINE I32x16 max(I32x16 a, I32x16 b) {
    return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
template <int n>
OCTAVO_INLINE I32x16 shift_left(I32x16 a) {
    return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
OCTAVO_INLINE I32x16 shift_right(I32x16 a) {
    return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
OCTAVO_INLINE F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
OCTAVO_INLINE I32x16 round_to_int(F32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
OCTAVO_INLINE F32x16 as_float(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
OCTAVO_INLINE I32x16 as_int(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

OCTAVO_INLINE __m128i load_8_halfwords(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
OCTAVO_INLINE F32x16 load_f16(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return {_mm256_cvtph_ps(load_8_halfwords(q)), _mm256_cvtph_ps(load_8_halfwords(q + 16))};
}
OCTAVO_INLINE F32x16 load_bf16(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    const I32x16 wide = {_mm256_cvtepu16_epi32(load_8_halfwords(q)),
                         _mm256_cvtepu16_epi32(load_8_halfwords(q + 16))};
    return as_float(shift_left<16>(wide));
}

OCTAVO_INLINE F32x16 load_int8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

OCTAVO_INLINE float sum(F32x16 a) {
    const __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
OCTAVO_INLINE float max_lane(F32x16 a) {
    const __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

OCTAVO_INLINE F32x16 low_bf16(I32x16 pairs) { return as_float(shift_left<16>(pairs)); }
// The mask stays in memory: sums need the register.
alignas(32) constexpr uint32_t kHighHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
OCTAVO_INLINE F32x16 high_bf16(I32x16 pairs) {
    asm("vpand %1, %0, %0" : "+x"(pairs.lo) : "m"(kHighHalves));
    asm("vpand %1, %0, %0" : "+x"(pairs.hi) : "m"(kHighHalves));
    return as_float(pairs);
}

// Nearest even on the bits, in the upper half of each lane; a NaN keeps its sign and becomes quiet.
OCTAVO_INLINE I32x16 round_bf16(F32x16 a) {
    const I32x16 bits = as_int(a);
    const I32x16 rounded = bits + (shift_right<16>(bits) & splat(1)) + splat(0x7fff);
    const I32x16 quiet = bits | splat(0x00400000);
    const auto choose = [](__m256 x, __m256i number, __m256i nan) {
        const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
        return _mm256_blendv_epi8(number, nan, _mm256_castps_si256(is_nan));
    };
    return {choose(a.lo, rounded.lo, quiet.lo), choose(a.hi, rounded.hi, quiet.hi)};
}
OCTAVO_INLINE I32x16 pair_bf16(F32x16 lo, F32x16 hi) {
    return shift_right<16>(round_bf16(lo)) | (round_bf16(hi) & splat(int32_t(0xffff0000)));
}
OCTAVO_INLINE void store_bf16(void* p, F32x16 a) {
    const I32x16 half = shift_right<16>(round_bf16(a));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half.lo, half.hi), 0xd8);
    _mm256_storeu_si256(static_cast<__m256i*>(p), packed);
}
OCTAVO_INLINE void store_f16(void* p, F32x16 a) {
    auto* q = static_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
template <int first>
OCTAVO_INLINE F32x16 every_other_f16(I32x16 pairs) {
    const auto widen = [](__m256i x) {
        constexpr int i = 2 * first;
        const __m256i order = _mm256_setr_epi8(i, i + 1, i + 4, i + 5, i + 8, i + 9, i + 12, i + 13, -1, -1,
                                               -1, -1, -1, -1, -1, -1, i, i + 1, i + 4, i + 5, i + 8, i + 9,
                                               i + 12, i + 13, -1, -1, -1, -1, -1, -1, -1, -1);
        const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0x08);
        return _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    };
    return {widen(pairs.lo), widen(pairs.hi)};
}
OCTAVO_INLINE F32x16 low_f16(I32x16 pairs) { return every_other_f16<0>(pairs); }
OCTAVO_INLINE F32x16 high_f16(I32x16 pairs) { return every_other_f16<1>(pairs); }
OCTAVO_INLINE F32x16 dot_bf16(F32x16 acc, I32x16 a, I32x16 b) {
    return fma(low_bf16(a), low_bf16(b), fma(high_bf16(a), high_bf16(b), acc));
}

OCTAVO_INLINE I32x16 add_neighbours(I32x16 a, I32x16 b) {
    const auto add = [](__m256i x, __m256i y) {
        return _mm256_permute4x64_epi64(_mm256_hadd_epi32(x, y), 0xd8);
    };
    return {add(a.lo, a.hi), add(b.lo, b.hi)};
}

OCTAVO_INLINE I32x16 even_bytes(I32x16 a) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(a.lo, 8), 8),
            _mm256_srai_epi16(_mm256_slli_epi16(a.hi, 8), 8)};
}
OCTAVO_INLINE I32x16 odd_bytes(I32x16 a) { return {_mm256_srai_epi16(a.lo, 8), _mm256_srai_epi16(a.hi, 8)}; }
// As in fma_in_place.
OCTAVO_INLINE I32x16 dot_int16(I32x16 acc, I32x16 a, I32x16 b) {
    const I32x16 products = {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
    asm("vpaddd %1, %0, %0" : "+x"(acc.lo) : "x"(products.lo));
    asm("vpaddd %1, %0, %0" : "+x"(acc.hi) : "x"(products.hi));
    return acc;
}
OCTAVO_INLINE I32x16 dot_uint8_int8(I32x16 acc, I32x16 a, I32x16 b) {
    const I32x16 odd = {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)};
    return dot_int16(dot_int16(acc, a & splat(0x00ff00ff), even_bytes(b)), odd, odd_bytes(b));
}
OCTAVO_INLINE void store_int16_0213(void* p, I32x16 a) {
    // packs works within halves of a register: lanes 0..3, 8..11, 4..7, 12..15.
    const __m256i packed =
        _mm256_packs_epi32(_mm256_shuffle_epi32(a.lo, 0xd8), _mm256_shuffle_epi32(a.hi, 0xd8));
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

OCTAVO_INLINE I32x16 store_int8(int8_t* p, I32x16 lo, I32x16 hi) {
    const __m256i words =
        _mm256_packs_epi16(_mm256_packs_epi32(lo.lo, lo.hi), _mm256_packs_epi32(hi.lo, hi.hi));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(words, order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    return {_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), _mm256_setzero_si256()};
}
OCTAVO_INLINE void sum_halves(const I32x16 (&fours)[4], U32x4& first, U32x4& second) {
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(fours[0].lo, fours[1].lo),
                                           _mm256_hadd_epi32(fours[2].lo, fours[3].lo));
    first = U32x4(_mm256_castsi256_si128(sums));
    second = U32x4(_mm256_extracti128_si256(sums, 1));
}
OCTAVO_INLINE U32x4 max_lanes(const I32x16 (&a)[4]) {
    __m256i half[4];
    for (int i = 0; i < 4; i++) half[i] = _mm256_max_epi32(a[i].lo, a[i].hi);
    const auto fold = [](__m256i x, __m256i y) {
        return _mm256_max_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    };
    const __m256i x = fold(half[0], half[1]), y = fold(half[2], half[3]);
    const __m256i of_lanes = _mm256_max_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
    return U32x4(_mm_max_epi32(_mm256_castsi256_si128(of_lanes), _mm256_extracti128_si256(of_lanes, 1)));
}

// acc = fma(a, b, acc), without leave to put it elsewhere: where sums fill the registers, GCC would copy
// them.
OCTAVO_INLINE F32x16 fma_in_place(F32x16 a, F32x16 b, F32x16 acc) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(acc.lo) : "x"(a.lo), "x"(b.lo));
    asm("vfmadd231ps %2, %1, %0" : "+x"(acc.hi) : "x"(a.hi), "x"(b.hi));
    return acc;
}

// By hand: GCC would load an operand once for all that it meets, and spill sums to keep it.
OCTAVO_INLINE I32x16 splat_4_bytes(const void* p) {
    __m256i bytes;
    asm volatile("vpbroadcastd %1, %0" : "=x"(bytes) : "m"(*static_cast<const char (*)[4]>(p)));
    return {bytes, bytes};
}
OCTAVO_INLINE I32x16 splat_8_bytes(const void* p) {
    __m256i bytes;
    asm volatile("vpbroadcastq %1, %0" : "=x"(bytes) : "m"(*static_cast<const char (*)[8]>(p)));
    return {bytes, bytes};
}
OCTAVO_INLINE F32x16 add_neighbours(F32x16 a, F32x16 b) {
    // hadd works within halves of a register: its 64-bit pairs come out as 0, 2, 1, 3.
    const auto add = [](__m256 x, __m256 y) {
        const __m256i sums = _mm256_castps_si256(_mm256_hadd_ps(x, y));
        return _mm256_castsi256_ps(_mm256_permute4x64_epi64(sums, 0xd8));
    };
    return {add(a.lo, a.hi), add(b.lo, b.hi)};
}

OCTAVO_INLINE __m256i broadcast_4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

struct Tile4 {
    I32x16 w[8];
    OCTAVO_INLINE explicit Tile4(const uint8_t* p) {
        const I32x16 nibble = splat(0x0f0f0f0f);
        for (int i = 0; i < 4; i++) {
            const I32x16 bytes = load_words(p + 64 * i);
            w[i] = bytes & nibble;
            w[i + 4] = shift_right<4>(bytes) & nibble;
        }
    }
};

constexpr bool kHasInt8Dot = false;
OCTAVO_INLINE I32x16 dot_int8(I32x16 acc, I32x16 a, I32x16 b) {
    const auto products = [](__m256i x, __m256i y) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1));
    };
    return acc + I32x16{products(a.lo, b.lo), products(a.hi, b.hi)};
}

struct Tile6 {
    I32x16 w[8];
    OCTAVO_INLINE explicit Tile6(const uint8_t* p) {
        for (int i = 0; i < 8; i++) w[i] = load_words(p + 64 * i);
    }
};

constexpr int kTile8Zero = 0;

// vpmaddubsw takes one side without signs and saturates at 16 bits: |w| times x with w's sign stays below it,
// since |w| <= 128 and |x| <= 127.
struct Tile8 {
    I32x16 w[8], magnitude[8];
    OCTAVO_INLINE explicit Tile8(const uint8_t* p) {
        const __m256i flip = _mm256_set1_epi8(-128);
        for (int i = 0; i < 8; i++) {
            const I32x16 bytes = load_words(p + 64 * i);
            w[i] = {_mm256_xor_si256(bytes.lo, flip), _mm256_xor_si256(bytes.hi, flip)};
            magnitude[i] = {_mm256_abs_epi8(w[i].lo), _mm256_abs_epi8(w[i].hi)};
        }
    }
};

// Sums of products of V registers of codes with R rows, in 16 bits: `word(v, i)` is where register v holds
// the codes of inputs 4 i to 4 i + 3.
template <int begin, int end, int V, int R, class Word>
OCTAVO_INLINE void dot_words(Word&& word, const int8_t* const (&x)[R], __m256i (&pairs)[R][V]) {
#pragma GCC unroll 8
    for (int i = begin; i < end; i++) {
        __m256i w[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            w[v] = *word(v, i);
            // By hand: GCC would keep the whole tile in registers and spill the sums instead.
            if constexpr (R > 1) asm("vmovdqa %1, %0" : "=x"(w[v]) : "m"(*word(v, i)));
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const __m256i four = broadcast_4(x[r] + 4 * i);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) {
                const __m256i products = _mm256_maddubs_epi16(w[v], four);
                pairs[r][v] = i == begin ? products : _mm256_add_epi16(pairs[r][v], products);
                // Or GCC adds in another order, for which it needs more registers than there are.
                asm("" : "+x"(pairs[r][v]));
            }
        }
    }
}

// 16 products of at most 15 * 127 fit in 16 bits: one widening at the end.
template <int begin, int end, int R>
OCTAVO_INLINE void dot_tile(const Tile4& tile, const int8_t* const (&x)[R], I32x16 (&sums)[R]) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i pairs[R][2];
    dot_words<begin, end>([&](int v, int i) { return v ? &tile.w[i].hi : &tile.w[i].lo; }, x, pairs);
    for (int r = 0; r < R; r++)
        sums[r] = sums[r] + I32x16{_mm256_madd_epi16(pairs[r][0], one), _mm256_madd_epi16(pairs[r][1], one)};
}

// 4 products of at most 63 * 127 fit.
template <int begin, int end, int R>
OCTAVO_INLINE void dot_tile(const Tile6& tile, const int8_t* const (&x)[R], I32x16 (&sums)[R]) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i pairs[R][2];
    dot_words<begin, begin + 2>([&](int v, int i) { return v ? &tile.w[i].hi : &tile.w[i].lo; }, x, pairs);
    for (int r = 0; r < R; r++)
        sums[r] = sums[r] + I32x16{_mm256_madd_epi16(pairs[r][0], one), _mm256_madd_epi16(pairs[r][1], one)};
    if constexpr (begin + 2 < end) dot_tile<begin + 2, end>(tile, x, sums);
}

template <int begin, int end, int R>
OCTAVO_INLINE void dot_tile(const Tile8& tile, const int8_t* const (&x)[R], I32x16 (&sums)[R]) {
    const __m256i one = _mm256_set1_epi16(1);
    const auto products = [&](__m256i w, __m256i magnitude, __m256i four) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, w)), one);
    };
#pragma GCC unroll 8
    for (int i = begin; i < end; i++) {
        I32x16 w = tile.w[i], magnitude = tile.magnitude[i];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const __m256i four = broadcast_4(x[r] + 4 * i);
            sums[r] =
                sums[r] + I32x16{products(w.lo, magnitude.lo, four), products(w.hi, magnitude.hi, four)};
            asm("" : "+x"(sums[r].lo), "+x"(sums[r].hi));
        }
    }
}

template <int begin, int end, int R, class Tile>
OCTAVO_INLINE void dot_rows(const Tile (&tiles)[1], const int8_t* const (&x)[R], I32x16 (&sums)[R][1]) {
    I32x16 of_rows[R];
    for (int r = 0; r < R; r++) of_rows[r] = sums[r][0];
    dot_tile<begin, end>(tiles[0], x, of_rows);
    for (int r = 0; r < R; r++) sums[r][0] = of_rows[r];
}

}  // namespace
}  // namespace octavo
