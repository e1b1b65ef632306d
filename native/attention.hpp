// Paged attention: softmax(q K^T) V of every step token over its row's cache, read in place through the block
// tables. Included once per instruction set.
//
// One kernel serves decode, chunked prefill and mixed batches. An item (attention_plan.hpp) is some queries
// and a range of keys. It walks the keys in tiles of kTileTokens; for each tile, a few queries at a time, it
// computes all scores, then maximum, weights and their sum, then the weighted sum of the values, with the
// running maximum of the online softmax carried from tile to tile:
//
//     m' = max(m, max s),  l' = l 2^(m - m') + sum 2^(s - m'),  o' = o 2^(m - m') + sum 2^(s - m') v
//
// Scores are in units of ln 2: log2(e) is folded into the queries.
//
// Every query sees the same operations in the same order wherever it is computed. A masked key has weight 0
// and adds exactly nothing, so it makes no difference whether the masked edge of a tile is computed or
// skipped. Slots that hold no token of the row are never used: their scores are replaced before they are
// looked at, and their values by zeros. Nor does a V that is not finite reach a query that does not see it:
// 0 times infinity is no 0, so where there is one at the edge, tokens are computed one by one, and what each
// does not see is taken for zeros too.
#pragma once

#include <limits>

#include "attention_blocks.hpp"
#include "attention_kv.hpp"
#include "attention_plan.hpp"

namespace octavo {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kTileOctets = kTileTokens / 8;
constexpr int kTilesPerPartition = kPartitionTokens / kTileTokens;

// Oldest position that one at `position` sees.
OCTAVO_INLINE int first_key(int position, int sliding_window) {
    return sliding_window ? larger(0, position - sliding_window + 1) : 0;
}

// Where the octets of a tile lie: each is 8 tokens, 8 * D * s contiguous bytes of K and as many of V. Scales,
// if any, are 8 floats for each octet, behind the block's K or V.
struct TilePointers {
    const uint8_t *k[kTileOctets], *v[kTileOctets];
    const float *k_scales[kTileOctets], *v_scales[kTileOctets];
};

// The keys of an item, for one KV head.
template <class KV>
struct ItemKeys {
    ItemKeys(const AttentionArgs& a, const StepView& step, const AttentionWork& work,
             const AttentionItem& item, int kv_head)
        : window(a.window),
          k(locate(step, item, a.window.k_tiles[kv_head])),
          v(locate(step, item, a.window.v_tiles[kv_head])) {
        const int32_t* tokens = work.tokens + item.first_token;
        begin = larger(first_key(step.positions[tokens[0]], a.sliding_window),
                       item.part_begin * kPartitionTokens);
        end = smaller(step.positions[tokens[item.num_tokens - 1]] + 1, item.part_end * kPartitionTokens);
    }

    int first_tile() const { return begin / kTileTokens; }
    int end_tile() const { return (end + kTileTokens - 1) / kTileTokens; }

    // Octets of a tile that hold none of the keys repeat their neighbours.
    void find(int tile, TilePointers& p) const {
        const int base = tile * kTileTokens;
        const int first = larger(begin - base, 0) / 8, last = (smaller(end - base, kTileTokens) - 1) / 8;
        const int octets_per_block = window.block_size / 8;
        const int64_t octet_bytes = int64_t{8} * window.head_dim * KV::kElementBytes;
        int block = (base / 8 + first) / octets_per_block, inside = (base / 8 + first) % octets_per_block;
        for (int octet = first; octet <= last; ++block, inside = 0) {
            const uint8_t* k_tile = k.base + k.blocks[block] * window.frame_bytes;
            const uint8_t* v_tile = v.base + v.blocks[block] * window.frame_bytes;
            const int stop = smaller(last + 1, octet + octets_per_block - inside);
            for (; octet < stop; ++octet, ++inside) {
                p.k[octet] = k_tile + inside * octet_bytes;
                p.v[octet] = v_tile + inside * octet_bytes;
                if constexpr (KV::kScaled) {
                    const int64_t scales = octets_per_block * octet_bytes + inside * 32;
                    p.k_scales[octet] = reinterpret_cast<const float*>(k_tile + scales);
                    p.v_scales[octet] = reinterpret_cast<const float*>(v_tile + scales);
                    prefetch_l2(p.k_scales[octet]);
                    prefetch_l2(p.v_scales[octet]);
                }
            }
        }
        for (int octet = 0; octet < first; ++octet) copy_octet(p, first, octet);
        for (int octet = last + 1; octet < kTileOctets; ++octet) copy_octet(p, last, octet);
    }

    static void copy_octet(TilePointers& p, int from, int to) {
        p.k[to] = p.k[from];
        p.v[to] = p.v[from];
        if constexpr (KV::kScaled) {
            p.k_scales[to] = p.k_scales[from];
            p.v_scales[to] = p.v_scales[from];
        }
    }

    struct Location {
        const int32_t* blocks;
        const uint8_t* base;
    };
    Location locate(const StepView& step, const AttentionItem& item, const TileAddress& address) const {
        const BlockTable& table = step.tables[address.table];
        return {table.data + item.row * table.stride, window.arena + address.offset};
    }

    const LayerWindow& window;
    Location k, v;
    int begin, end;  // tokens
};

// (max, sum, values) and (total_max, total_sum, totals) are sums of weights and of weighted values, relative
// to their own maximal scores: adds the first to the second.
inline void merge_partition(float max_score, float sum, const float* values, float& total_max,
                            float& total_sum, float* totals, int head_dim) {
    const float new_max = total_max > max_score ? total_max : max_score;
    const float base = new_max == kMinusInfinity ? 0.0f : new_max;
    const F32x16 decay = exp2(splat(total_max - base)), weight = exp2(splat(max_score - base));
    float new_sum[16];
    store(new_sum, fma(splat(sum), weight, splat(total_sum) * decay));
    total_max = new_max;
    total_sum = new_sum[0];
    for (int d = 0; d < head_dim; d += 16)
        store(totals + d, fma(load(values + d), weight, load(totals + d) * decay));
}

// Adding 0 turns the -0 of an underflow into 0, which is what it would be had a masked key come after.
inline void write_average(const float* totals, float sum, float* out, int head_dim) {
    const F32x16 factor = splat(1.0f / sum);
    for (int d = 0; d < head_dim; d += 16) store(out + d, load(totals + d) * factor + splat(0.0f));
}

// One item of one KV head. Its queries are numbered [token][query head of the group].
template <class KV>
class ItemRun {
  public:
    ItemRun(const AttentionArgs& a, const StepView& step, const AttentionWork& work,
            const AttentionItem& item, int kv_head, const AttentionScratch& scratch)
        : a_(a),
          step_(step),
          work_(work),
          item_(item),
          s_(scratch),
          keys_(a, step, work, item, kv_head),
          head_dim_(a.window.head_dim),
          group_(a.num_heads / a.window.num_kv_heads),
          first_head_(kv_head * group_),
          num_queries_(item.num_tokens * group_),
          operand_stride_((head_dim_ * KV::kOperandBytes + 63) / 64 * 64),
          max_(scratch.max),
          values_(scratch.values),
          total_max_(scratch.total_max),
          totals_(scratch.totals) {}

    const ItemKeys<KV>& keys() const { return keys_; }

    // `next`: what this worker will probably do afterwards, or null.
    void run(const ItemKeys<KV>* next) {
        for (int q = 0; q < num_queries_; ++q)
            KV::lay_out_query(a_.q.row(token(q)) + head(q) * head_dim_, a_.scale * 1.44269504f, head_dim_,
                              s_.operands + q * operand_stride_, s_.query_scales[q]);
        int tile = keys_.first_tile();
        const int end_tile = keys_.end_tile();
        TilePointers pointers[2];
        keys_.find(tile, pointers[tile % 2]);
        for (int part = item_.part_begin; part < item_.part_end; ++part) {
            clear();
            for (; tile < smaller(end_tile, (part + 1) * kTilesPerPartition); ++tile) {
                TilePointers& ahead = pointers[(tile + 1) % 2];
                if (tile + 1 < end_tile)
                    keys_.find(tile + 1, ahead);
                else if (next)
                    next->find(next->first_tile(), ahead);
                run_tile(tile, pointers[tile % 2], tile + 1 < end_tile || next ? ahead.k : nullptr);
            }
            item_.whole ? merge(part == item_.part_begin) : save(part);
        }
        if (item_.whole)
            for (int q = 0; q < num_queries_; ++q)
                write_average(totals_ + q * head_dim_, s_.total_sum[q],
                              a_.out.row(token(q)) + head(q) * head_dim_, head_dim_);
    }

  private:
    int token(int query) const { return work_.tokens[item_.first_token + query / group_]; }
    int head(int query) const { return first_head_ + query % group_; }
    int position(int query) const { return step_.positions[token(query)]; }

    void clear() {
        for (int q = 0; q < num_queries_; ++q) {
            max_[q] = kMinusInfinity;
            store(s_.sums + q * 16, splat(0.0f));
            for (int d = 0; d < head_dim_; d += 16) store(values_ + q * head_dim_ + d, splat(0.0f));
        }
    }

    // `next_k`: the K of the tile that comes next, to be fetched meanwhile, or null.
    void run_tile(int tile, const TilePointers& pointers, const uint8_t* const* next_k) {
        const int base = tile * kTileTokens;
        if constexpr (KV::kScaled) {
            gather_scales(pointers.k_scales, 0, keys_.end - base, s_.k_scales);
            gather_scales(pointers.v_scales, 0, keys_.end - base, s_.v_scales);
        }
        const bool one_by_one = !edges_are_finite(base, pointers);
        const int num_blocks = (num_queries_ + kBlockQueries - 1) / kBlockQueries;
        const int block_queries = (num_queries_ + num_blocks - 1) / num_blocks;
        const uint8_t* const* next_v = pointers.v;
        for (int query = 0, count; query < num_queries_; query += count) {
            count = smaller(block_queries, num_queries_ - query);
            if (one_by_one) count = smaller(count, group_ - query % group_);
            const int begin = larger(first_key(position(query), a_.sliding_window) - base, 0);
            const int end = smaller(position(query + count - 1) + 1 - base, kTileTokens);
            if (begin >= smaller(end, kTileTokens)) continue;
            if (KV::kScaled && one_by_one) gather_scales(pointers.v_scales, begin, end, s_.v_scales);
            run_block(query, count, base, begin, end, one_by_one, pointers, next_v, next_k);
            next_v = next_k = nullptr;  // once is enough
        }
    }

    // Whether V is finite wherever a query multiplies it with 0 that another one sees.
    bool edges_are_finite(int base, const TilePointers& pointers) const {
        const int first = position(0), last = position(num_queries_ - 1), window = a_.sliding_window;
        return is_finite(pointers, first + 1 - base, last + 1 - base) &&
               is_finite(pointers, first_key(first, window) / 16 * 16 - base, first_key(last, window) - base);
    }

    // V of tokens [begin, end) of a tile, and perhaps of others in the same octets.
    bool is_finite(const TilePointers& pointers, int begin, int end) const {
        begin = larger(begin, 0);
        end = smaller(end, kTileTokens);
        F32x16 defect = splat(0.0f);
        if constexpr (KV::kScaled) {
            for (int i = begin; i < end; ++i) defect = defect + splat(s_.v_scales[i] - s_.v_scales[i]);
        } else {
            for (int octet = begin / 8; octet * 8 < end; ++octet)
                for (int line = 0; line < head_dim_ * KV::kElementBytes / 8; ++line)
                    defect = defect + KV::defect(pointers.v[octet] + line * 64);
        }
        return sum(defect) == 0.0f;
    }

    // A few queries against keys [begin, end) of the tile at `base`. `strict`: where V begins too, others'
    // tokens are taken for zeros.
    void run_block(int query, int count, int base, int begin, int end, bool strict,
                   const TilePointers& pointers, const uint8_t* const* next_v, const uint8_t* const* next_k) {
        const int first_octet = begin / 8, end_octet = (end + 7) / 8;
        const int first_vector = first_octet / 2, end_vector = (end_octet + 1) / 2;
        const int octet_lines = head_dim_ * KV::kElementBytes / 8;
        with_count<kBlockQueries>(count, [&](auto r) {
            const auto score = [&](auto c, int octet) {
                score_block<KV, r.value, c.value>(s_.operands + query * operand_stride_, operand_stride_,
                                                  s_.query_scales + query, pointers.k + octet,
                                                  s_.k_scales + octet * 8, octet_lines, s_.scores + octet * 8,
                                                  next_v ? next_v + octet : nullptr);
            };
            constexpr int kColumns = block_columns(r.value), kOctets = kColumns < 2 ? 2 : kColumns;
            int octet = first_vector * 2;
            for (; octet + kOctets <= end_vector * 2; octet += kOctets) score(Count<kColumns>{}, octet);
            if (octet < end_vector * 2) score(Count<2>{}, octet);
        });
        mask(query, count, base, first_vector * 16, end_vector * 16);
        alignas(64) float decay[16] = {};
        float weight_scale[kBlockQueries] = {};
        weigh(query, count, first_vector, end_vector, decay, weight_scale);

        const uint8_t* const* v = pointers.v + first_octet;
        const uint8_t* v_with_edges[kTileOctets];
        const int num_octets = end_octet - first_octet;
        const int head = strict ? begin % 8 : 0, tail = (end - 1) % 8 + 1;
        if (!KV::kScaled && (head > 0 || tail < 8)) {
            for (int i = 0; i < num_octets; ++i) v_with_edges[i] = v[i];
            if (num_octets == 1) {
                v_with_edges[0] = cut_octet(v[0], head, tail, 0);
            } else {
                if (head > 0) v_with_edges[0] = cut_octet(v[0], head, 8, 0);
                if (tail < 8) v_with_edges[num_octets - 1] = cut_octet(v[num_octets - 1], 0, tail, 1);
            }
            v = v_with_edges;
        }
        const auto* weights =
            reinterpret_cast<const uint8_t*>(s_.weights) + first_octet * 8 * KV::kWeightBytes;
        with_count<kBlockQueries>(count, [&](auto r) {
            constexpr int kColumns = block_columns(r.value);
            for (int vector = 0; vector < head_dim_ / 16; vector += kColumns)
                with_count<kColumns>(smaller(kColumns, head_dim_ / 16 - vector), [&](auto c) {
                    value_block<KV, r.value, c.value>(weights, decay, weight_scale, v, num_octets, vector,
                                                      head_dim_, values_ + query * head_dim_ + vector * 16,
                                                      next_k ? next_k + first_octet : nullptr);
                });
        });
    }

    // Scores [begin, end) were computed; those of keys that a query may not see become -infinity.
    void mask(int query, int count, int base, int begin, int end) {
        for (int r = 0; r < count; ++r) {
            const int own = position(query + r), oldest = first_key(own, a_.sliding_window);
            float* scores = s_.scores + r * kTileTokens;
            for (int i = begin; i < smaller(end, oldest - base); ++i) scores[i] = kMinusInfinity;
            for (int i = larger(begin, own + 1 - base); i < end; ++i) scores[i] = kMinusInfinity;
        }
    }

    // The scales of the tile's tokens side by side; those outside [begin, end) become 0.
    static void gather_scales(const float* const* octets, int begin, int end, float* out) {
        for (int octet = 0; octet < kTileOctets; ++octet) std::memcpy(out + octet * 8, octets[octet], 32);
        for (int i = 0; i < begin; ++i) out[i] = 0.0f;
        for (int i = larger(end, 0); i < kTileTokens; ++i) out[i] = 0.0f;
    }

    // Scores to weights, relative to the running maximum; decay[r] is what the results so far have to be
    // multiplied with.
    void weigh(int query, int count, int first_vector, int end_vector, float* decay, float* weight_scale) {
        float base[kBlockQueries];
        for (int r = 0; r < count; ++r) {
            const float* scores = s_.scores + r * kTileTokens;
            F32x16 top = splat(kMinusInfinity);
            for (int i = first_vector; i < end_vector; ++i) top = max(top, load(scores + i * 16));
            float& running = max_[query + r];
            const float tile_max = max_lane(top), new_max = running > tile_max ? running : tile_max;
            base[r] = new_max == kMinusInfinity ? 0.0f : new_max;
            decay[r] = running - base[r];
            running = new_max;
        }
        store(decay, exp2(load(decay)));
        for (int r = 0; r < count; ++r) {
            float* scores = s_.scores + r * kTileTokens;
            float* sums = s_.sums + (query + r) * 16;
            auto* weights = reinterpret_cast<uint8_t*>(s_.weights) + r * kTileTokens * KV::kWeightBytes;
            F32x16 sum = load(sums) * splat(decay[r]);
            if constexpr (KV::kScaled) {
                F32x16 top = splat(0.0f);
                for (int i = first_vector; i < end_vector; ++i) {
                    const F32x16 weight = exp2(load(scores + i * 16) - splat(base[r]));
                    const F32x16 scaled = weight * load(s_.v_scales + i * 16);
                    sum = sum + (weight + (scaled - scaled));  // integers would forget a NaN
                    top = max(top, scaled);
                    store(scores + i * 16, scaled);
                }
                const float largest = max_lane(top),
                            factor = largest > 1e-30f ? KV::kMaxWeight / largest : 0.0f;
                weight_scale[r] = largest / KV::kMaxWeight;
                for (int i = first_vector; i < end_vector; ++i)
                    KV::store_weights(weights + i * 16 * KV::kWeightBytes,
                                      load(scores + i * 16) * splat(factor));
            } else {
                for (int i = first_vector; i < end_vector; ++i) {
                    const F32x16 weight = exp2(load(scores + i * 16) - splat(base[r]));
                    sum = sum + KV::store_weights(weights + i * 16 * KV::kWeightBytes, weight);
                }
            }
            store(sums, sum);
        }
    }

    // A copy of an octet of V with zeros for all but tokens [begin, end).
    const uint8_t* cut_octet(const uint8_t* octet, int begin, int end, int edge) {
        constexpr int kBits = 32 / KV::kUnit;
        const int unit_lines = head_dim_ / 16;
        uint8_t* out = s_.v_edges + edge * 8 * head_dim_ * KV::kElementBytes;
        for (int unit = 0; unit < 8 / KV::kUnit; ++unit) {
            uint32_t kept = 0;
            for (int i = 0; i < KV::kUnit; ++i)
                if (const int token = unit * KV::kUnit + i; begin <= token && token < end)
                    kept |= (~0u >> (32 - kBits)) << (i * kBits);
            for (int line = unit * unit_lines; line < (unit + 1) * unit_lines; ++line)
                store_words(out + line * 64, load_words(octet + line * 64) & splat(int32_t(kept)));
        }
        return out;
    }

    // Adds the partition to those before it; the first takes the place of their total.
    void merge(bool first) {
        for (int q = 0; q < num_queries_; ++q) {
            const float partition_sum = sum(load(s_.sums + q * 16));
            if (first)
                s_.total_sum[q] = partition_sum;
            else
                merge_partition(max_[q], partition_sum, values_ + q * head_dim_, total_max_[q],
                                s_.total_sum[q], totals_ + q * head_dim_, head_dim_);
        }
        if (!first) return;
        exchange(max_, total_max_);
        exchange(values_, totals_);
    }

    static void exchange(float*& a, float*& b) {
        float* c = a;
        a = b;
        b = c;
    }

    void save(int part) {
        for (int q = 0; q < num_queries_; ++q) {
            float* partial = a_.plan->partial(work_.partial_of_zero[token(q)] + part, head(q));
            partial[0] = max_[q];
            partial[1] = sum(load(s_.sums + q * 16));
            for (int d = 0; d < head_dim_; d += 16)
                store(partial + 16 + d, load(values_ + q * head_dim_ + d));
        }
    }

    const AttentionArgs& a_;
    const StepView& step_;
    const AttentionWork& work_;
    const AttentionItem& item_;
    const AttentionScratch& s_;
    ItemKeys<KV> keys_;
    int head_dim_, group_, first_head_, num_queries_;
    int64_t operand_stride_;
    float *max_, *values_, *total_max_, *totals_;
};

// A query head of a token whose partitions were spread over several items. The first partial result becomes
// the total of all.
inline void merge_partials(const AttentionArgs& a, const AttentionMerge& merge, int head) {
    const int head_dim = a.window.head_dim;
    float* total = a.plan->partial(merge.first_partial, head);
    for (int part = 1; part < merge.num_parts; ++part) {
        const float* partial = a.plan->partial(merge.first_partial + part, head);
        merge_partition(partial[0], partial[1], partial + 16, total[0], total[1], total + 16, head_dim);
    }
    write_average(total + 16, total[1], a.out.row(merge.token) + head * head_dim, head_dim);
}

template <class KV>
void attend_all(const AttentionArgs& a, const StepView& step, const AttentionWork& work, Worker& worker) {
    const AttentionScratch& scratch = a.plan->scratch(worker.id());
    const int num_kv_heads = a.window.num_kv_heads;
    const int64_t count = work.num_items * num_kv_heads;
    const auto item_of = [&](int64_t i) -> const AttentionItem& { return work.items[i / num_kv_heads]; };
    const auto head_of = [&](int64_t i) { return static_cast<int>(i % num_kv_heads); };
    worker.for_each(count, [&](int64_t i) {
        ItemRun<KV> run(a, step, work, item_of(i), head_of(i), scratch);
        const int64_t next = i + 1;  // unless others are there first
        if (next < count) {
            const ItemKeys<KV> next_keys(a, step, work, item_of(next), head_of(next));
            run.run(&next_keys);
        } else {
            run.run(nullptr);
        }
    });
}

// See Ops.paged_attention. The K and V of the step's own tokens are already in the cache.
inline void paged_attention(const AttentionArgs& a, const StepView& step, Worker& worker) {
    const AttentionWork work = a.plan->work();
    switch (a.window.dtype) {
        case KVDtype::F32:
            attend_all<Float32KV>(a, step, work, worker);
            break;
        case KVDtype::BF16:
            attend_all<BFloat16KV>(a, step, work, worker);
            break;
        case KVDtype::F16:
            attend_all<Float16KV>(a, step, work, worker);
            break;
        case KVDtype::INT8:
            attend_all<Int8KV>(a, step, work, worker);
            break;
    }
    if (work.num_merges == 0) return;
    worker.for_each(work.num_merges * a.num_heads, [&](int64_t i) {
        merge_partials(a, work.merges[i / a.num_heads], static_cast<int>(i % a.num_heads));
    });
}

}  // namespace
}  // namespace octavo
