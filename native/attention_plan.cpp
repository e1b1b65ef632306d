#include "attention_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

namespace octavo {

namespace {

constexpr int kQueriesPerItem = 48;  // enough to hide the loads of K and V behind arithmetic
constexpr int kItemsPerWorker = 6;   // so that the last items to finish finish together
constexpr int kReadCost = 6;         // reading a key costs about as much as multiplying it with six queries
constexpr int64_t kNone = INT64_MIN;
constexpr int kMaxRegisterBlock = 8;  // queries that a kernel keeps in registers, at most

int ceil_div(int a, int b) { return (a + b - 1) / b; }

uint8_t* allocate(int64_t num_bytes) {
    void* p = std::aligned_alloc(64, static_cast<size_t>((num_bytes + 63) / 64 * 64));
    if (!p) throw std::bad_alloc();
    return static_cast<uint8_t*>(p);
}

// Cuts one block of memory into arrays that start on cache lines; with a null base it only measures.
struct Cutter {
    uint8_t* base;
    int64_t used = 0;
    template <class T>
    void cut(T*& array, int64_t count) {
        array = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += (count * int64_t{sizeof(T)} + 63) / 64 * 64;
    }
};

int64_t cut_scratch(AttentionScratch& s, uint8_t* base, int64_t queries, int64_t head_dim) {
    Cutter cutter{base};
    cutter.cut(s.operands, queries * head_dim * 4);
    cutter.cut(s.query_scales, queries);
    cutter.cut(s.k_scales, kTileTokens);
    cutter.cut(s.v_scales, kTileTokens);
    cutter.cut(s.scores, kMaxRegisterBlock * kTileTokens);
    cutter.cut(s.weights, kMaxRegisterBlock * kTileTokens);
    cutter.cut(s.v_edges, 2 * 8 * head_dim * 4);
    cutter.cut(s.max, queries);
    cutter.cut(s.sums, queries * 16);
    cutter.cut(s.values, queries * head_dim);
    cutter.cut(s.total_max, queries);
    cutter.cut(s.total_sum, queries);
    cutter.cut(s.totals, queries * head_dim);
    return cutter.used;
}

}  // namespace

int64_t kv_tile_bytes(KVDtype dtype, int block_size, int head_dim) {
    const int64_t count = int64_t{block_size} * head_dim;
    if (dtype == KVDtype::F32) return count * 4;
    if (dtype == KVDtype::BF16 || dtype == KVDtype::F16) return count * 2;
    return count + (int64_t{block_size} * 4 + 63) / 64 * 64;
}

void AttentionPlan::Free::operator()(void* p) const { std::free(p); }

AttentionPlan::AttentionPlan(const LayerWindow& window, int num_heads, int sliding_window, int num_workers)
    : num_heads_(num_heads),
      group_(num_heads / window.num_kv_heads),
      item_tokens_(std::max(1, kQueriesPerItem / group_)),
      num_kv_heads_(window.num_kv_heads),
      head_dim_(window.head_dim),
      block_size_(window.block_size),
      sliding_window_(sliding_window),
      num_workers_(num_workers) {
    const int64_t queries = item_tokens_ * group_;
    AttentionScratch measured;
    const int64_t bytes = cut_scratch(measured, nullptr, queries, head_dim_);
    scratch_memory_.reset(allocate(bytes * num_workers));
    scratch_ = std::make_unique<AttentionScratch[]>(num_workers);
    for (int i = 0; i < num_workers; ++i)
        cut_scratch(scratch_[i], scratch_memory_.get() + i * bytes, queries, head_dim_);
}

void AttentionPlan::add_layer(const LayerWindow& window) {
    for (int head = 0; head < num_kv_heads_; ++head)
        for (int table : {window.k_tiles[head].table, window.v_tiles[head].table})
            if (std::find(tables_.begin(), tables_.end(), table) == tables_.end()) tables_.push_back(table);
}

AttentionWork AttentionPlan::work() const {
    return {items_.data(),
            merges_.data(),
            static_cast<int64_t>(items_.size()),
            static_cast<int64_t>(merges_.size()),
            tokens_.data(),
            partial_of_zero_.data()};
}

const AttentionScratch& AttentionPlan::scratch(int worker) const { return scratch_[worker]; }

float* AttentionPlan::partial(int64_t index, int head) const {
    return partials_ + (index * num_heads_ + head) * int64_t{head_dim_ + 16};
}

void AttentionPlan::build(const StepView& step) {
    items_.clear();
    merges_.clear();
    tokens_.resize(step.num_tokens);
    std::iota(tokens_.begin(), tokens_.end(), 0);
    partial_of_zero_.assign(step.num_tokens, kNone);
    num_partials_ = 0;
    shared_parts_.assign(step.num_rows, 0);
    if (!sliding_window_) {
        std::vector<int> rows;
        for (int i = 0; i < step.num_rows; ++i)
            if (step.query_start[i + 1] - step.query_start[i] <= item_tokens_) rows.push_back(i);
        share_prefixes(step, rows.data(), rows.data() + rows.size(), 0);
    }
    cut_queries(step);
    cut_keys();
    if (num_partials_ > partial_capacity_) {
        partial_capacity_ = num_partials_;
        partial_memory_.reset();
        partial_memory_.reset(
            allocate(partial_capacity_ * num_heads_ * (head_dim_ + 16) * int64_t{sizeof(float)}));
        partials_ = reinterpret_cast<float*>(partial_memory_.get());
    }
    deal();
}

// Each worker's share keeps the tokens of the same rows that the layers before and after give it, and begins
// with the most expensive items, so that what is left for others at the end is cheap.
void AttentionPlan::deal() {
    const auto first_of = [&](int64_t worker) {
        return items_.begin() + static_cast<int64_t>(items_.size()) * worker / num_workers_;
    };
    for (int worker = 0; worker < num_workers_; ++worker)
        std::stable_sort(first_of(worker), first_of(worker + 1),
                         [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
}

// Order of two rows of the step by the blocks that hold a partition of theirs.
int AttentionPlan::compare_blocks(const StepView& step, int i, int j, int part) const {
    const int begin = part * kPartitionTokens / block_size_;
    const int end = ceil_div((part + 1) * kPartitionTokens, block_size_);
    for (int table : tables_) {
        const BlockTable& blocks = step.tables[table];
        const int32_t *a = blocks.data + step.rows[i] * blocks.stride,
                      *b = blocks.data + step.rows[j] * blocks.stride;
        if (const int order = std::memcmp(a + begin, b + begin, (end - begin) * sizeof *a)) return order;
    }
    return 0;
}

// Rows [first, last) of the step have the same blocks before partition `part`. Where several go on alike, one
// item reads the common partitions for all of them. Only rows of few tokens: many make good use of a load
// alone.
void AttentionPlan::share_prefixes(const StepView& step, int* first, int* last, int part) {
    const auto has_part = [&](int i) { return step.context_len[i] >= (part + 1) * kPartitionTokens; };
    last = std::partition(first, last, has_part);
    if (last - first < 2) return;
    std::sort(first, last, [&](int i, int j) { return compare_blocks(step, i, j, part) < 0; });
    for (int *begin = first, *end; begin < last; begin = end) {
        end = begin + 1;
        while (end < last && compare_blocks(step, *begin, *end, part) == 0) ++end;
        if (end - begin < 2) continue;
        int stop = part + 1;
        const auto goes_on = [&](int i) {
            return step.context_len[i] >= (stop + 1) * kPartitionTokens &&
                   compare_blocks(step, *begin, i, stop) == 0;
        };
        while (std::all_of(begin, end, goes_on)) ++stop;
        const int first_token = static_cast<int>(tokens_.size());
        for (const int* i = begin; i < end; ++i) {
            shared_parts_[*i] = stop;
            for (int t = step.query_start[*i]; t < step.query_start[*i + 1]; ++t) tokens_.push_back(t);
        }
        const int num_tokens = static_cast<int>(tokens_.size()) - first_token;
        for (int done = 0; done < num_tokens; done += item_tokens_)
            add_item({step.rows[*begin], first_token + done, std::min(item_tokens_, num_tokens - done), part,
                      stop, false, 0},
                     (stop - part) * kPartitionTokens);
        share_prefixes(step, begin, end, stop);
    }
}

// Each row's queries, a few tokens at a time, with all the keys that they see and do not share.
void AttentionPlan::cut_queries(const StepView& step) {
    for (int i = 0; i < step.num_rows; ++i) {
        for (int token = step.query_start[i]; token < step.query_start[i + 1]; token += item_tokens_) {
            const int count = std::min(item_tokens_, step.query_start[i + 1] - token);
            const int position = step.context_len[i] + token - step.query_start[i];
            const int first_key = sliding_window_ ? std::max(0, position - sliding_window_ + 1) : 0;
            const int shared = shared_parts_[i];
            AttentionItem item = {step.rows[i],
                                  token,
                                  count,
                                  first_key / kPartitionTokens,
                                  ceil_div(position + count, kPartitionTokens),
                                  shared == 0,
                                  0};
            if (shared) {
                keep_partials(item);
                item.part_begin = shared;
            }
            add_item(item, position + count - std::max(first_key, shared * kPartitionTokens));
        }
    }
}

void AttentionPlan::add_item(AttentionItem item, int num_keys) {
    item.cost = int64_t{num_keys} * (item.num_tokens * group_ + kReadCost);
    items_.push_back(item);
}

// The results of these queries' partitions will be kept one by one, to be merged at the end.
void AttentionPlan::keep_partials(const AttentionItem& item) {
    const int num_parts = item.part_end - item.part_begin;
    for (int i = item.first_token; i < item.first_token + item.num_tokens; ++i) {
        partial_of_zero_[tokens_[i]] = num_partials_ - item.part_begin;
        merges_.push_back({tokens_[i], num_parts, num_partials_});
        num_partials_ += num_parts;
    }
}

// Spreads over several items those that would keep one worker busy when the others have nothing left.
void AttentionPlan::cut_keys() {
    if (num_workers_ == 1) return;
    int64_t total = 0;
    for (const AttentionItem& item : items_) total += item.cost;
    const int64_t target = total * num_kv_heads_ / (int64_t{num_workers_} * kItemsPerWorker);
    const size_t count = items_.size();
    for (size_t i = 0; i < count; ++i) {
        AttentionItem item = items_[i];
        const int num_parts = item.part_end - item.part_begin;
        if (num_parts == 1 || item.cost <= target) continue;
        if (item.whole) keep_partials(item);
        item.whole = false;
        const int end = item.part_end, step = std::max(1, static_cast<int>(num_parts * target / item.cost));
        const int64_t cost = item.cost;
        for (int part = item.part_begin; part < end; part += step) {
            item.part_begin = part;
            item.part_end = std::min(part + step, end);
            item.cost = cost * (item.part_end - part) / num_parts;
            if (part + step < end)
                items_.push_back(item);
            else
                items_[i] = item;
        }
    }
}

}  // namespace octavo
