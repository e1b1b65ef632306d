// Plain C++ for any CPU: correct, and slow. See simd.hpp.
#pragma once

namespace octavo {
namespace {

struct F32x16 {
    float v[16];
};
struct I32x16 {
    int32_t v[16];
};

constexpr bool kHasFma = false;
constexpr int kDotRows = 1, kDotPanels = 2, kFloatRows = 2, kFloatPanels = 2;
constexpr int kFloatInputBytes = 1 << 20;
constexpr bool kHasBf16Dot = false;
constexpr int kNumVectors = 4;  // that the registers hold
constexpr bool kHasByteDot = true;

// f of each lane number, as a vector.
template <class V, class F>
OCTAVO_INLINE V each_lane(F f) {
    V r;
    for (int i = 0; i < 16; i++) r.v[i] = f(i);
    return r;
}
template <class F>
OCTAVO_INLINE F32x16 floats(F f) {
    return each_lane<F32x16>(f);
}
template <class F>
OCTAVO_INLINE I32x16 ints(F f) {
    return each_lane<I32x16>(f);
}

OCTAVO_INLINE F32x16 splat(float x) {
    return floats([&](int) { return x; });
}
OCTAVO_INLINE I32x16 splat(int32_t x) {
    return ints([&](int) { return x; });
}
OCTAVO_INLINE F32x16 load(const float* p) {
    return floats([&](int i) { return p[i]; });
}
OCTAVO_INLINE void store(float* p, F32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
OCTAVO_INLINE F32x16 load_first(const float* p, int n) {
    return floats([&](int i) { return i < n ? p[i] : 0.0f; });
}
OCTAVO_INLINE void store_first(float* p, F32x16 a, int n) {
    for (int i = 0; i < n; i++) p[i] = a.v[i];
}
OCTAVO_INLINE I32x16 load_words(const void* p) {
    I32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
OCTAVO_INLINE void store_words(void* p, I32x16 a) { std::memcpy(p, a.v, sizeof a.v); }

OCTAVO_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
    return floats([&](int i) { return a.v[i] + b.v[i]; });
}
OCTAVO_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
    return floats([&](int i) { return a.v[i] - b.v[i]; });
}
OCTAVO_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
    return floats([&](int i) { return a.v[i] * b.v[i]; });
}
OCTAVO_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
    return floats([&](int i) { return a.v[i] / b.v[i]; });
}
OCTAVO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return a * b + c; }
OCTAVO_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return floats([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
OCTAVO_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return floats([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

// Integer lanes wrap around, as in the vector units.
OCTAVO_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
    return ints([&](int i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
OCTAVO_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
    return ints([&](int i) { return int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); });
}
OCTAVO_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
    return ints([&](int i) { return a.v[i] & b.v[i]; });
}
OCTAVO_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
    return ints([&](int i) { return a.v[i] | b.v[i]; });
}
OCTAVO_INLINE I32x16 max(I32x16 a, I32x16 b) {
    return ints([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int n>
OCTAVO_INLINE I32x16 shift_left(I32x16 a) {
    return ints([&](int i) { return int32_t(uint32_t(a.v[i]) << n); });
}
template <int n>
OCTAVO_INLINE I32x16 shift_right(I32x16 a) {
    return ints([&](int i) { return int32_t(uint32_t(a.v[i]) >> n); });
}
OCTAVO_INLINE F32x16 to_float(I32x16 a) {
    return floats([&](int i) { return float(a.v[i]); });
}
OCTAVO_INLINE F32x16 as_float(I32x16 a) {
    F32x16 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}
OCTAVO_INLINE I32x16 as_int(F32x16 a) {
    I32x16 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}
// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the mantissa, for |a| < 2^22.
OCTAVO_INLINE I32x16 round_to_int(F32x16 a) { return as_int(a + splat(0x1.8p23f)) - splat(0x4b400000); }

OCTAVO_INLINE float sum(F32x16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
    return a.v[0];
}
OCTAVO_INLINE float max_lane(F32x16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}
OCTAVO_INLINE int32_t max_lane(I32x16 a) {
    int32_t m = a.v[0];
    for (int i = 1; i < 16; i++) m = a.v[i] > m ? a.v[i] : m;
    return m;
}

OCTAVO_INLINE F32x16 low_bf16(I32x16 pairs) { return as_float(shift_left<16>(pairs)); }
OCTAVO_INLINE F32x16 high_bf16(I32x16 pairs) { return as_float(pairs & splat(int32_t(0xffff0000))); }
OCTAVO_INLINE F32x16 load_bf16(const void* p) {
    uint16_t half[16];
    std::memcpy(half, p, sizeof half);
    return as_float(ints([&](int i) { return int32_t(uint32_t(half[i]) << 16); }));
}
// Nearest even on the bits, in the upper half of each lane; a NaN keeps its sign and becomes quiet.
OCTAVO_INLINE I32x16 round_bf16(F32x16 a) {
    const I32x16 bits = as_int(a);
    return ints([&](int i) {
        const uint32_t b = uint32_t(bits.v[i]);
        return int32_t(a.v[i] != a.v[i] ? b | 0x00400000 : b + (b >> 16 & 1) + 0x7fff);
    });
}
OCTAVO_INLINE I32x16 pair_bf16(F32x16 lo, F32x16 hi) {
    return shift_right<16>(round_bf16(lo)) | (round_bf16(hi) & splat(int32_t(0xffff0000)));
}
OCTAVO_INLINE void store_bf16(void* p, F32x16 a) {
    const I32x16 rounded = round_bf16(a);
    uint16_t half[16];
    for (int i = 0; i < 16; i++) half[i] = uint16_t(uint32_t(rounded.v[i]) >> 16);
    std::memcpy(p, half, sizeof half);
}
OCTAVO_INLINE F32x16 dot_bf16(F32x16 acc, I32x16 a, I32x16 b) {
    return fma(low_bf16(a), low_bf16(b), fma(high_bf16(a), high_bf16(b), acc));
}
// Bits of the half moved into place give its value times 2^-112, subnormals included; all-ones exponents are
// infinities and NaNs.
OCTAVO_INLINE F32x16 low_f16(I32x16 pairs) {
    const I32x16 magnitude = shift_left<13>(pairs & splat(0x7fff));
    const I32x16 bits = as_int(as_float(magnitude) * splat(0x1p112f));
    return as_float(ints([&](int i) {
        const uint32_t half = uint32_t(pairs.v[i]);
        const uint32_t number =
            (half & 0x7c00) == 0x7c00 ? uint32_t(magnitude.v[i]) | 0x7f800000 : uint32_t(bits.v[i]);
        return int32_t(number | (half & 0x8000) << 16);
    }));
}
OCTAVO_INLINE F32x16 high_f16(I32x16 pairs) { return low_f16(shift_right<16>(pairs)); }
OCTAVO_INLINE F32x16 load_f16(const void* p) {
    uint16_t half[16];
    std::memcpy(half, p, sizeof half);
    return low_f16(ints([&](int i) { return int32_t(half[i]); }));
}
// To nearest even, on the bits.
OCTAVO_INLINE void store_f16(void* p, F32x16 a) {
    const I32x16 bits = as_int(a), magnitude = bits & splat(0x7fffffff);
    uint16_t half[16];
    for (int i = 0; i < 16; i++) {
        const uint32_t x = uint32_t(magnitude.v[i]);
        uint32_t number;
        if (x > 0x7f800000)
            number = 0x7e00;
        else if (x >= 0x477ff000)  // rounds to 65536 or more
            number = 0x7c00;
        else if (x < 0x38800000) {  // below 2^-14: adding 0.5 leaves units of 2^-24 in the low bits
            const float shifted = as_float(magnitude).v[i] + 0.5f;
            uint32_t sum;
            std::memcpy(&sum, &shifted, sizeof sum);
            number = sum - 0x3f000000;
        } else {
            number = (x - 0x38000000 + 0xfff + (x >> 13 & 1)) >> 13;
        }
        half[i] = uint16_t(number | (uint32_t(bits.v[i]) >> 16 & 0x8000));
    }
    std::memcpy(p, half, sizeof half);
}

OCTAVO_INLINE F32x16 load_int8(const void* p) {
    return floats([&](int i) { return float(static_cast<const int8_t*>(p)[i]); });
}

OCTAVO_INLINE I32x16 add_neighbours(I32x16 a, I32x16 b) {
    return ints(
        [&](int i) { return i < 8 ? a.v[2 * i] + a.v[2 * i + 1] : b.v[2 * i - 16] + b.v[2 * i - 15]; });
}

// Two halves of a lane from its bytes.
OCTAVO_INLINE int32_t two_int16(int32_t lo, int32_t hi) {
    return int32_t((uint32_t(lo) & 0xffff) | uint32_t(hi) << 16);
}
OCTAVO_INLINE I32x16 even_bytes(I32x16 a) {
    return ints([&](int i) { return two_int16(int8_t(a.v[i]), int8_t(a.v[i] >> 16)); });
}
OCTAVO_INLINE I32x16 odd_bytes(I32x16 a) {
    return ints([&](int i) { return two_int16(int8_t(a.v[i] >> 8), int8_t(a.v[i] >> 24)); });
}
OCTAVO_INLINE I32x16 dot_int16(I32x16 acc, I32x16 a, I32x16 b) {
    return ints([&](int i) {
        return acc.v[i] + int16_t(a.v[i]) * int16_t(b.v[i]) + (a.v[i] >> 16) * (b.v[i] >> 16);
    });
}
OCTAVO_INLINE I32x16 dot_uint8_int8(I32x16 acc, I32x16 a, I32x16 b) {
    const I32x16 odd = shift_right<8>(a) & splat(0x00ff00ff);
    return dot_int16(dot_int16(acc, a & splat(0x00ff00ff), even_bytes(b)), odd, odd_bytes(b));
}
OCTAVO_INLINE void store_int16_0213(void* p, I32x16 a) {
    int16_t out[16];
    for (int i = 0; i < 16; i++) out[i] = int16_t(a.v[(i & ~3) | (i & 1) << 1 | (i & 2) >> 1]);
    std::memcpy(p, out, sizeof out);
}

OCTAVO_INLINE I32x16 store_int8(int8_t* p, I32x16 lo, I32x16 hi) {
    I32x16 fours = splat(0);
    for (int i = 0; i < 16; i++) {
        fours.v[i / 4] += p[i] = int8_t(lo.v[i]);
        fours.v[4 + i / 4] += p[i + 16] = int8_t(hi.v[i]);
    }
    return fours;
}
OCTAVO_INLINE void sum_halves(const I32x16 (&fours)[4], U32x4& first, U32x4& second) {
    first = second = U32x4{};
    for (int i = 0; i < 16; i++) {
        first[i / 4] += uint32_t(fours[i / 4].v[i % 4]);
        second[i / 4] += uint32_t(fours[i / 4].v[4 + i % 4]);
    }
}
OCTAVO_INLINE U32x4 max_lanes(const I32x16 (&a)[4]) {
    return U32x4{uint32_t(max_lane(a[0])), uint32_t(max_lane(a[1])), uint32_t(max_lane(a[2])),
                 uint32_t(max_lane(a[3]))};
}

OCTAVO_INLINE I32x16 splat_4_bytes(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return splat(bytes);
}
OCTAVO_INLINE I32x16 splat_8_bytes(const void* p) {
    int32_t bytes[2];
    std::memcpy(bytes, p, sizeof bytes);
    return ints([&](int i) { return bytes[i % 2]; });
}
OCTAVO_INLINE F32x16 add_neighbours(F32x16 a, F32x16 b) {
    return floats(
        [&](int i) { return i < 8 ? a.v[2 * i] + a.v[2 * i + 1] : b.v[2 * i - 16] + b.v[2 * i - 15]; });
}

struct Tile4 {
    uint8_t w[8][16][4];
    OCTAVO_INLINE explicit Tile4(const uint8_t* p) {
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < 16; n++)
                for (int k = 0; k < 4; k++) {
                    w[i][n][k] = p[64 * i + 4 * n + k] & 15;
                    w[i + 4][n][k] = p[64 * i + 4 * n + k] >> 4;
                }
    }
};

constexpr bool kHasInt8Dot = false;
OCTAVO_INLINE I32x16 dot_int8(I32x16 acc, I32x16 a, I32x16 b) {
    int8_t x[16][4], y[16][4];
    std::memcpy(x, a.v, sizeof x);
    std::memcpy(y, b.v, sizeof y);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++) acc.v[i] += x[i][k] * y[i][k];
    return acc;
}

constexpr int kTile8Zero = 128;

struct Tile8 {
    uint8_t w[8][16][4];
    OCTAVO_INLINE explicit Tile8(const uint8_t* p) { std::memcpy(w, p, sizeof w); }
};
using Tile6 = Tile8;

template <int begin, int end, class Tile>
OCTAVO_INLINE I32x16 dot(const Tile& tile, const int8_t* x, I32x16 start) {
    for (int i = begin; i < end; i++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < 4; k++) start.v[n] += tile.w[i][n][k] * x[4 * i + k];
    return start;
}

template <int begin, int end, int R, int P, class Tile>
OCTAVO_INLINE void dot_rows(const Tile (&tiles)[P], const int8_t* const (&x)[R], I32x16 (&sums)[R][P]) {
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) sums[r][p] = dot<begin, end>(tiles[p], x[r], sums[r][p]);
}

}  // namespace
}  // namespace octavo
