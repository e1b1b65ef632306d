// Arm NEON of any 64-bit Arm, and its dot products of bytes and of bfloat16 where compiled for them: four
// registers a vector. See simd.hpp.
#pragma once

#include <arm_neon.h>

namespace octavo {
namespace {

struct F32x16 {
    float32x4_t v[4];
};
struct I32x16 {
    int32x4_t v[4];
};

constexpr bool kHasFma = true;
constexpr int kDotRows = 2, kDotPanels = 1, kFloatRows = 2, kFloatPanels = 2;
constexpr int kFloatInputBytes = 1 << 20;
constexpr int kNumVectors = 8;  // that the registers hold
constexpr bool kHasByteDot = true;

// f of each quarter's number, as a vector.
template <class F>
OCTAVO_INLINE F32x16 floats(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}
template <class F>
OCTAVO_INLINE I32x16 ints(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}

OCTAVO_INLINE F32x16 splat(float x) {
    return floats([&](int) { return vdupq_n_f32(x); });
}
OCTAVO_INLINE I32x16 splat(int32_t x) {
    return ints([&](int) { return vdupq_n_s32(x); });
}
OCTAVO_INLINE F32x16 load(const float* p) {
    return floats([&](int i) { return vld1q_f32(p + 4 * i); });
}
OCTAVO_INLINE void store(float* p, F32x16 a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
OCTAVO_INLINE F32x16 load_first(const float* p, int n) {
    float all[16] = {};
    std::memcpy(all, p, n * sizeof(float));
    return load(all);
}
OCTAVO_INLINE void store_first(float* p, F32x16 a, int n) {
    float all[16];
    store(all, a);
    std::memcpy(p, all, n * sizeof(float));
}
OCTAVO_INLINE I32x16 load_words(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return ints([&](int i) { return vreinterpretq_s32_u8(vld1q_u8(q + 16 * i)); });
}
OCTAVO_INLINE void store_words(void* p, I32x16 a) {
    auto* q = static_cast<uint8_t*>(p);
    for (int i = 0; i < 4; i++) vst1q_u8(q + 16 * i, vreinterpretq_u8_s32(a.v[i]));
}

OCTAVO_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
    return floats([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
    return floats([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
    return floats([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
    return floats([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return floats([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// Compare and select rather than vminq: b where either is NaN, as everywhere.
OCTAVO_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return floats([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
OCTAVO_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return floats([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}

OCTAVO_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
    return ints([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
    return ints([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
    return ints([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
    return ints([&](int i) { return vorrq_s32(a.v[i], b.v[i]); });
}
OCTAVO_INLINE I32x16 max(I32x16 a, I32x16 b) {
    return ints([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
template <int n>
OCTAVO_INLINE I32x16 shift_left(I32x16 a) {
    return ints([&](int i) { return vshlq_n_s32(a.v[i], n); });
}
template <int n>
OCTAVO_INLINE I32x16 shift_right(I32x16 a) {
    return ints([&](int i) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), n)); });
}
OCTAVO_INLINE F32x16 to_float(I32x16 a) {
    return floats([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
OCTAVO_INLINE I32x16 round_to_int(F32x16 a) {
    return ints([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
}
OCTAVO_INLINE F32x16 as_float(I32x16 a) {
    return floats([&](int i) { return vreinterpretq_f32_s32(a.v[i]); });
}
OCTAVO_INLINE I32x16 as_int(F32x16 a) {
    return ints([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
}

OCTAVO_INLINE float sum(F32x16 a) {
    const float32x4_t b = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
OCTAVO_INLINE float max_lane(F32x16 a) {
    float lanes[16];
    store(lanes, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}
OCTAVO_INLINE int32_t max_lane(I32x16 a) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}

OCTAVO_INLINE F32x16 low_bf16(I32x16 pairs) { return as_float(shift_left<16>(pairs)); }
OCTAVO_INLINE F32x16 high_bf16(I32x16 pairs) { return as_float(pairs & splat(int32_t(0xffff0000))); }
OCTAVO_INLINE F32x16 load_int8(const void* p) {
    const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
    const int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_high_s8(bytes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}
OCTAVO_INLINE F32x16 load_bf16(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return floats([&](int i) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(q + 8 * i)), 16));
    });
}
OCTAVO_INLINE F32x16 load_f16(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return floats([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(q + 8 * i))); });
}
// Nearest even on the bits, in the upper half of each lane; a NaN keeps its sign and becomes quiet.
OCTAVO_INLINE I32x16 round_bf16(F32x16 a) {
    const I32x16 bits = as_int(a);
    const I32x16 rounded = bits + (shift_right<16>(bits) & splat(1)) + splat(0x7fff);
    const I32x16 quiet = bits | splat(0x00400000);
    return ints([&](int i) { return vbslq_s32(vceqq_f32(a.v[i], a.v[i]), rounded.v[i], quiet.v[i]); });
}
OCTAVO_INLINE I32x16 pair_bf16(F32x16 lo, F32x16 hi) {
    return shift_right<16>(round_bf16(lo)) | (round_bf16(hi) & splat(int32_t(0xffff0000)));
}
OCTAVO_INLINE void store_bf16(void* p, F32x16 a) {
    const I32x16 rounded = round_bf16(a);
    auto* q = static_cast<uint8_t*>(p);
    for (int i = 0; i < 4; i++)
        vst1_u8(q + 8 * i, vreinterpret_u8_u16(vshrn_n_u32(vreinterpretq_u32_s32(rounded.v[i]), 16)));
}
OCTAVO_INLINE void store_f16(void* p, F32x16 a) {
    auto* q = static_cast<uint8_t*>(p);
    for (int i = 0; i < 4; i++) vst1_u8(q + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(a.v[i])));
}
OCTAVO_INLINE F32x16 low_f16(I32x16 pairs) {
    return floats([&](int i) { return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(pairs.v[i]))); });
}
OCTAVO_INLINE F32x16 high_f16(I32x16 pairs) { return low_f16(shift_right<16>(pairs)); }
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Rounds both additions to odd rather than to nearest, and takes subnormal numbers for zeros.
constexpr bool kHasBf16Dot = true;
OCTAVO_INLINE F32x16 dot_bf16(F32x16 acc, I32x16 a, I32x16 b) {
    return floats([&](int i) {
        return vbfdotq_f32(acc.v[i], vreinterpretq_bf16_s32(a.v[i]), vreinterpretq_bf16_s32(b.v[i]));
    });
}
#else
constexpr bool kHasBf16Dot = false;
OCTAVO_INLINE F32x16 dot_bf16(F32x16 acc, I32x16 a, I32x16 b) {
    return fma(low_bf16(a), low_bf16(b), fma(high_bf16(a), high_bf16(b), acc));
}
#endif

OCTAVO_INLINE I32x16 add_neighbours(I32x16 a, I32x16 b) {
    return {{vpaddq_s32(a.v[0], a.v[1]), vpaddq_s32(a.v[2], a.v[3]), vpaddq_s32(b.v[0], b.v[1]),
             vpaddq_s32(b.v[2], b.v[3])}};
}

// acc + the products of four neighbouring bytes, per 32-bit lane.
#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool kHasInt8Dot = true;
OCTAVO_INLINE int32x4_t dot_4(int32x4_t acc, int8x16_t a, int8x16_t b) { return vdotq_s32(acc, a, b); }
#else
constexpr bool kHasInt8Dot = false;
// Two products of at most 128 * 127 fit in 16 bits.
OCTAVO_INLINE int32x4_t dot_4(int32x4_t acc, int8x16_t a, int8x16_t b) {
    const int32x4_t lo = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    const int32x4_t hi = vpaddlq_s16(vmull_high_s8(a, b));
    return vaddq_s32(acc, vpaddq_s32(lo, hi));
}
#endif
OCTAVO_INLINE I32x16 dot_int8(I32x16 acc, I32x16 a, I32x16 b) {
    return ints(
        [&](int i) { return dot_4(acc.v[i], vreinterpretq_s8_s32(a.v[i]), vreinterpretq_s8_s32(b.v[i])); });
}

OCTAVO_INLINE I32x16 even_bytes(I32x16 a) {
    return ints([&](int i) {
        return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(a.v[i]), 8), 8));
    });
}
OCTAVO_INLINE I32x16 odd_bytes(I32x16 a) {
    return ints([&](int i) { return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(a.v[i]), 8)); });
}
OCTAVO_INLINE I32x16 dot_int16(I32x16 acc, I32x16 a, I32x16 b) {
    return ints([&](int i) {
        const int16x8_t x = vreinterpretq_s16_s32(a.v[i]), y = vreinterpretq_s16_s32(b.v[i]);
        const int32x4_t front = vmull_s16(vget_low_s16(x), vget_low_s16(y)), back = vmull_high_s16(x, y);
        return vaddq_s32(acc.v[i], vpaddq_s32(front, back));
    });
}
#if defined(__ARM_FEATURE_DOTPROD)
// Both sides are signed: 128 less in a, and 128 times b's sum for it, which many a share.
OCTAVO_INLINE I32x16 dot_uint8_int8(I32x16 acc, I32x16 a, I32x16 b) {
    return ints([&](int i) {
        const int8x16_t bytes = vreinterpretq_s8_s32(b.v[i]), half = vdupq_n_s8(64);
        const int8x16_t less = veorq_s8(vreinterpretq_s8_s32(a.v[i]), vdupq_n_s8(-128));
        const int32x4_t rest = vdotq_s32(vdotq_s32(vdupq_n_s32(0), bytes, half), bytes, half);
        return vaddq_s32(vdotq_s32(acc.v[i], less, bytes), rest);
    });
}
#else
OCTAVO_INLINE I32x16 dot_uint8_int8(I32x16 acc, I32x16 a, I32x16 b) {
    const I32x16 odd = shift_right<8>(a) & splat(0x00ff00ff);
    return dot_int16(dot_int16(acc, a & splat(0x00ff00ff), even_bytes(b)), odd, odd_bytes(b));
}
#endif
OCTAVO_INLINE void store_int16_0213(void* p, I32x16 a) {
    for (int i = 0; i < 4; i++) {
        const int16x4_t narrow = vmovn_s32(a.v[i]);
        const int16_t order[4] = {vget_lane_s16(narrow, 0), vget_lane_s16(narrow, 2),
                                  vget_lane_s16(narrow, 1), vget_lane_s16(narrow, 3)};
        std::memcpy(static_cast<int16_t*>(p) + 4 * i, order, sizeof order);
    }
}

OCTAVO_INLINE I32x16 store_int8(int8_t* p, I32x16 lo, I32x16 hi) {
    const auto store_half = [](int8_t* place, I32x16 a) {
        const int16x8_t front = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
        const int16x8_t back = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
        const int8x16_t bytes = vcombine_s8(vmovn_s16(front), vmovn_s16(back));
        vst1q_s8(place, bytes);
        return vpaddlq_s16(vpaddlq_s8(bytes));
    };
    return {store_half(p, lo), store_half(p + 16, hi), vdupq_n_s32(0), vdupq_n_s32(0)};
}
OCTAVO_INLINE void sum_halves(const I32x16 (&fours)[4], U32x4& first, U32x4& second) {
    const auto sums = [&](int half) {
        const int32x4_t a = vpaddq_s32(fours[0].v[half], fours[1].v[half]);
        return U32x4(vpaddq_s32(a, vpaddq_s32(fours[2].v[half], fours[3].v[half])));
    };
    first = sums(0);
    second = sums(1);
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
    int64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return ints([&](int) { return vreinterpretq_s32_s64(vdupq_n_s64(bytes)); });
}
OCTAVO_INLINE F32x16 add_neighbours(F32x16 a, F32x16 b) {
    return {{vpaddq_f32(a.v[0], a.v[1]), vpaddq_f32(a.v[2], a.v[3]), vpaddq_f32(b.v[0], b.v[1]),
             vpaddq_f32(b.v[2], b.v[3])}};
}

OCTAVO_INLINE int8x16_t broadcast_4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

struct Tile4 {
    int8x16_t w[8][4];
    OCTAVO_INLINE explicit Tile4(const uint8_t* p) {
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < 4; n++) {
                const uint8x16_t bytes = vld1q_u8(p + 64 * i + 16 * n);
                w[i][n] = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
                w[i + 4][n] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
            }
    }
};

struct Tile6 {
    int8x16_t w[8][4];
    OCTAVO_INLINE explicit Tile6(const uint8_t* p) {
        for (int i = 0; i < 8; i++)
            for (int n = 0; n < 4; n++) w[i][n] = vreinterpretq_s8_u8(vld1q_u8(p + 64 * i + 16 * n));
    }
};

constexpr int kTile8Zero = 0;

struct Tile8 {
    int8x16_t w[8][4];
    OCTAVO_INLINE explicit Tile8(const uint8_t* p) {
        for (int i = 0; i < 8; i++)
            for (int n = 0; n < 4; n++)
                w[i][n] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 64 * i + 16 * n), vdupq_n_u8(128)));
    }
};

template <int begin, int end, class Tile>
OCTAVO_INLINE I32x16 dot(const Tile& tile, const int8_t* x, I32x16 start) {
    for (int i = begin; i < end; i++) {
        const int8x16_t four = broadcast_4(x + 4 * i);
        for (int n = 0; n < 4; n++) start.v[n] = dot_4(start.v[n], tile.w[i][n], four);
    }
    return start;
}

template <int begin, int end, int R, int P, class Tile>
OCTAVO_INLINE void dot_rows(const Tile (&tiles)[P], const int8_t* const (&x)[R], I32x16 (&sums)[R][P]) {
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) sums[r][p] = dot<begin, end>(tiles[p], x[r], sums[r][p]);
}

}  // namespace
}  // namespace octavo
