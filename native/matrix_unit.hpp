// A unit that multiplies small matrices of bytes, with registers of its own: AMX, or the same in plain loops,
// so that any machine can run the code that uses it. See simd.hpp.
//
// A register holds 16 rows of up to 64 bytes. While a MatrixUnit lives, this thread has
//   0 to 3   sums, int32 [16][16]
//   4 and 5  factors on the left, int8 [16][depth]
//   6 and 7  factors on the right, uint8 [depth / 4][16][4]: inputs k, k + 1, k + 2, k + 3 of an output are
//            neighbours, as in packed weights
// Sums of int32 wrap around; the products of bytes are exact.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.hpp"

namespace octavo {
namespace {

#if defined(OCTAVO_ISA_avx512_amx)
constexpr bool kHasMatrixUnit = true;

// Not the compiler's intrinsics: those of GCC 12 do not say that a load reads memory, so that it may come
// before what was written there.
class MatrixUnit {
  public:
    explicit MatrixUnit(int depth) {
        Shapes shapes{};
        for (int i = 0; i < 8; i++) {
            shapes.row_bytes[i] = uint16_t(i == 4 || i == 5 ? depth : 64);
            shapes.rows[i] = uint8_t(i < 6 ? 16 : depth / 4);
        }
        asm volatile("ldtilecfg %0" : : "m"(shapes));
    }
    // Empty registers cost nothing when the system switches threads.
    ~MatrixUnit() { asm volatile("tilerelease"); }
    MatrixUnit(const MatrixUnit&) = delete;
    MatrixUnit& operator=(const MatrixUnit&) = delete;

    template <int sums>
    OCTAVO_INLINE void clear() {
        asm volatile("tilezero %%tmm%c0" : : "i"(sums));
    }
    template <int factor>
    OCTAVO_INLINE void load(const void* p, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(factor) : "memory");
    }
    template <int sums>
    OCTAVO_INLINE void store(void* p, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(sums) : "memory");
    }
    template <int sums, int left, int right>
    OCTAVO_INLINE void multiply() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(left), "i"(right));
    }

  private:
    struct alignas(64) Shapes {
        uint8_t palette = 1, first_row = 0, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
};

#else
#if defined(OCTAVO_ISA_generic)
constexpr bool kHasMatrixUnit = true;
#else
constexpr bool kHasMatrixUnit = false;
#endif

class MatrixUnit {
  public:
    explicit MatrixUnit(int depth) : depth_(depth) {}

    template <int sums>
    [[gnu::noinline]] void clear() {
        std::memset(registers_[sums], 0, sizeof registers_[sums]);
    }
    template <int factor>
    [[gnu::noinline]] void load(const void* p, int64_t stride) {
        const int rows = factor < 6 ? 16 : depth_ / 4, row_bytes = factor < 6 ? depth_ : 64;
        for (int i = 0; i < rows; i++)
            std::memcpy(registers_[factor][i], static_cast<const uint8_t*>(p) + i * stride, row_bytes);
    }
    template <int sums>
    [[gnu::noinline]] void store(void* p, int64_t stride) {
        for (int i = 0; i < 16; i++)
            std::memcpy(static_cast<uint8_t*>(p) + i * stride, registers_[sums][i], 64);
    }
    template <int sums, int left, int right>
    [[gnu::noinline]] void multiply() {
        for (int i = 0; i < 16; i++) {
            uint32_t row[16];
            std::memcpy(row, registers_[sums][i], sizeof row);
            for (int k = 0; k < depth_; k++)
                for (int n = 0; n < 16; n++)
                    row[n] +=
                        uint32_t(int8_t(registers_[left][i][k]) * registers_[right][k / 4][4 * n + k % 4]);
            std::memcpy(registers_[sums][i], row, sizeof row);
        }
    }

  private:
    int depth_;
    uint8_t registers_[8][16][64];
};
#endif

}  // namespace
}  // namespace octavo
