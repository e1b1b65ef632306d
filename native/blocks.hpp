// GGUF's blocks of quantized values, taken apart: groups of 32 small integers (codes), and what turns them
// into values. Layouts are those of the ggml project (ggml-common.h). Included once per instruction set, and
// by packing.cpp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels.hpp"

namespace octavo {
namespace {

// How an encoding looks, in the file and packed. A value is scale * (code - zero), or scale * code + minimum.
// Scale and minimum are float16, one for each block of 32; or, in superblocks of 256, small integers times a
// float16 that all share, one for each 32 or (`halves`) for each 16.
struct Form {
    int block_values, block_bytes;
    int code_bits = 0;  // packed: 4 are two to a byte; 6 or 8 take a byte
    int zero = 0;
    bool has_minimum = false, halves = false;

    constexpr bool in_superblocks() const { return block_values == 256; }
    constexpr int num_parameters() const { return has_minimum ? 2 : 1; }
    // Packed, of 16 outputs: the codes of a group, the integers for it, the float16 parameters of a block.
    constexpr int tile_bytes() const { return code_bits == 4 ? 256 : 512; }
    constexpr int integer_bytes() const {
        return in_superblocks() ? 16 * num_parameters() * (halves ? 2 : 1) : 0;
    }
    constexpr int half_bytes() const { return 32 * num_parameters(); }
    constexpr int scale_bytes() const {
        return half_bytes() + block_values / 32 * integer_bytes();
    }  // of a block
};

constexpr Form form_of(Encoding encoding) {
    switch (encoding) {
        case Encoding::Q8_0:
            return {32, 34, 8, 128, false, false};
        case Encoding::Q4_0:
            return {32, 18, 4, 8, false, false};
        case Encoding::Q4_1:
            return {32, 20, 4, 0, true, false};
        case Encoding::Q5_0:
            return {32, 22, 8, 128, false, false};
        case Encoding::Q5_1:
            return {32, 24, 6, 0, true, false};
        case Encoding::Q2_K:
            return {256, 84, 4, 0, true, true};
        case Encoding::Q3_K:
            return {256, 110, 4, 8, false, true};
        case Encoding::Q4_K:
            return {256, 144, 4, 0, true, false};
        case Encoding::Q5_K:
            return {256, 176, 6, 0, true, false};
        case Encoding::Q6_K:
            return {256, 210, 6, 32, false, true};
        case Encoding::F32:
            return {1, 4};
        case Encoding::F16:
        case Encoding::BF16:
            return {1, 2};
    }
    return {};
}

// Calls f with the encoding as a type whose `value` it is, so that code for it alone can be compiled.
template <class F>
[[gnu::always_inline]] inline decltype(auto) with_encoding(Encoding encoding, F&& f) {
    switch (encoding) {
#define X(name)          \
    case Encoding::name: \
        return f(std::integral_constant<Encoding, Encoding::name>{});
        OCTAVO_ENCODINGS
#undef X
    }
    __builtin_unreachable();
}

// What the kernels read in its place once it is packed: the same form.
constexpr Encoding packed_as(Encoding encoding) {
    return encoding == Encoding::Q5_0 ? Encoding::Q8_0 : encoding;
}

// 32 neighbouring values of one row.
struct Group {
    uint8_t codes[32];
    int8_t scales[2];     // of each half, in superblocks
    uint8_t minimums[2];  // the same, to be subtracted
};

[[gnu::always_inline]] inline void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
    for (int i = 0; i < 16; i++) codes[i] = bytes[i] & 15, codes[i + 16] = bytes[i] >> 4;
}

// Adds 16 to the codes whose bit is set.
[[gnu::always_inline]] inline void read_fifth_bits(const uint8_t* bits, uint8_t* codes) {
    for (int i = 0; i < 32; i++) codes[i] |= (bits[i / 8] >> i % 8 & 1) << 4;
}

// Scale and minimum of group g of Q4_K and Q5_K: 6 bits each.
[[gnu::always_inline]] inline void read_scale_and_minimum(const uint8_t* bytes, int g, Group& group) {
    int scale, minimum;
    if (g < 4) {
        scale = bytes[g] & 63, minimum = bytes[g + 4] & 63;
    } else {
        scale = (bytes[g + 4] & 15) | bytes[g - 4] >> 6 << 4;
        minimum = bytes[g + 4] >> 4 | bytes[g] >> 6 << 4;
    }
    group.scales[0] = group.scales[1] = int8_t(scale);
    group.minimums[0] = group.minimums[1] = uint8_t(minimum);
}

// Group g of a block.
[[gnu::always_inline]] inline void read_group(Encoding encoding, const uint8_t* block, int g, Group& group) {
    uint8_t* codes = group.codes;
    switch (encoding) {
        case Encoding::Q8_0:
            for (int i = 0; i < 32; i++) codes[i] = block[2 + i] ^ 0x80;
            break;
        case Encoding::Q4_0:
            read_nibbles(block + 2, codes);
            break;
        case Encoding::Q4_1:
            read_nibbles(block + 4, codes);
            break;
        case Encoding::Q5_0:
            read_nibbles(block + 6, codes);
            read_fifth_bits(block + 2, codes);
            for (int i = 0; i < 32; i++) codes[i] += 128 - 16;
            break;
        case Encoding::Q5_1:
            read_nibbles(block + 8, codes);
            read_fifth_bits(block + 4, codes);
            break;
        case Encoding::Q2_K:
            for (int i = 0; i < 32; i++) codes[i] = block[16 + g / 4 * 32 + i] >> g % 4 * 2 & 3;
            for (int h = 0; h < 2; h++) {
                group.scales[h] = int8_t(block[2 * g + h] & 15);
                group.minimums[h] = block[2 * g + h] >> 4;
            }
            break;
        case Encoding::Q3_K:
            // Two bits here and one there, of a value from -4 to 3.
            for (int i = 0; i < 32; i++)
                codes[i] =
                    uint8_t((block[32 + g / 4 * 32 + i] >> g % 4 * 2 & 3) + (block[i] >> g & 1) * 4 + 4);
            for (int h = 0; h < 2; h++) {
                const int s = 2 * g + h;
                const int low = block[96 + s % 8] >> s / 8 * 4 & 15,
                          high = block[104 + s % 4] >> s / 4 * 2 & 3;
                group.scales[h] = int8_t((low | high << 4) - 32);
            }
            break;
        case Encoding::Q4_K:
            for (int i = 0; i < 32; i++) codes[i] = block[16 + g / 2 * 32 + i] >> g % 2 * 4 & 15;
            read_scale_and_minimum(block + 4, g, group);
            break;
        case Encoding::Q5_K:
            for (int i = 0; i < 32; i++) {
                const int low = block[48 + g / 2 * 32 + i] >> g % 2 * 4 & 15;
                codes[i] = uint8_t(low | (block[16 + i] >> g & 1) << 4);
            }
            read_scale_and_minimum(block + 4, g, group);
            break;
        case Encoding::Q6_K:
            for (int i = 0; i < 32; i++) {
                const int low = block[g / 4 * 64 + g % 2 * 32 + i] >> g % 4 / 2 * 4 & 15;
                codes[i] = uint8_t(low | (block[128 + g / 4 * 32 + i] >> g % 4 * 2 & 3) << 4);
            }
            for (int h = 0; h < 2; h++) group.scales[h] = int8_t(block[192 + 2 * g + h]);
            break;
        case Encoding::F32:
        case Encoding::F16:
        case Encoding::BF16:
            break;
    }
}

// Where in a block the float16 parameters lie: the scale, and the minimum (in superblocks subtracted).
struct HalfPlaces {
    int scale, minimum;
};

constexpr HalfPlaces half_places(Encoding encoding) {
    return encoding == Encoding::Q2_K   ? HalfPlaces{80, 82}
           : encoding == Encoding::Q3_K ? HalfPlaces{108, 0}
           : encoding == Encoding::Q6_K ? HalfPlaces{208, 0}
                                        : HalfPlaces{0, 2};
}

}  // namespace
}  // namespace octavo
