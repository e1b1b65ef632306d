// Rotary embedding of q and k, and the way of new K and V into their tiles. Included once per instruction
// set.
#pragma once

#include "kernels.hpp"
#include "quantize.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

// Dimension i turns with i + half; from 2 * half on they are copied. `out` may be `in`.
inline void rotate_head(const float* in, float* out, const float* cos, const float* sin, int half,
                        int head_dim) {
    for (int i = 0; i < half; i += 16) {
        const int n = smaller(half - i, 16);
        const F32x16 first = load_first(in + i, n), second = load_first(in + half + i, n);
        const F32x16 c = load_first(cos + i, n), s = load_first(sin + i, n);
        store_first(out + i, first * c - second * s, n);
        store_first(out + half + i, second * c + first * s, n);
    }
    if (out != in) std::memcpy(out + 2 * half, in + 2 * half, (head_dim - 2 * half) * sizeof(float));
}

inline void encode(const float* in, uint16_t* out, int n) {
    for (int i = 0; i < n; i += 16) store_bf16(out + i, load(in + i));
}
struct Half {
    uint16_t bits;
};
// What a float16 cannot hold, infinities too, becomes the largest that it can; a NaN stays one.
inline void encode(const float* in, Half* out, int n) {
    for (int i = 0; i < n; i += 16)
        store_f16(out + i, max(splat(-65504.0f), min(splat(65504.0f), load(in + i))));
}
inline void encode(const float* in, float* out, int n) { std::memcpy(out, in, n * sizeof(float)); }

// Where the slot of a row's position lies: the tile of its block, and the token's index in it.
inline uint8_t* find_tile(const LayerWindow& window, const BlockTable* tables, int row, int position,
                          TileAddress address) {
    const BlockTable& table = tables[address.table];
    const int64_t block = table.data[row * table.stride + position / window.block_size];
    return window.arena + block * window.frame_bytes + address.offset;
}

// K tile: [P / 8][D * s / 8][8 tokens][8 bytes].
template <class Element>
void write_k(uint8_t* tile, int slot, const Element* values, int head_dim) {
    const int num_bytes = head_dim * static_cast<int>(sizeof(Element));
    uint8_t* line = tile + int64_t{slot / 8} * 8 * num_bytes + slot % 8 * 8;
    const auto* bytes = reinterpret_cast<const uint8_t*>(values);
    for (int i = 0; i < num_bytes; i += 8, line += 64) std::memcpy(line, bytes + i, 8);
}

// V tile: [P / u][D][u]. Neighbouring tokens of a unit are distinct memory locations, so they may be written
// by different workers.
template <class Element>
void write_v(uint8_t* tile, int slot, const Element* values, int head_dim) {
    constexpr int unit = 4 / sizeof(Element);
    auto* out = reinterpret_cast<Element*>(tile) + int64_t{slot / unit} * unit * head_dim + slot % unit;
    for (int d = 0; d < head_dim; ++d) out[d * unit] = values[d];
}

// Rounds a head of K or V to what the tile holds and writes it to a slot.
template <class Element>
void write_head(uint8_t* tile, int slot, const LayerWindow& window, const float* values, bool is_k) {
    const int head_dim = window.head_dim;
    alignas(64) Element encoded[kMaxHeadDim + 16];
    if constexpr (sizeof(Element) == 1) {
        int32_t total;
        const float scale = quantize_head(values, head_dim, reinterpret_cast<int8_t*>(encoded), total);
        if (is_k)
            for (int d = 0; d < head_dim; ++d) encoded[d] ^= 0x80;  // adds 128
        std::memcpy(tile + int64_t{window.block_size} * head_dim + slot * 4, &scale, 4);
    } else {
        encode(values, encoded, head_dim);
    }
    is_k ? write_k(tile, slot, encoded, head_dim) : write_v(tile, slot, encoded, head_dim);
}

template <class Element>
void rope_and_write_token(const RopeWriteArgs& a, const StepView& step, int token, int row) {
    const int head_dim = a.window.head_dim, half = a.rotary_dim / 2;
    const int position = step.positions[token], slot = position % a.window.block_size;
    const float *cos = a.cos + int64_t{position} * half, *sin = a.sin + int64_t{position} * half;
    const float* q = a.qkv.row(token);
    const float* k = q + int64_t{a.num_heads} * head_dim;
    const float* v = k + int64_t{a.window.num_kv_heads} * head_dim;
    for (int h = 0; h < a.num_heads; ++h)
        rotate_head(q + h * head_dim, a.q_out.row(token) + h * head_dim, cos, sin, half, head_dim);
    alignas(64) float rotated[kMaxHeadDim];
    for (int h = 0; h < a.window.num_kv_heads; ++h) {
        rotate_head(k + h * head_dim, rotated, cos, sin, half, head_dim);
        uint8_t* k_tile = find_tile(a.window, step.tables, row, position, a.window.k_tiles[h]);
        uint8_t* v_tile = find_tile(a.window, step.tables, row, position, a.window.v_tiles[h]);
        write_head<Element>(k_tile, slot, a.window, rotated, true);
        write_head<Element>(v_tile, slot, a.window, v + h * head_dim, false);
    }
}

// Which of the step's rows a token belongs to.
inline int find_row(const StepView& step, int token) {
    int low = 0, high = step.num_rows;  // query_start[low] <= token < query_start[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (step.query_start[middle] <= token ? low : high) = middle;
    }
    return low;
}

// See Ops.rope_and_write. q_out may be the q part of qkv. head_dim is at most 256.
inline void rope_and_write(const RopeWriteArgs& a, const StepView& step, Worker& worker) {
    const int spread = step.num_tokens / (4 * worker.count());
    const int chunk = spread < 1 ? 1 : spread > 16 ? 16 : spread;
    void (*write_token)(const RopeWriteArgs&, const StepView&, int, int) = nullptr;
    switch (a.window.dtype) {
        case KVDtype::F32:
            write_token = rope_and_write_token<float>;
            break;
        case KVDtype::BF16:
            write_token = rope_and_write_token<uint16_t>;
            break;
        case KVDtype::F16:
            write_token = rope_and_write_token<Half>;
            break;
        case KVDtype::INT8:
            write_token = rope_and_write_token<uint8_t>;
            break;
    }
    worker.for_each((step.num_tokens + chunk - 1) / chunk, [&](int64_t item) {
        const int first = static_cast<int>(item) * chunk;
        int i = find_row(step, first);
        for (int token = first; token < first + chunk && token < step.num_tokens; ++token) {
            if (step.query_start[i + 1] <= token) ++i;
            write_token(a, step, token, step.rows[i]);
        }
    });
}

}  // namespace
}  // namespace octavo
