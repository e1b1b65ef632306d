// AVX-512 F/BW/VL/DQ, and VNNI and BF16 where compiled for them: one register a vector. See simd.hpp.
#pragma once

#include <immintrin.h>

namespace octavo {
namespace {

struct F32x16 {
    __m512 v;
};
struct I32x16 {
    __m512i v;
};

constexpr bool kHasFma = true;
constexpr int kDotRows = 4, kDotPanels = 2, kFloatRows = 4, kFloatPanels = 4;
constexpr int kFloatInputBytes = 1 << 20;
constexpr int kNumVectors = 32;  // that the registers hold
constexpr bool kHasByteDot = true;

OCTAVO_INLINE F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE I32x16 splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCTAVO_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }
OCTAVO_INLINE F32x16 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
OCTAVO_INLINE void store_first(float* p, F32x16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
OCTAVO_INLINE I32x16 load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE void store_words(void* p, I32x16 a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE __m256i load_halfwords(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
OCTAVO_INLINE F32x16 load_f16(const void* p) { return {_mm512_cvtph_ps(load_halfwords(p))}; }
OCTAVO_INLINE F32x16 load_int8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
OCTAVO_INLINE F32x16 load_bf16(const void* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halfwords(p)), 16))};
}

OCTAVO_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }

OCTAVO_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
OCTAVO_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
OCTAVO_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
OCTAVO_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
OCTAVO_INLINE I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int n>
OCTAVO_INLINE I32x16 shift_left(I32x16 a) {
    return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
OCTAVO_INLINE I32x16 shift_right(I32x16 a) {
    return {_mm512_srli_epi32(a.v, n)};
}
OCTAVO_INLINE F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
OCTAVO_INLINE I32x16 round_to_int(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
OCTAVO_INLINE F32x16 as_float(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
OCTAVO_INLINE I32x16 as_int(F32x16 a) { return {_mm512_castps_si512(a.v)}; }

OCTAVO_INLINE float sum(F32x16 a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
OCTAVO_INLINE float max_lane(F32x16 a) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

OCTAVO_INLINE F32x16 low_bf16(I32x16 pairs) { return as_float(shift_left<16>(pairs)); }
OCTAVO_INLINE F32x16 high_bf16(I32x16 pairs) { return as_float(pairs & splat(int32_t(0xffff0000))); }

// Nearest even on the bits, in the upper half of each lane; a NaN keeps its sign and becomes quiet.
OCTAVO_INLINE I32x16 round_bf16(F32x16 a) {
    const I32x16 bits = as_int(a);
    const I32x16 odd = shift_right<16>(bits) & splat(1);
    const I32x16 rounded = bits + odd + splat(0x7fff);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    return {_mm512_mask_or_epi32(rounded.v, is_nan, bits.v, _mm512_set1_epi32(0x00400000))};
}
OCTAVO_INLINE I32x16 pair_bf16(F32x16 lo, F32x16 hi) {
    return shift_right<16>(round_bf16(lo)) | (round_bf16(hi) & splat(int32_t(0xffff0000)));
}
OCTAVO_INLINE void store_bf16(void* p, F32x16 a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(shift_right<16>(round_bf16(a)).v));
}

OCTAVO_INLINE void store_f16(void* p, F32x16 a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
OCTAVO_INLINE F32x16 low_f16(I32x16 pairs) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs.v))}; }
OCTAVO_INLINE F32x16 high_f16(I32x16 pairs) { return low_f16(shift_right<16>(pairs)); }

OCTAVO_INLINE I32x16 splat_4_bytes(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {_mm512_set1_epi32(bytes)};
}
OCTAVO_INLINE I32x16 splat_8_bytes(const void* p) {
    int64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {_mm512_set1_epi64(bytes)};
}
OCTAVO_INLINE F32x16 add_neighbours(F32x16 a, F32x16 b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return {_mm512_add_ps(_mm512_permutex2var_ps(a.v, even, b.v), _mm512_permutex2var_ps(a.v, odd, b.v))};
}

OCTAVO_INLINE I32x16 add_neighbours(I32x16 a, I32x16 b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return {_mm512_add_epi32(_mm512_permutex2var_epi32(a.v, even, b.v),
                             _mm512_permutex2var_epi32(a.v, odd, b.v))};
}

OCTAVO_INLINE I32x16 even_bytes(I32x16 a) { return {_mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8)}; }
OCTAVO_INLINE I32x16 odd_bytes(I32x16 a) { return {_mm512_srai_epi16(a.v, 8)}; }
#if defined(__AVX512VNNI__)
OCTAVO_INLINE I32x16 dot_int16(I32x16 acc, I32x16 a, I32x16 b) {
    return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)};
}
OCTAVO_INLINE I32x16 dot_uint8_int8(I32x16 acc, I32x16 a, I32x16 b) {
    return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)};
}
#else
OCTAVO_INLINE I32x16 dot_int16(I32x16 acc, I32x16 a, I32x16 b) {
    return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(a.v, b.v))};
}
OCTAVO_INLINE I32x16 dot_uint8_int8(I32x16 acc, I32x16 a, I32x16 b) {
    const I32x16 even = {_mm512_and_si512(a.v, _mm512_set1_epi16(255))}, odd = {_mm512_srli_epi16(a.v, 8)};
    return dot_int16(dot_int16(acc, even, even_bytes(b)), odd, odd_bytes(b));
}
#endif
OCTAVO_INLINE void store_int16_0213(void* p, I32x16 a) {
    const __m512i ordered = _mm512_shuffle_epi32(a.v, _MM_PERM_DBCA);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(ordered));
}

#if defined(__AVX512BF16__)
constexpr bool kHasBf16Dot = true;
OCTAVO_INLINE F32x16 store_rounded_bf16(void* p, F32x16 a) {
    const __m256i half = (__m256i)_mm512_cvtneps_pbh(a.v);
    _mm256_storeu_si256(static_cast<__m256i*>(p), half);
    return as_float(shift_left<16>(I32x16{_mm512_cvtepu16_epi32(half)}));
}
OCTAVO_INLINE F32x16 dot_bf16(F32x16 acc, I32x16 a, I32x16 b) {
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
}
#else
constexpr bool kHasBf16Dot = false;
OCTAVO_INLINE F32x16 dot_bf16(F32x16 acc, I32x16 a, I32x16 b) {
    return fma(low_bf16(a), low_bf16(b), fma(high_bf16(a), high_bf16(b), acc));
}
#endif

OCTAVO_INLINE I32x16 store_int8(int8_t* p, I32x16 lo, I32x16 hi) {
    // Fours of lo and of hi take turns after packing, and each four is there twice.
    const __m512i words = _mm512_packs_epi32(lo.v, hi.v);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words, words));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(bytes));
    const __m512i ones = _mm512_set1_epi8(1);
#if defined(__AVX512VNNI__)
    return {_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, bytes)};
#else
    return {_mm512_madd_epi16(_mm512_maddubs_epi16(ones, bytes), _mm512_set1_epi16(1))};
#endif
}
OCTAVO_INLINE void sum_halves(const I32x16 (&fours)[4], U32x4& first, U32x4& second) {
    const auto lower = [&](int i) { return _mm512_castsi512_si256(fours[i].v); };
    const __m256i sums =
        _mm256_hadd_epi32(_mm256_hadd_epi32(lower(0), lower(1)), _mm256_hadd_epi32(lower(2), lower(3)));
    first = U32x4(_mm256_castsi256_si128(sums));
    second = U32x4(_mm256_extracti128_si256(sums, 1));
}
OCTAVO_INLINE U32x4 max_lanes(const I32x16 (&a)[4]) {
    const auto fold = [](__m512i x, __m512i y) {
        return _mm512_max_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    };
    const __m512i x = fold(a[0].v, a[1].v), y = fold(a[2].v, a[3].v);
    const __m512i of_lanes = _mm512_max_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    const __m256i half =
        _mm256_max_epi32(_mm512_castsi512_si256(of_lanes), _mm512_extracti64x4_epi64(of_lanes, 1));
    return U32x4(_mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

OCTAVO_INLINE __m512i broadcast_4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

struct Tile4 {
    __m512i w[8];
    OCTAVO_INLINE explicit Tile4(const uint8_t* p) {
        const __m512i nibble = _mm512_set1_epi8(15);
        for (int i = 0; i < 4; i++) {
            const __m512i bytes = _mm512_loadu_si512(p + 64 * i);
            w[i] = _mm512_and_si512(bytes, nibble);
            w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
        }
    }
};

#if defined(__AVX512VNNI__)
constexpr bool kHasInt8Dot = true;
OCTAVO_INLINE I32x16 dot_int8(I32x16 acc, I32x16 a, I32x16 b) {
    return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)};
}

constexpr int kTile8Zero = 128;

struct Tile8 {
    __m512i w[8];
    OCTAVO_INLINE explicit Tile8(const uint8_t* p) {
        for (int i = 0; i < 8; i++) w[i] = _mm512_loadu_si512(p + 64 * i);
    }
};
using Tile6 = Tile8;

template <int begin, int end, int R, int P, class Tile>
OCTAVO_INLINE void dot_rows(const Tile (&tiles)[P], const int8_t* const (&x)[R], I32x16 (&sums)[R][P]) {
    for (int i = begin; i < end; i++) {
        // By hand: GCC would keep the whole tile in registers and spill the sums instead. The sums are what
        // must stay: 16 of them hide the latency of the dot product.
        __m512i w[P];
        for (int p = 0; p < P; p++) asm("vmovdqa64 %1, %0" : "=v"(w[p]) : "m"(tiles[p].w[i]));
        for (int r = 0; r < R; r++) {
            const __m512i four = broadcast_4(x[r] + 4 * i);
            for (int p = 0; p < P; p++) sums[r][p].v = _mm512_dpbusd_epi32(sums[r][p].v, w[p], four);
        }
    }
}
#else
constexpr bool kHasInt8Dot = false;
OCTAVO_INLINE I32x16 dot_int8(I32x16 acc, I32x16 a, I32x16 b) {
    const __m512i pairs = _mm512_maddubs_epi16(a.v, b.v);
    return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}

constexpr int kTile8Zero = 0;

// vpmaddubsw saturates at 16 bits: |w| times x with w's sign stays below it, since |w| <= 128 and |x| <= 127.
struct Tile8 {
    __m512i magnitude[8];
    __mmask64 negative[8];
    OCTAVO_INLINE explicit Tile8(const uint8_t* p) {
        for (int i = 0; i < 8; i++) {
            const __m512i w = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * i), _mm512_set1_epi8(-128));
            magnitude[i] = _mm512_abs_epi8(w);
            negative[i] = _mm512_movepi8_mask(w);
        }
    }
};

template <int begin, int end>
OCTAVO_INLINE I32x16 dot(const Tile8& tile, const int8_t* x, I32x16 start) {
    const __m512i ones = _mm512_set1_epi16(1);
    __m512i acc = start.v;
    for (int i = begin; i < end; i++) {
        const __m512i four = broadcast_4(x + 4 * i);
        const __m512i s = _mm512_mask_sub_epi8(four, tile.negative[i], _mm512_setzero_si512(), four);
        acc = _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(tile.magnitude[i], s), ones));
    }
    return {acc};
}

struct Tile6 {
    __m512i w[8];
    OCTAVO_INLINE explicit Tile6(const uint8_t* p) {
        for (int i = 0; i < 8; i++) w[i] = _mm512_loadu_si512(p + 64 * i);
    }
};

// 4 products of at most 63 * 127 fit in 16 bits.
template <int begin, int end>
OCTAVO_INLINE I32x16 dot(const Tile6& tile, const int8_t* x, I32x16 start) {
    for (int i = begin; i < end; i += 2) {
        const __m512i pairs =
            _mm512_add_epi16(_mm512_maddubs_epi16(tile.w[i], broadcast_4(x + 4 * i)),
                             _mm512_maddubs_epi16(tile.w[i + 1], broadcast_4(x + 4 * i + 4)));
        start.v = _mm512_add_epi32(start.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    return start;
}

// 16 products of at most 15 * 127 fit in 16 bits: one widening at the end.
template <int begin, int end>
OCTAVO_INLINE I32x16 dot(const Tile4& tile, const int8_t* x, I32x16 start) {
    __m512i pairs = _mm512_maddubs_epi16(tile.w[begin], broadcast_4(x + 4 * begin));
    for (int i = begin + 1; i < end; i++)
        pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(tile.w[i], broadcast_4(x + 4 * i)));
    return {_mm512_add_epi32(start.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}

template <int begin, int end, int R, int P, class Tile>
OCTAVO_INLINE void dot_rows(const Tile (&tiles)[P], const int8_t* const (&x)[R], I32x16 (&sums)[R][P]) {
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) sums[r][p] = dot<begin, end>(tiles[p], x[r], sums[r][p]);
}
#endif

}  // namespace
}  // namespace octavo
