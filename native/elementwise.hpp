// Embedding lookup, norms and the gated activation: one item of work per token, one fixed order per row.
#pragma once

#include "blocks.hpp"
#include "kernels.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

// The values of one block.
template <Encoding encoding>
OCTAVO_INLINE void decode_block(const uint8_t* block, float* out) {
    constexpr Form form = form_of(encoding);
    constexpr HalfPlaces places = half_places(encoding);
    const float d = f16_to_float(read_u16(block + places.scale));
    const float m = form.has_minimum ? f16_to_float(read_u16(block + places.minimum)) : 0.0f;
    for (int g = 0; g < form.block_values / 32; g++) {
        Group group;
        read_group(encoding, block, g, group);
        for (int i = 0; i < 32; i++, out++) {
            const float scale = form.in_superblocks() ? d * float(group.scales[i / 16]) : d;
            const float minimum = form.in_superblocks() ? -(m * float(group.minimums[i / 16])) : m;
            *out = float(group.codes[i] - form.zero) * scale;
            if (form.has_minimum) *out += minimum;
        }
    }
}

template <Encoding encoding>
inline void decode_row(const uint8_t* row, float* out, int64_t width) {
    constexpr Form form = form_of(encoding);
    if constexpr (encoding == Encoding::F32) {
        std::memcpy(out, row, width * sizeof(float));
    } else if constexpr (encoding == Encoding::F16) {
        for (int64_t i = 0; i < width; i++) out[i] = f16_to_float(read_u16(row + 2 * i));
    } else if constexpr (encoding == Encoding::BF16) {
        for (int64_t i = 0; i < width; i++) out[i] = bits_to_float(uint32_t(read_u16(row + 2 * i)) << 16);
    } else {
        for (int64_t i = 0; i < width; i += form.block_values, row += form.block_bytes)
            decode_block<encoding>(row, out + i);
    }
}

inline void embed(const EmbedArgs& args, const StepView& step, Worker& worker) {
    worker.for_each(step.num_tokens, [&](int64_t t) {
        const uint8_t* row = args.table + step.token_ids[t] * args.row_bytes;
        with_encoding(args.encoding, [&](auto encoding) {
            decode_row<encoding.value>(row, args.out.row(t), args.out.width);
        });
    });
}

// The sum of squares, in four interleaved running sums so that additions need not wait for each other.
OCTAVO_INLINE float sum_of_squares(const float* x, int64_t width) {
    F32x16 sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    int64_t i = 0;
    for (; i + 64 <= width; i += 64)
        for (int j = 0; j < 4; j++) {
            const F32x16 v = load(x + i + 16 * j);
            sums[j] = fma(v, v, sums[j]);
        }
    for (int j = 0; i < width; i += 16, j++) {
        const F32x16 v = load_first(x + i, int(width - i < 16 ? width - i : 16));
        sums[j] = fma(v, v, sums[j]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

OCTAVO_INLINE float norm_scale(const float* x, int64_t width, float eps) {
    return 1.0f / __builtin_sqrtf(sum_of_squares(x, width) / float(width) + eps);
}

OCTAVO_INLINE void normalize(const float* x, const float* weight, float eps, int64_t width, float* out) {
    const F32x16 scale = splat(norm_scale(x, width, eps));
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) store(out + i, load(x + i) * scale * load(weight + i));
    if (const int rest = int(width - i))
        store_first(out + i, load_first(x + i, rest) * scale * load_first(weight + i, rest), rest);
}

inline void rms_norm(const NormArgs& args, int num_rows, Worker& worker) {
    worker.for_each(num_rows, [&](int64_t r) {
        normalize(args.in.row(r), args.weight, args.eps, args.in.width, args.out.row(r));
    });
}

inline void head_norm(const HeadNormArgs& args, int num_rows, Worker& worker) {
    worker.for_each(num_rows, [&](int64_t r) {
        const float* in = args.in.row(r);
        float* out = args.out.row(r);
        const int64_t first = int64_t(args.first_head) * args.head_dim;
        const int64_t end = first + int64_t(args.num_heads) * args.head_dim;
        if (out != in) {
            std::memcpy(out, in, first * sizeof(float));
            std::memcpy(out + end, in + end, (args.in.width - end) * sizeof(float));
        }
        for (int64_t i = first; i < end; i += args.head_dim)
            normalize(in + i, args.weight, args.eps, args.head_dim, out + i);
    });
}

OCTAVO_INLINE F32x16 silu(F32x16 x) { return x / (splat(1.0f) + exp(splat(0.0f) - x)); }

inline void silu_mul(const SiluMulArgs& args, int num_rows, Worker& worker) {
    worker.for_each(num_rows, [&](int64_t r) {
        const int64_t width = args.out.width;
        const float *gate = args.gate_up.row(r), *up = gate + width;
        float* out = args.out.row(r);
        int64_t i = 0;
        for (; i + 16 <= width; i += 16) store(out + i, silu(load(gate + i)) * load(up + i));
        if (const int rest = int(width - i))
            store_first(out + i, silu(load_first(gate + i, rest)) * load_first(up + i, rest), rest);
    });
}

}  // namespace
}  // namespace octavo
