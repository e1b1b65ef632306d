#include "attention_plan.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

namespace octavo {

namespace {

constexpr int kQueriesPerItem = 48;   // enough to hide the loads of K and V behind arithmetic
constexpr int kItemsPerWorker = 6;    // so that the last items to finish finish together
constexpr int kReadCost = 6;          // reading a key costs about as much as multiplying it with six queries
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
    cutter.cut(s.scores, kMaxRegisterBlock * kTileTokens);
    cutter.cut(s.weights, kMaxRegisterBlock * kTileTokens);
    cutter.cut(s.v_tail, 8 * head_dim * 4);
    cutter.cut(s.max, queries);
    cutter.cut(s.sums, queries * 16);
    cutter.cut(s.values, queries * head_dim);
    cutter.cut(s.total_max, queries);
    cutter.cut(s.total_sum, queries);
    cutter.cut(s.totals, queries * head_dim);
    return cutter.used;
}

}  // namespace

void AttentionPlan::Free::operator()(void* p) const { std::free(p); }

AttentionPlan::AttentionPlan(const LayerWindow& window, int num_heads, int sliding_window, int num_workers)
    : num_heads_(num_heads),
      num_kv_heads_(window.num_kv_heads),
      head_dim_(window.head_dim),
      sliding_window_(sliding_window),
      num_workers_(num_workers) {
    if (head_dim_ < 16 || head_dim_ > 256 || head_dim_ % 16)
        throw std::invalid_argument("head_dim=" + std::to_string(head_dim_) +
                                    ": must be a multiple of 16 from 16 to 256");
    if (window.block_size < 8 || window.block_size % 8)
        throw std::invalid_argument("block_size=" + std::to_string(window.block_size) +
                                    ": must be a multiple of 8");
    const int64_t queries = std::max(kQueriesPerItem, num_heads / num_kv_heads_);
    AttentionScratch measured;
    const int64_t bytes = cut_scratch(measured, nullptr, queries, head_dim_);
    scratch_memory_.reset(allocate(bytes * num_workers));
    scratch_ = std::make_unique<AttentionScratch[]>(num_workers);
    for (int i = 0; i < num_workers; ++i)
        cut_scratch(scratch_[i], scratch_memory_.get() + i * bytes, queries, head_dim_);
}

AttentionPlan::Work AttentionPlan::work() const {
    return {items_.data(), merges_.data(), static_cast<int64_t>(items_.size()),
            static_cast<int64_t>(merges_.size())};
}

const AttentionScratch& AttentionPlan::scratch(int worker) const { return scratch_[worker]; }

float* AttentionPlan::partial(int64_t index, int head) const {
    return partials_ + (index * num_heads_ + head) * int64_t{head_dim_ + 16};
}

void AttentionPlan::build(const StepView& step) {
    cut_queries(step);
    const int64_t num_partials = cut_keys();
    if (num_partials > partial_capacity_) {
        partial_memory_.reset(
            allocate(num_partials * num_heads_ * (head_dim_ + 16) * int64_t{sizeof(float)}));
        partials_ = reinterpret_cast<float*>(partial_memory_.get());
        partial_capacity_ = num_partials;
    }
    std::stable_sort(items_.begin(), items_.end(),
                     [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
}

// Each row's queries, a few tokens at a time, with all the keys they see.
void AttentionPlan::cut_queries(const StepView& step) {
    const int group = num_heads_ / num_kv_heads_;
    const int item_tokens = std::max(1, kQueriesPerItem / group);
    items_.clear();
    for (int i = 0; i < step.num_rows; ++i) {
        for (int token = step.query_start[i]; token < step.query_start[i + 1]; token += item_tokens) {
            const int count = std::min(item_tokens, step.query_start[i + 1] - token);
            const int position = step.context_len[i] + token - step.query_start[i];
            const int first_key = sliding_window_ ? std::max(0, position - sliding_window_ + 1) : 0;
            const int begin = first_key / kPartitionTokens;
            const int end = ceil_div(position + count, kPartitionTokens);
            const int64_t cost = int64_t{position + count - first_key} * (count * group + kReadCost);
            items_.push_back({step.rows[i], token, count, begin, end, end - begin, -1, cost});
        }
    }
}

// Spreads over several items those that would keep one worker busy when the others have nothing left. Returns
// the number of partial results to keep.
int64_t AttentionPlan::cut_keys() {
    merges_.clear();
    if (num_workers_ == 1) return 0;
    int64_t total = 0, num_partials = 0;
    for (const AttentionItem& item : items_) total += item.cost;
    const int64_t target = total * num_kv_heads_ / (int64_t{num_workers_} * kItemsPerWorker);
    const size_t num_whole = items_.size();
    for (size_t i = 0; i < num_whole; ++i) {
        const AttentionItem whole = items_[i];
        if (whole.num_parts == 1 || whole.cost <= target) continue;
        const int parts_per_item = std::max(1, static_cast<int>(whole.num_parts * target / whole.cost));
        for (int part = whole.part_begin; part < whole.part_end; part += parts_per_item) {
            AttentionItem item = whole;
            item.part_begin = part;
            item.part_end = std::min(part + parts_per_item, whole.part_end);
            item.partial = num_partials + part - whole.part_begin;
            item.cost = whole.cost * (item.part_end - part) / whole.num_parts;
            if (part == whole.part_begin)
                items_[i] = item;
            else
                items_.push_back(item);
        }
        merges_.push_back({whole.first_token, whole.num_tokens, whole.num_parts, num_partials});
        num_partials += int64_t{whole.num_tokens} * whole.num_parts;
    }
    return num_partials;
}

}  // namespace octavo
