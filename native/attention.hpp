// Paged attention: softmax(q K^T) V of every step token over its row's cache, read in place through the block
// tables. Included once per instruction set.
//
// One kernel serves decode, chunked prefill and mixed batches. An item (attention_plan.hpp) is a set of
// queries of one row and a range of keys. It walks the keys in tiles of kTileTokens; for each tile, a few
// queries at a time, it computes all scores, then maximum, weights and their sum, then the weighted sum of
// the values, with the running maximum of the online softmax carried from tile to tile:
//
//     m' = max(m, max s),  l' = l 2^(m - m') + sum 2^(s - m'),  o' = o 2^(m - m') + sum 2^(s - m') v
//
// Scores are in units of ln 2: log2(e) is folded into the queries.
//
// Every query sees the same operations in the same order wherever it is computed. A masked key has weight 0
// and adds exactly nothing, so it makes no difference whether the masked edge of a tile is computed or
// skipped. Slots that hold no token of the row are never used: their scores are replaced before they are
// looked at, and their values by zeros.
#pragma once

#include <limits>

#include "attention_plan.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

// How a kind of KV meets its queries and weights. A line is 64 bytes of a tile: of K, 8 tokens x 8 bytes of
// consecutive dimensions; of V, 16 dimensions x kUnit tokens. It is used as kParts vectors, each of which is
// multiplied with its own operand: 8 bytes of the query, repeated, for K; 4 bytes of the weights for V.

struct Float32KV {
    static constexpr int kElementBytes = 4, kUnit = 1, kParts = 1, kWeightBytes = 4;
    OCTAVO_INLINE static F32x16 load_part(const uint8_t* line, int) {
        return load(reinterpret_cast<const float*>(line));
    }
    OCTAVO_INLINE static F32x16 multiply(F32x16 sum, F32x16 part, I32x16 operand) {
        return fma(part, as_float(operand), sum);
    }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands) {
        auto* out = reinterpret_cast<float*>(operands);
        for (int d = 0; d < head_dim; ++d) out[d] = q[d] * scale;
    }
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        store(reinterpret_cast<float*>(out), weights);
        return weights;
    }
};

// Each bfloat16 is widened, and everything else stays float32.
struct WideBFloat16KV {
    static constexpr int kElementBytes = 2, kUnit = 2, kParts = 2, kWeightBytes = 4;
    OCTAVO_INLINE static F32x16 load_part(const uint8_t* line, int part) {
        return part ? high_bf16(load_words(line)) : low_bf16(load_words(line));
    }
    OCTAVO_INLINE static F32x16 multiply(F32x16 sum, F32x16 part, I32x16 operand) {
        return fma(part, as_float(operand), sum);
    }
    // Of each four dimensions the low halves' two, then the high halves'.
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands) {
        auto* out = reinterpret_cast<float*>(operands);
        for (int d = 0; d < head_dim; d += 4) {
            out[d] = q[d] * scale;
            out[d + 1] = q[d + 2] * scale;
            out[d + 2] = q[d + 1] * scale;
            out[d + 3] = q[d + 3] * scale;
        }
    }
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        store(reinterpret_cast<float*>(out), weights);
        return weights;
    }
};

// Products of bfloat16 pairs: queries and weights are rounded too. The sum of the weights is that of the
// rounded ones, so that they are a true average: where all values are the same, so is the result.
struct PairedBFloat16KV {
    static constexpr int kElementBytes = 2, kUnit = 2, kParts = 1, kWeightBytes = 2;
    OCTAVO_INLINE static I32x16 load_part(const uint8_t* line, int) { return load_words(line); }
    OCTAVO_INLINE static F32x16 multiply(F32x16 sum, I32x16 part, I32x16 operand) {
        return dot_bf16(sum, part, operand);
    }
    static void lay_out_query(const float* q, float scale, int head_dim, uint8_t* operands) {
        for (int d = 0; d < head_dim; d += 16) store_bf16(operands + 2 * d, load(q + d) * splat(scale));
    }
    OCTAVO_INLINE static F32x16 store_weights(uint8_t* out, F32x16 weights) {
        store_bf16(out, weights);
        return as_float(round_bf16(weights) & splat(int32_t(0xffff0000)));
    }
};

template <bool paired>
struct ChooseBFloat16KV {
    using type = WideBFloat16KV;
};
template <>
struct ChooseBFloat16KV<true> {
    using type = PairedBFloat16KV;
};
using BFloat16KV = ChooseBFloat16KV<kHasBf16Dot>::type;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kTileOctets = kTileTokens / 8;
constexpr int kTilesPerPartition = kPartitionTokens / kTileTokens;

// Queries that share each load of K and V, and octets of keys or vectors of values that share each load of an
// operand: as many as the registers hold.
constexpr int kBlockQueries = kNumVectors >= 32 ? 6 : 2;
constexpr int kBlockColumns = kNumVectors >= 32 ? 4 : 2;

// Where the octets of a tile lie: each is 8 tokens, 8 * D * s contiguous bytes of K and as many of V.
struct TilePointers {
    const uint8_t *k[kTileOctets], *v[kTileOctets];
};

OCTAVO_INLINE int smaller(int a, int b) { return a < b ? a : b; }
OCTAVO_INLINE int larger(int a, int b) { return a > b ? a : b; }
OCTAVO_INLINE int limit(int x, int low, int high) { return larger(low, smaller(x, high)); }

template <int n>
struct Count {
    static constexpr int value = n;
};

// f(Count<n>) for n in 1..6.
template <class F>
OCTAVO_INLINE void with_count(int n, F&& f) {
    switch (n) {
        case 1:
            return f(Count<1>{});
        case 2:
            return f(Count<2>{});
        case 3:
            return f(Count<3>{});
        case 4:
            return f(Count<4>{});
        case 5:
            return f(Count<5>{});
        case 6:
            return f(Count<6>{});
    }
}

// scores[r][0 : 8 C] of R queries against C octets of keys. `ahead`: C octets to fetch meanwhile, or null.
template <class KV, int R, int C>
void score_block(const uint8_t* operands, int64_t operand_stride, const uint8_t* const* k, int num_lines,
                 float* scores, const uint8_t* const* ahead) {
    F32x16 acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = splat(0.0f);
    for (int line = 0; line < num_lines; ++line) {
        if (ahead)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) prefetch_l2(ahead[c] + line * 64);
#pragma GCC unroll 2
        for (int part = 0; part < KV::kParts; ++part) {
            decltype(KV::load_part(k[0], 0)) keys[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) keys[c] = KV::load_part(k[c] + line * 64, part);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const I32x16 operand = splat_8_bytes(operands + r * operand_stride + part * 8);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) acc[r][c] = KV::multiply(acc[r][c], keys[c], operand);
            }
        }
        operands += KV::kParts * 8;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; c += 2)
            store(scores + r * kTileTokens + c * 8, add_neighbours(acc[r][c], acc[r][c + 1]));
}

// values[r][0 : 16 C] = values * decay[r] + weights[r] V, over octets of tokens and C vectors of dimensions.
// `ahead`: as many octets to fetch meanwhile, or null.
template <class KV, int R, int C>
void value_block(const uint8_t* weights, const float* decay, const uint8_t* const* v, int num_octets,
                 int first_vector, int head_dim, float* values, const uint8_t* const* ahead) {
    const int64_t unit_bytes = int64_t{head_dim} * 4;
    F32x16 acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = load(values + r * head_dim + c * 16) * splat(decay[r]);
    for (int octet = 0; octet < num_octets; ++octet) {
        const uint8_t* lines = v[octet] + first_vector * 64;
        const uint8_t* ahead_lines = ahead ? ahead[octet] + first_vector * 64 : nullptr;
        for (int unit = 0; unit < 8 / KV::kUnit; ++unit, lines += unit_bytes) {
            if (ahead) {
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) prefetch_l2(ahead_lines + c * 64);
                ahead_lines += unit_bytes;
            }
#pragma GCC unroll 2
            for (int part = 0; part < KV::kParts; ++part, weights += 4) {
                decltype(KV::load_part(lines, 0)) vectors[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) vectors[c] = KV::load_part(lines + c * 64, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const I32x16 operand = splat_4_bytes(weights + r * kTileTokens * KV::kWeightBytes);
#pragma GCC unroll 8
                    for (int c = 0; c < C; ++c) acc[r][c] = KV::multiply(acc[r][c], vectors[c], operand);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) store(values + r * head_dim + c * 16, acc[r][c]);
}

// (max, sum, values) and (total_max, total_sum, totals) are sums of weights and of weighted values relative
// to their own maximal score: adds the first to the second.
inline void merge_partition(float max_score, float sum, const float* values, float* total_max,
                            float* total_sum, float* totals, int head_dim) {
    const float new_max = *total_max > max_score ? *total_max : max_score;
    const float base = new_max == kMinusInfinity ? 0.0f : new_max;
    const F32x16 decay = exp2(splat(*total_max - base)), weight = exp2(splat(max_score - base));
    float new_sum[16];
    store(new_sum, fma(splat(sum), weight, splat(*total_sum) * decay));
    *total_max = new_max;
    *total_sum = new_sum[0];
    for (int d = 0; d < head_dim; d += 16)
        store(totals + d, fma(load(values + d), weight, load(totals + d) * decay));
}

// Adding 0 turns the -0 of an underflow into 0, which is what it would have been had a masked key come after.
inline void write_average(const float* totals, float sum, float* out, int head_dim) {
    const F32x16 factor = splat(1.0f / sum);
    for (int d = 0; d < head_dim; d += 16) store(out + d, load(totals + d) * factor + splat(0.0f));
}

// One item of one KV head: its queries, in the order [token][query head of the group], over its partitions.
template <class KV>
class ItemRun {
  public:
    ItemRun(const AttentionArgs& a, const StepView& step, const AttentionItem& item, int kv_head,
            const AttentionScratch& scratch)
        : a_(a),
          item_(item),
          s_(scratch),
          head_dim_(a.window.head_dim),
          group_(a.num_heads / a.window.num_kv_heads),
          first_head_(kv_head * group_),
          num_queries_(item.num_tokens * group_),
          first_position_(step.positions[item.first_token]),
          operand_stride_(head_dim_ * KV::kWeightBytes),
          k_(locate(step, a.window.k_tiles[kv_head])),
          v_(locate(step, a.window.v_tiles[kv_head])) {}

    void run() {
        for (int q = 0; q < num_queries_; ++q)
            KV::lay_out_query(a_.q.row(token(q)) + head(q) * head_dim_, a_.scale * 1.44269504f, head_dim_,
                              s_.operands + q * operand_stride_);
        const int end_position = first_position_ + item_.num_tokens;
        const int end_tile =
            smaller((end_position - 1) / kTileTokens + 1, item_.part_end * kTilesPerPartition);
        int tile = larger(first_key(first_position_) / kTileTokens, item_.part_begin * kTilesPerPartition);
        TilePointers pointers[2];
        find_octets(tile, end_position, pointers[tile % 2]);
        for (int part = item_.part_begin; part < item_.part_end; ++part) {
            clear();
            for (; tile < smaller(end_tile, (part + 1) * kTilesPerPartition); ++tile) {
                const bool more = tile + 1 < end_tile;
                TilePointers& next = pointers[(tile + 1) % 2];
                if (more) find_octets(tile + 1, end_position, next);
                run_tile(tile, pointers[tile % 2], more ? next.k : nullptr);
            }
            if (item_.partial < 0)
                merge(part == item_.part_begin);
            else
                save(part);
        }
        if (item_.partial < 0)
            for (int q = 0; q < num_queries_; ++q)
                write_average(s_.totals + q * head_dim_, s_.total_sum[q],
                              a_.out.row(token(q)) + head(q) * head_dim_, head_dim_);
    }

  private:
    struct Location {
        const int32_t* blocks;
        const uint8_t* base;
    };

    Location locate(const StepView& step, const TileAddress& address) const {
        const BlockTable& table = step.tables[address.table];
        return {table.data + item_.row * table.stride, a_.window.arena + address.offset};
    }

    int token(int query) const { return item_.first_token + query / group_; }
    int head(int query) const { return first_head_ + query % group_; }
    int first_key(int position) const {
        return a_.sliding_window ? larger(0, position - a_.sliding_window + 1) : 0;
    }

    // Pointers to the octets of a tile that hold keys of the item; the others repeat their neighbours.
    void find_octets(int tile, int end_position, TilePointers& p) const {
        const int base = tile * kTileTokens;
        const int begin = limit(first_key(first_position_) - base, 0, kTileTokens - 1) / 8;
        const int end = (limit(end_position - base, 1, kTileTokens) + 7) / 8;
        const int octets_per_block = a_.window.block_size / 8;
        const int64_t octet_bytes = int64_t{8} * head_dim_ * KV::kElementBytes;
        int block = (base / 8 + begin) / octets_per_block, inside = (base / 8 + begin) % octets_per_block;
        for (int octet = begin; octet < end; ++octet) {
            p.k[octet] = k_.base + k_.blocks[block] * a_.window.frame_bytes + inside * octet_bytes;
            p.v[octet] = v_.base + v_.blocks[block] * a_.window.frame_bytes + inside * octet_bytes;
            if (++inside == octets_per_block) inside = 0, ++block;
        }
        for (int octet = 0; octet < begin; ++octet) p.k[octet] = p.k[begin], p.v[octet] = p.v[begin];
        for (int octet = end; octet < kTileOctets; ++octet)
            p.k[octet] = p.k[end - 1], p.v[octet] = p.v[end - 1];
    }

    void clear() {
        for (int q = 0; q < num_queries_; ++q) {
            s_.max[q] = kMinusInfinity;
            store(s_.sums + q * 16, splat(0.0f));
            for (int d = 0; d < head_dim_; d += 16) store(s_.values + q * head_dim_ + d, splat(0.0f));
        }
    }

    // `next_k`: the K of the tile that comes next, to be fetched meanwhile, or null.
    void run_tile(int tile, const TilePointers& pointers, const uint8_t* const* next_k) {
        const int base = tile * kTileTokens;
        const int num_blocks = (num_queries_ + kBlockQueries - 1) / kBlockQueries;
        const int block_queries = (num_queries_ + num_blocks - 1) / num_blocks;
        const uint8_t* const* ahead_v = pointers.v;
        for (int query = 0; query < num_queries_; query += block_queries) {
            const int count = smaller(block_queries, num_queries_ - query);
            const int first = first_position_ + query / group_;
            const int last = first_position_ + (query + count - 1) / group_;
            const int begin = limit(first_key(first) - base, 0, kTileTokens);
            const int end = limit(last + 1 - base, 0, kTileTokens);
            if (begin >= end) continue;
            run_block(query, count, base, begin, end, pointers, ahead_v, next_k);
            ahead_v = next_k = nullptr;  // once is enough
        }
    }

    // A few queries against keys [begin, end) of the tile at `base`.
    void run_block(int query, int count, int base, int begin, int end, const TilePointers& pointers,
                   const uint8_t* const* ahead_v, const uint8_t* const* next_k) {
        const int first_octet = begin / 8, end_octet = (end + 7) / 8;
        const int first_vector = first_octet / 2, end_vector = (end_octet + 1) / 2;
        const int num_lines = head_dim_ * KV::kElementBytes / 8;
        with_count(count, [&](auto n) {
            constexpr int R = decltype(n)::value <= kBlockQueries ? decltype(n)::value : 1;
            const uint8_t* operands = s_.operands + query * operand_stride_;
            int octet = first_vector * 2;
            for (; octet + kBlockColumns <= end_vector * 2; octet += kBlockColumns)
                score_block<KV, R, kBlockColumns>(operands, operand_stride_, pointers.k + octet, num_lines,
                                                  s_.scores + octet * 8, ahead_v ? ahead_v + octet : nullptr);
            if (octet < end_vector * 2)
                score_block<KV, R, 2>(operands, operand_stride_, pointers.k + octet, num_lines,
                                      s_.scores + octet * 8, ahead_v ? ahead_v + octet : nullptr);
        });
        mask(query, count, base, first_vector * 16, end_vector * 16);
        alignas(64) float decay[16] = {};
        weigh(query, count, first_vector, end_vector, decay);

        const uint8_t* const* v = pointers.v;
        const uint8_t* v_with_tail[kTileOctets];
        if (end % 8) {
            for (int octet = first_octet; octet < end_octet; ++octet) v_with_tail[octet] = v[octet];
            copy_tail(v[end_octet - 1], end % 8);
            v_with_tail[end_octet - 1] = s_.v_tail;
            v = v_with_tail;
        }
        const auto* weights =
            reinterpret_cast<const uint8_t*>(s_.weights) + first_octet * 8 * KV::kWeightBytes;
        with_count(count, [&](auto n) {
            constexpr int R = decltype(n)::value <= kBlockQueries ? decltype(n)::value : 1;
            for (int vector = 0; vector < head_dim_ / 16;) {
                const int columns = smaller(kBlockColumns, head_dim_ / 16 - vector);
                with_count(columns, [&](auto m) {
                    constexpr int C = decltype(m)::value <= kBlockColumns ? decltype(m)::value : 1;
                    value_block<KV, R, C>(weights, decay, v + first_octet, end_octet - first_octet, vector,
                                          head_dim_, s_.values + query * head_dim_ + vector * 16,
                                          next_k ? next_k + first_octet : nullptr);
                });
                vector += columns;
            }
        });
    }

    // Scores [begin, end) were computed; those that a query may not see become -infinity.
    void mask(int query, int count, int base, int begin, int end) {
        for (int r = 0; r < count; ++r) {
            const int position = first_position_ + (query + r) / group_;
            float* scores = s_.scores + r * kTileTokens;
            for (int i = begin; i < smaller(end, first_key(position) - base); ++i) scores[i] = kMinusInfinity;
            for (int i = larger(begin, position + 1 - base); i < end; ++i) scores[i] = kMinusInfinity;
        }
    }

    // Scores to weights, relative to the running maximum; decay[r] is what the results so far are to be
    // multiplied with.
    void weigh(int query, int count, int first_vector, int end_vector, float* decay) {
        float base[kBlockQueries];
        for (int r = 0; r < count; ++r) {
            F32x16 top = splat(kMinusInfinity);
            for (int i = first_vector; i < end_vector; ++i)
                top = max(top, load(s_.scores + r * kTileTokens + i * 16));
            float& running = s_.max[query + r];
            const float tile_max = max_lane(top), new_max = running > tile_max ? running : tile_max;
            base[r] = new_max == kMinusInfinity ? 0.0f : new_max;
            decay[r] = running - base[r];
            running = new_max;
        }
        store(decay, exp2(load(decay)));
        for (int r = 0; r < count; ++r) {
            float* const sums = s_.sums + (query + r) * 16;
            auto* weights = reinterpret_cast<uint8_t*>(s_.weights) + r * kTileTokens * KV::kWeightBytes;
            F32x16 sum = load(sums) * splat(decay[r]);
            for (int i = first_vector; i < end_vector; ++i) {
                const F32x16 score = load(s_.scores + r * kTileTokens + i * 16);
                sum = sum +
                      KV::store_weights(weights + i * 16 * KV::kWeightBytes, exp2(score - splat(base[r])));
            }
            store(sums, sum);
        }
    }

    // The first `count` tokens of an octet of V to v_tail, and zeros for the rest.
    void copy_tail(const uint8_t* octet, int count) {
        for (int line = 0; line < 8 / KV::kUnit * head_dim_ / 16; ++line) {
            const int held = limit(count - line / (head_dim_ / 16) * KV::kUnit, 0, KV::kUnit);
            const int32_t kept = held == KV::kUnit ? -1 : held == 0 ? 0 : 0xffff;
            store_words(s_.v_tail + line * 64, load_words(octet + line * 64) & splat(kept));
        }
    }

    void merge(bool first) {
        for (int q = 0; q < num_queries_; ++q) {
            const float total = sum(load(s_.sums + q * 16));
            const float* values = s_.values + q * head_dim_;
            float* totals = s_.totals + q * head_dim_;
            if (first) {
                s_.total_max[q] = s_.max[q];
                s_.total_sum[q] = total;
                for (int d = 0; d < head_dim_; d += 16) store(totals + d, load(values + d));
            } else {
                merge_partition(s_.max[q], total, values, s_.total_max + q, s_.total_sum + q, totals,
                                head_dim_);
            }
        }
    }

    void save(int part) {
        for (int q = 0; q < num_queries_; ++q) {
            const int64_t index =
                item_.partial + int64_t{q / group_} * item_.num_parts + part - item_.part_begin;
            float* partial = a_.plan->partial(index, head(q));
            partial[0] = s_.max[q];
            partial[1] = sum(load(s_.sums + q * 16));
            for (int d = 0; d < head_dim_; d += 16)
                store(partial + 16 + d, load(s_.values + q * head_dim_ + d));
        }
    }

    const AttentionArgs& a_;
    const AttentionItem& item_;
    const AttentionScratch& s_;
    int head_dim_, group_, first_head_, num_queries_, first_position_;
    int64_t operand_stride_;
    Location k_, v_;
};

// Queries whose partitions were spread over several items: one head of each of their tokens. The first
// partial result is the total of all.
inline void merge_partials(const AttentionArgs& a, const AttentionMerge& merge, int head) {
    const int head_dim = a.window.head_dim;
    for (int t = 0; t < merge.num_tokens; ++t) {
        const int64_t index = merge.partial + int64_t{t} * merge.num_parts;
        float* total = a.plan->partial(index, head);
        for (int part = 1; part < merge.num_parts; ++part) {
            const float* partial = a.plan->partial(index + part, head);
            merge_partition(partial[0], partial[1], partial + 16, total, total + 1, total + 16, head_dim);
        }
        write_average(total + 16, total[1], a.out.row(merge.first_token + t) + head * head_dim, head_dim);
    }
}

// See Ops.paged_attention. The K and V of the step's own tokens are already in the cache.
inline void paged_attention(const AttentionArgs& a, const StepView& step, Worker& worker) {
    const AttentionPlan::Work work = a.plan->work();
    const AttentionScratch& scratch = a.plan->scratch(worker.id());
    const int num_kv_heads = a.window.num_kv_heads;
    worker.for_each(work.num_items * num_kv_heads, [&](int64_t i) {
        const AttentionItem& item = work.items[i / num_kv_heads];
        const int kv_head = static_cast<int>(i % num_kv_heads);
        if (a.window.dtype == KVDtype::F32)
            ItemRun<Float32KV>(a, step, item, kv_head, scratch).run();
        else
            ItemRun<BFloat16KV>(a, step, item, kv_head, scratch).run();
    });
    if (work.num_merges == 0) return;
    worker.for_each(work.num_merges * a.num_heads, [&](int64_t i) {
        merge_partials(a, work.merges[i / a.num_heads], static_cast<int>(i % a.num_heads));
    });
}

}  // namespace
}  // namespace octavo
