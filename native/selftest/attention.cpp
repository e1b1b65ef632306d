// Rotary embedding, the way of K and V into the cache, and attention over it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "selftest.hpp"

namespace octavo::selftest {
namespace {

// K and V of sequences, in blocks scattered over an arena whose unused bytes are all ones: NaN in every float
// format.
struct Cache {
    KVDtype dtype;
    int num_heads, num_kv_heads, head_dim, block_size, sliding_window;
    int64_t table_rows, blocks_per_row;
    std::vector<int32_t> table;
    Bytes arena;

    Cache(KVDtype dtype, int num_heads, int num_kv_heads, int head_dim, int block_size, int sliding_window,
          int64_t table_rows, int max_len)
        : dtype(dtype),
          num_heads(num_heads),
          num_kv_heads(num_kv_heads),
          head_dim(head_dim),
          block_size(block_size),
          sliding_window(sliding_window),
          table_rows(table_rows),
          blocks_per_row((max_len + block_size - 1) / block_size) {
        Random random{uint64_t(block_size)};
        for (int32_t block = 1; block <= table_rows * blocks_per_row; block++) table.push_back(block);
        for (size_t i = table.size() - 1; i > 0; i--) std::swap(table[i], table[random.below(int(i + 1))]);
        arena.assign((table.size() + 1) * frame_bytes(), 0xff);
    }

    int element_bytes() const { return dtype == KVDtype::F32 ? 4 : dtype == KVDtype::BF16 ? 2 : 1; }
    int64_t values_bytes() const { return int64_t(block_size) * head_dim * element_bytes(); }
    int64_t tile_bytes() const {
        return values_bytes() + (dtype == KVDtype::INT8 ? (block_size * 4 + 63) / 64 * 64 : 0);
    }
    int64_t frame_bytes() const { return 2 * num_kv_heads * tile_bytes(); }
    int64_t tile_offset(int kv_head, bool is_v) const { return (2 * kv_head + is_v) * tile_bytes(); }

    CacheView view(const Floats& cos, const Floats& sin) {
        const int half = head_dim / 2;
        CacheView view{arena.data(),
                       int64_t(table.size() + 1),
                       frame_bytes(),
                       num_heads,
                       num_kv_heads,
                       head_dim,
                       1,
                       dtype,
                       cos.data(),
                       sin.data(),
                       int64_t(cos.size()) / half,
                       2 * half,
                       {{block_size, sliding_window, {}, {}}}};
        for (int head = 0; head < num_kv_heads; head++) {
            view.layers[0].k_tiles.push_back({0, tile_offset(head, false)});
            view.layers[0].v_tiles.push_back({0, tile_offset(head, true)});
        }
        return view;
    }

    uint8_t* tile(int row, int position, int kv_head, bool is_v) {
        const int64_t block = table[row * blocks_per_row + position / block_size];
        return arena.data() + block * frame_bytes() + tile_offset(kv_head, is_v);
    }

    // K lies as [slot / 8][byte of the head / 8][slot % 8][8], V as [slot / u][dimension][slot % u], u
    // elements to four bytes.
    int64_t place(int position, int dimension, bool is_v) const {
        const int slot = position % block_size, bytes = element_bytes(), unit = 4 / bytes;
        if (is_v) return ((int64_t(slot / unit) * head_dim + dimension) * unit + slot % unit) * bytes;
        const int64_t byte = int64_t(dimension) * bytes;
        return int64_t(slot / 8) * 8 * head_dim * bytes + byte / 8 * 64 + slot % 8 * 8 + byte % 8;
    }

    void write(int row, int position, int kv_head, bool is_v, const float* values) {
        uint8_t* to = tile(row, position, kv_head, is_v);
        float largest = 0;
        for (int d = 0; d < head_dim; d++) largest = std::max(largest, std::abs(values[d]));
        for (int d = 0; d < head_dim; d++) {
            uint8_t* element = to + place(position, d, is_v);
            if (dtype == KVDtype::F32) {
                std::memcpy(element, &values[d], 4);
            } else if (dtype == KVDtype::BF16) {
                const uint16_t bits = to_bf16(values[d]);
                std::memcpy(element, &bits, 2);
            } else {
                const int byte = int(std::nearbyint(values[d] * (127.0f / largest)));
                *element = uint8_t(is_v ? byte : byte + 128);
            }
        }
        const float scale = largest / 127.0f;
        if (dtype == KVDtype::INT8) std::memcpy(to + values_bytes() + position % block_size * 4, &scale, 4);
    }

    double read(int row, int position, int kv_head, bool is_v, int dimension) {
        const uint8_t* from = tile(row, position, kv_head, is_v);
        const uint8_t* element = from + place(position, dimension, is_v);
        if (dtype == KVDtype::F32) {
            float x;
            std::memcpy(&x, element, 4);
            return x;
        }
        if (dtype == KVDtype::BF16) return bf16_to_float(uint16_t(element[0] | element[1] << 8));
        float scale;
        std::memcpy(&scale, from + values_bytes() + position % block_size * 4, 4);
        return double(scale) * (is_v ? int8_t(*element) : *element - 128);
    }
};

// With int8 KV a head of q becomes bytes as well.
Doubles rounded_query(const float* q, int head_dim, KVDtype dtype) {
    if (dtype != KVDtype::INT8) return Doubles(q, q + head_dim);
    float largest = 0;
    for (int d = 0; d < head_dim; d++) largest = std::max(largest, std::abs(q[d]));
    Doubles rounded;
    for (int d = 0; d < head_dim; d++)
        rounded.push_back(std::nearbyint(q[d] * (127.0f / largest)) * double(largest) / 127);
    return rounded;
}

Doubles attend(Cache& cache, const Step& step, const Floats& q) {
    const int head_dim = cache.head_dim, group = cache.num_heads / cache.num_kv_heads;
    Doubles out(q.size());
    for (int t = 0; t < step.num_tokens(); t++)
        for (int head = 0; head < cache.num_heads; head++) {
            const int row = step.row_of_token[t], last = step.positions[t], kv_head = head / group;
            const int first = cache.sliding_window ? std::max(0, last - cache.sliding_window + 1) : 0;
            const int64_t at = (int64_t(t) * cache.num_heads + head) * head_dim;
            const Doubles query = rounded_query(&q[at], head_dim, cache.dtype);
            Doubles scores;
            for (int j = first; j <= last; j++) {
                double score = 0;
                for (int d = 0; d < head_dim; d++) score += query[d] * cache.read(row, j, kv_head, false, d);
                scores.push_back(score / std::sqrt(double(head_dim)));
            }
            const double largest = *std::max_element(scores.begin(), scores.end());
            double sum = 0;
            for (double& score : scores) sum += score = std::exp(score - largest);
            for (int d = 0; d < head_dim; d++) {
                double value = 0;
                for (int j = first; j <= last; j++)
                    value += scores[j - first] * cache.read(row, j, kv_head, true, d);
                out[at + d] = value / sum;
            }
        }
    return out;
}

// The point at `t` half-turns or so, by arithmetic that is the same everywhere.
void circle(float t, float& cos, float& sin) {
    cos = (1 - t * t) / (1 + t * t);
    sin = 2 * t / (1 + t * t);
}

constexpr KVDtype kDtypes[] = {KVDtype::F32, KVDtype::BF16, KVDtype::INT8};

struct Shape {
    int num_heads, num_kv_heads, head_dim, sliding_window;
};

// Decoding, chunks of a prompt and whole prompts in one step; the first two rows have their blocks in common.
void test_paged_attention(Report& report, const Shape& shape, KVDtype dtype) {
    const std::vector<RowWork> work = {{3, 560, 1}, {0, 558, 3}, {1, 0, 19}, {4, 37, 1}, {2, 100, 40}};
    const Step measured(work, {0}, 1);
    Random random(shape.head_dim);
    const Floats q = random.uniform(measured.num_tokens() * shape.num_heads * shape.head_dim, -3, 3);
    const Floats no_turn(600 * shape.head_dim / 2);
    Floats of_other_size;
    for (const int block_size : {8, 16}) {
        Cache cache(dtype, shape.num_heads, shape.num_kv_heads, shape.head_dim, block_size,
                    shape.sliding_window, 5, 600);
        std::copy_n(cache.table.begin(), cache.blocks_per_row,
                    cache.table.begin() + 3 * cache.blocks_per_row);
        Random values(7);
        for (const auto& [row, context_len, num_tokens] : work) {
            if (row == 3) continue;
            for (int position = 0; position < context_len + num_tokens; position++)
                for (int head = 0; head < shape.num_kv_heads; head++) {
                    cache.write(row, position, head, false, values.uniform(shape.head_dim).data());
                    cache.write(row, position, head, true, values.uniform(shape.head_dim, 0, 2).data());
                }
        }
        const Step step(work, cache.table, cache.table_rows);
        const int width = shape.num_heads * shape.head_dim;
        const std::string what =
            std::string("attention, ") + name_of(dtype) + ", " + std::to_string(shape.num_heads) + "/" +
            std::to_string(shape.num_kv_heads) + " heads of " + std::to_string(shape.head_dim) + ", window " +
            std::to_string(shape.sliding_window) + ", block " + std::to_string(block_size);
        const auto differs = [&](const std::string& isa) { return dtype == KVDtype::BF16 && is_paired(isa); };
        const Floats out = report.compare(
            what, attend(cache, step, q),
            [&](const std::string& isa) {
                return differs(isa) ? 2e-2 : dtype == KVDtype::INT8 ? 5e-4 : 5e-6;
            },
            [&](const Kernels& kernels, int num_threads) {
                return run(kernels, num_threads, cache.view(no_turn, no_turn), step, float_matrix(q, width),
                           width, [](Tape& tape, Value in, Value out) { tape.paged_attention(in, 0, out); });
            },
            differs);
        if (!of_other_size.empty()) report.expect_same(out, of_other_size, what + " as block 8");
        of_other_size = out;
    }
}

// The bytes in the arena are those that the formats say, and no others change.
void test_kv_write(Report& report, KVDtype dtype, int block_size) {
    const int num_heads = 4, num_kv_heads = 2, head_dim = 48, half = head_dim / 2;
    const Cache empty(dtype, num_heads, num_kv_heads, head_dim, block_size, 0, 3, 70);
    const Step step({{1, 5, 30}, {0, 63, 1}, {2, 0, 9}}, empty.table, 3);
    Random random(5);
    Floats cos(70 * half), sin(cos.size());
    for (size_t i = 0; i < cos.size(); i++) circle(random.between(-4, 4), cos[i], sin[i]);
    const int width = (num_heads + 2 * num_kv_heads) * head_dim;
    const Floats qkv = random.uniform(step.num_tokens() * width, -2, 2);

    Cache expected = empty;
    Doubles expected_q;
    for (int t = 0; t < step.num_tokens(); t++)
        for (int head = 0; head < num_heads + 2 * num_kv_heads; head++) {
            const int position = step.positions[t];
            const float* x = &qkv[t * width + head * head_dim];
            Floats turned(x, x + head_dim);
            for (int i = 0; i < half && head < num_heads + num_kv_heads; i++) {
                const float c = cos[position * half + i], s = sin[position * half + i];
                turned[i] = x[i] * c - x[i + half] * s;
                turned[i + half] = x[i + half] * c + x[i] * s;
            }
            if (head < num_heads) {
                expected_q.insert(expected_q.end(), turned.begin(), turned.end());
                continue;
            }
            const bool is_v = head >= num_heads + num_kv_heads;
            expected.write(step.row_of_token[t], position, (head - num_heads) % num_kv_heads, is_v,
                           turned.data());
        }
    const std::string what =
        std::string("K and V written, ") + name_of(dtype) + ", block " + std::to_string(block_size);
    report.compare(what, expected_q, within(1e-6), [&](const Kernels& kernels, int num_threads) {
        Cache cache = empty;
        const Floats q = run(kernels, num_threads, cache.view(cos, sin), step, float_matrix(qkv, width),
                             num_heads * head_dim,
                             [](Tape& tape, Value in, Value out) { tape.rope_and_write(in, 0, out); });
        report.check(cache.arena == expected.arena, what + ": the arena's bytes on " + kernels.isa);
        return q;
    });
}

// A NaN in K makes NaN of the tokens that see it, one in q of its own head, and of nothing else.
void test_not_finite(Report& report, KVDtype dtype) {
    const int num_heads = 2, head_dim = 48, width = (num_heads + 2) * head_dim,
              q_width = num_heads * head_dim;
    const Cache empty(dtype, num_heads, 1, head_dim, 8, 0, 2, 9);
    const Step step({{0, 0, 9}, {1, 0, 5}}, empty.table, 2);
    const Floats cos(9 * head_dim / 2, 1.0f), sin(cos.size(), 0.0f);
    Random random(6);
    Floats qkv = random.uniform(step.num_tokens() * width);
    for (const int dimension : {1, 33}) {
        qkv[3 * width + num_heads * head_dim + dimension] = NAN;
        qkv[11 * width + dimension] = NAN;
    }
    for (const Kernels* kernels : tested_kernels()) {
        Cache cache = empty;
        const Floats out = run(*kernels, 2, cache.view(cos, sin), step, float_matrix(qkv, width), q_width,
                               [&](Tape& tape, Value in, Value out) {
                                   const Value q{kFreeBuffer, q_width, false};
                                   tape.rope_and_write(in, 0, q);
                                   tape.paged_attention(q, 0, out);
                               });
        for (int token = 0; token < step.num_tokens(); token++)
            for (int i = 0; i < q_width; i++) {
                const bool expected = (token >= 3 && token < 9) || (token == 11 && i < head_dim);
                report.check(std::isnan(out[token * q_width + i]) == expected,
                             std::string("NaN of K and of q, ") + name_of(dtype) + " on " + kernels->isa);
            }
    }
}

}  // namespace

void test_attention(Report& report) {
    for (const KVDtype dtype : kDtypes) {
        test_not_finite(report, dtype);
        for (const int block_size : {8, 16}) test_kv_write(report, dtype, block_size);
        for (const Shape& shape : {Shape{6, 2, 32, 0}, Shape{2, 2, 80, 0}, Shape{5, 1, 16, 100}})
            test_paged_attention(report, shape, dtype);
    }
}

}  // namespace octavo::selftest
