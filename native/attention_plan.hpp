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

// Some queries of one row, all query heads of a KV head, over some partitions of the row's keys.
struct AttentionItem {
    int row;                      // of the block tables
    int first_token, num_tokens;  // step tokens that ask
    int part_begin, part_end;     // partitions they read here
    int num_parts;                // partitions they read in all
    int64_t partial;              // where their first partial result goes, or -1: nothing is left to merge
    int64_t cost;                 // in about equal units for all items
};

// Queries whose partitions were spread over several items.
struct AttentionMerge {
    int first_token, num_tokens, num_parts;
    int64_t partial;
};

// A worker's private memory. A "query" is a (step token, query head) pair of an item; there are at most
// AttentionPlan::max_queries() of them. Each array starts on a cache line.
struct AttentionScratch {
    uint8_t* operands;           // [queries][4 D bytes] the queries, scaled and laid out for the dot products
    float* scores;               // [kTileTokens] for each query of a register block
    float* weights;              // the same, exponentiated
    uint8_t* v_tail;             // 8 tokens of V, zero beyond the last one
    float *max, *sums, *values;  // [queries], [queries][16], [queries][D]: the partition so far
    float *total_max, *total_sum, *totals;  // [queries], [queries], [queries][D]: the partitions before it
};

// For all layers that share their head counts and sliding window.
class AttentionPlan {
  public:
    AttentionPlan(const LayerWindow& window, int num_heads, int sliding_window, int num_workers);

    // Called once per step by one thread, before the parallel region; may allocate.
    void build(const StepView& step);

    struct Work {
        const AttentionItem* items;
        const AttentionMerge* merges;
        int64_t num_items, num_merges;
    };
    Work work() const;

    const AttentionScratch& scratch(int worker) const;

    // Partial result `index` of query head `head`: its maximal score, the sum of the weights, fourteen unused
    // floats, and the D weighted sums of the values.
    float* partial(int64_t index, int head) const;

  private:
    struct Free {
        void operator()(void* p) const;
    };

    void cut_queries(const StepView& step);
    int64_t cut_keys();

    int num_heads_, num_kv_heads_, head_dim_, sliding_window_, num_workers_;
    std::vector<AttentionItem> items_;
    std::vector<AttentionMerge> merges_;
    std::unique_ptr<uint8_t, Free> scratch_memory_, partial_memory_;
    std::unique_ptr<AttentionScratch[]> scratch_;
    float* partials_ = nullptr;
    int64_t partial_capacity_ = 0;
};

}  // namespace octavo
