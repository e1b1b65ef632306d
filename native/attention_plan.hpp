// Which work one step's attention is cut into. Built once per step, read by every layer.
//
// Keys are visited in tiles of kTileTokens and partitions of kPartitionTokens, both at absolute multiples.
// Each partition is reduced from an empty state, and partitions are merged from left to right, whoever
// computes them: so the plan decides who does what and when, and never what comes out.
//
// Nothing here is inline: kernels are compiled for one instruction set each, and an inline function that one
// of them leaves behind would be linked into all.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"

namespace octavo {

constexpr int kTileTokens = 128;
constexpr int kPartitionTokens = 512;

// Bytes of a tile of K or V; see octavo/storage/layout.py.
int64_t kv_tile_bytes(KVDtype dtype, int block_size, int head_dim);

// Some step tokens, in all query heads of one KV head, over some partitions of the keys that they see. The
// tokens belong to one row and follow each other; or else to rows whose tables begin with the same blocks,
// and stand behind all keys of the item.
struct AttentionItem {
    int row;                      // whose block tables lead to the keys
    int first_token, num_tokens;  // in AttentionWork::tokens
    int part_begin, part_end;
    bool whole;  // the tokens see no other keys: there is nothing to merge
    int64_t cost;
};

// A token whose partitions were spread over several items: where their results are.
struct AttentionMerge {
    int token, num_parts;
    int64_t first_partial;
};

struct AttentionWork {
    const AttentionItem* items;
    const AttentionMerge* merges;
    int64_t num_items, num_merges;
    const int32_t* tokens;  // step tokens; an item's are neighbours here
    const int64_t*
        partial_of_zero;  // of each step token: the partial result that partition 0 has or would have
};

// For int8: what the dot products of a query start from, and what a unit of them is worth.
struct QueryScale {
    int32_t start[2];
    float scale;
};

// A worker's private memory. A "query" is one (step token, query head) pair of an item; there are at most
// max_queries() of them. Each array starts on a cache line.
struct AttentionScratch {
    uint8_t* operands;           // [queries][4 D bytes] the queries, scaled and laid out for the dot products
    QueryScale* query_scales;    // [queries], for int8
    float *k_scales, *v_scales;  // [kTileTokens] of a tile, for int8
    float* scores;               // [kTileTokens] for each query of a register block
    float* weights;              // the same, exponentiated
    uint8_t* v_edges;            // [2] octets of V, zero where no query sees them
    float *max, *sums, *values;  // [queries], [queries][16], [queries][D]: the partition so far
    float *total_max, *total_sum, *totals;  // [queries], [queries], [queries][D]: the partitions before it
};

// For all layers that share their head counts, block size and sliding window.
class AttentionPlan {
  public:
    AttentionPlan(const LayerWindow& window, int num_heads, int sliding_window, int num_workers);

    // Called for each layer that will use the plan.
    void add_layer(const LayerWindow& window);

    // Called once per step by one thread, before the parallel region; may allocate.
    void build(const StepView& step);

    AttentionWork work() const;

    const AttentionScratch& scratch(int worker) const;

    // Partial result `index` of query head `head`: its maximal score, the sum of the weights, fourteen unused
    // floats, and the D weighted sums of the values.
    float* partial(int64_t index, int head) const;

  private:
    struct Free {
        void operator()(void* p) const;
    };

    void share_prefixes(const StepView& step, int* first, int* last, int part);
    int compare_blocks(const StepView& step, int i, int j, int part) const;
    void cut_queries(const StepView& step);
    void cut_keys();
    void deal();
    void add_item(AttentionItem item, int num_keys);
    void keep_partials(const AttentionItem& item);

    int num_heads_, group_, item_tokens_, num_kv_heads_, head_dim_, block_size_, sliding_window_,
        num_workers_;
    std::vector<int> tables_;  // that lead to the layers' tiles
    std::vector<AttentionItem> items_;
    std::vector<AttentionMerge> merges_;
    std::vector<int32_t> tokens_;
    std::vector<int64_t> partial_of_zero_;
    std::vector<int> shared_parts_;  // of each row of the step: leading partitions read together with others
    std::unique_ptr<uint8_t, Free> scratch_memory_, partial_memory_;
    std::unique_ptr<AttentionScratch[]> scratch_;
    float* partials_ = nullptr;
    int64_t num_partials_ = 0, partial_capacity_ = 0;
};

}  // namespace octavo
