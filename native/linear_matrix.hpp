// Integer dot products of many rows at once, for linear_int8.hpp: what the matrix unit does of a linear
// layer. The sums are exact, so they are those of the vector unit.
//
// bfloat16 stays with the vector unit: AMX multiplies it too, but adds up and rounds in an order of its own,
// and a row would depend on whether it has company.
#pragma once

#include "matrix_unit.hpp"
#include "packed_linear.hpp"
#include "quantize.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

constexpr int kMatrixRows = 16;  // of a register: fewer rows are left to the vector unit

// Products of a group's P tiles with all rows of a block. Where a group has two scales, of each half.
template <int parts, int P>
using Products = int32_t[parts][kRowBlock][P][16];

// The codes of a tile as bytes [8][16 n][4]: in place, or unpacked into `room`.
template <int code_bits>
OCTAVO_INLINE const uint8_t* unpacked_codes(const uint8_t* tile, uint8_t* room) {
    if constexpr (code_bits != 4) return tile;
    for (int i = 0; i < 4; i++) {
        const I32x16 bytes = load_words(tile + 64 * i), nibbles = splat(0x0f0f0f0f);
        store_words(room + 64 * i, bytes & nibbles);
        store_words(room + 64 * i + 256, shift_right<4>(bytes) & nibbles);
    }
    return room;
}

// 16 rows with the P factors in registers 6 and 7. Neighbours take turns with `turn`, so that none waits for
// the registers of the one before.
template <int P, int turn>
OCTAVO_INLINE void multiply_rows(MatrixUnit& unit, const int8_t* values, int32_t* products) {
    unit.load<4 + turn>(values, sizeof(QuantizedGroup));
    const auto multiply = [&](auto p) {
        constexpr int sums = 2 * turn + p;
        unit.clear<sums>();
        unit.multiply<sums, 4 + turn, 6 + p>();
        unit.store<sums>(products + 16 * p, P * 64);
    };
    multiply(std::integral_constant<int, 0>{});
    if constexpr (P == 2) multiply(std::integral_constant<int, 1>{});
}

// Of at least 16 rows, on a unit whose depth is 32 / parts. If they are no multiple of 16, the last 16
// overlap with those before them: some products are computed twice.
template <int parts, int P>
OCTAVO_INLINE void multiply_group(MatrixUnit& unit, const QuantizedGroup* groups, int num_rows,
                                  const uint8_t* const (&codes)[P], Products<parts, P>& products) {
    for (int h = 0; h < parts; h++) {
        unit.load<6>(codes[0] + 256 * h, 64);
        if constexpr (P == 2) unit.load<7>(codes[1] + 256 * h, 64);
        const auto multiply = [&](auto turn, int row) {
            row = row < num_rows - kMatrixRows ? row : num_rows - kMatrixRows;
            multiply_rows<P, turn>(unit, groups[row].values + 16 * h, products[h][row][0]);
        };
        for (int row = 0; row < num_rows; row += 2 * kMatrixRows) {
            multiply(std::integral_constant<int, 0>{}, row);
            if (row + kMatrixRows < num_rows) multiply(std::integral_constant<int, 1>{}, row + kMatrixRows);
        }
    }
}

// Whether the unit gives the products of any bytes, with all its registers and in a shape that layers use.
template <int parts>
inline bool products_are_right() {
    constexpr int num_rows = 2 * kMatrixRows + 1;
    QuantizedGroup groups[num_rows];
    uint8_t codes[2][512];
    uint32_t random = 1;
    const auto fill = [&](auto* bytes, int count) {
        for (int i = 0; i < count; i++) {
            random = random * 1664525 + 1013904223;
            bytes[i] = std::remove_reference_t<decltype(*bytes)>(random >> 24);
        }
    };
    for (QuantizedGroup& group : groups) fill(group.values, 32);
    for (auto& panel : codes) fill(panel, 512);

    Products<parts, 2> products;
    MatrixUnit unit(32 / parts);
    multiply_group<parts, 2>(unit, groups, num_rows, {codes[0], codes[1]}, products);
    for (int i = 0; i < parts * num_rows * 32; i++) {
        const int h = i / (32 * num_rows), r = i / 32 % num_rows, p = i / 16 % 2, n = i % 16;
        int32_t sum = 0;
        for (int k = 32 / parts * h; k < 32 / parts * (h + 1); k++)
            sum += groups[r].values[k] * codes[p][k / 4 * 64 + n * 4 + k % 4];
        if (products[h][r][p][n] != sum) return false;
    }
    return true;
}

inline bool matrix_unit_works() {
    if constexpr (kHasMatrixUnit) return products_are_right<1>() && products_are_right<2>();
    return true;
}

}  // namespace
}  // namespace octavo
