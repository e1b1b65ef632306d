#include "tape.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace octavo {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string at(const char* name, int64_t i, int64_t value) {
    return std::string(name) + "[" + std::to_string(i) + "]=" + std::to_string(value);
}

template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

constexpr size_t kAlignment = 64;

// In a step of few tokens, layers are bound by reading weights: the first ones are fetched in the layer
// before.
constexpr int kFewTokens = 16, kIdleBytes = 16 << 10;

}  // namespace

void Tape::FreeAligned::operator()(void* p) const { ::operator delete[](p, std::align_val_t(kAlignment)); }

template <class T>
Tape::Aligned<T> Tape::allocate(int64_t count) {
    return Aligned<T>(static_cast<T*>(::operator new[](count * sizeof(T), std::align_val_t(kAlignment))));
}

Tape::Tape(std::shared_ptr<Team> team, const Kernels& kernels, int max_tokens,
           std::vector<int64_t> buffer_widths, CacheView cache)
    : team_(std::move(team)),
      kernels_(kernels),
      max_tokens_(max_tokens),
      widths_(std::move(buffer_widths)),
      cache_(std::move(cache)) {
    if (max_tokens_ < 1) refuse("max_tokens=" + std::to_string(max_tokens_) + ": must be at least 1");
    for (const int64_t width : widths_) buffers_.push_back(allocate<float>(width * max_tokens_));
    table_use_.assign(cache_.num_tables, {0, -1});
    for (const LayerTiles& layer : cache_.layers) {
        if (layer.block_size < 8 || layer.block_size % 8)
            refuse("block_size=" + std::to_string(layer.block_size) + ": must be a multiple of 8");
        if (int(layer.k_tiles.size()) != cache_.num_kv_heads ||
            int(layer.v_tiles.size()) != cache_.num_kv_heads)
            refuse("a layer needs one K and one V tile for each KV head");
        const int64_t tile_bytes = kv_tile_bytes(cache_.dtype, layer.block_size, cache_.head_dim);
        for (const auto* tiles : {&layer.k_tiles, &layer.v_tiles})
            for (const TileAddress& tile : *tiles) {
                if (tile.table < 0 || tile.table >= cache_.num_tables || tile.offset < 0 ||
                    tile.offset + tile_bytes > cache_.frame_bytes)
                    refuse("a tile lies outside its frame or its block tables");
                auto& [block_size, widest] = table_use_[tile.table];
                block_size = layer.block_size;
                const bool all = layer.sliding_window == 0 || widest == 0;
                widest = all ? 0 : std::max(widest, layer.sliding_window);
            }
    }
}

void Tape::check_value(const Value& value, const char* name) const {
    const bool exists =
        value.buffer == Value::kOutput || (value.buffer >= 0 && value.buffer < int(widths_.size()));
    if (!exists || value.width < 1 || (value.buffer >= 0 && value.width > widths_[value.buffer]))
        refuse(std::string(name) + ": no such buffer, or not as wide");
}

void Tape::expect_width(const Value& value, int64_t width, const char* name) const {
    check_value(value, name);
    if (value.width != width)
        refuse(std::string(name) + " is " + std::to_string(value.width) + " wide, must be " +
               std::to_string(width));
}

int Tape::check_layer(int layer) const {
    if (layer < 0 || layer >= int(cache_.layers.size()))
        refuse("layer=" + std::to_string(layer) + ": the KV layout has " +
               std::to_string(cache_.layers.size()));
    if (cache_.head_dim % 16 || cache_.head_dim > kMaxHeadDim)
        refuse("head_dim=" + std::to_string(cache_.head_dim) +
               ": the KV kernels need a multiple of 16, at most " + std::to_string(kMaxHeadDim));
    return layer;
}

void Tape::embed(const Embedding& table, Value out) {
    expect_width(out, table.width, "embed output");
    vocab_ = std::min(vocab_, table.num_rows);
    ops_.push_back(Embed{table, out});
}

void Tape::rms_norm(Value in, const float* weight, float eps, Value out) {
    check_value(in, "rms_norm input");
    expect_width(out, in.width, "rms_norm output");
    ops_.push_back(Norm{in, out, weight, eps});
}

void Tape::head_norm(Value in, int first_head, int num_heads, const float* weight, int64_t weight_width,
                     float eps, Value out) {
    check_value(in, "head_norm input");
    if (weight_width != cache_.head_dim) refuse("head_norm: the weight must be as wide as a head");
    expect_width(out, in.width, "head_norm output");
    if (first_head < 0 || num_heads < 1 || int64_t(first_head + num_heads) * cache_.head_dim > in.width)
        refuse("head_norm: heads reach past the input's width");
    ops_.push_back(HeadNorm{in, out, weight, eps, first_head, num_heads, cache_.head_dim});
}

void Tape::linear(Value in, Prologue prologue, std::shared_ptr<PackedLinear> weight, bool quantize_input,
                  const Value* residual, Value out) {
    expect_width(in, weight->num_inputs * (prologue.kind == Prologue::SiluMul ? 2 : 1), "linear input");
    expect_width(out, weight->num_outputs, "linear output");
    if (residual) expect_width(*residual, out.width, "linear residual");
    quantize_input &= weight->any_quantized() || weight->all_bf16();
    if (prologue.kind != Prologue::None && !(quantize_input && weight->all_quantized()))
        refuse("linear: a prologue needs a quantized input for all weights");
    if (prologue.kind != Prologue::None && in.buffer == out.buffer)
        refuse("linear: the output lies where a prologue still reads");
    const int64_t bytes = linear_scratch_bytes(max_tokens_, weight->num_inputs, team_->count());
    if (quantize_input && bytes > scratch_bytes_) {
        scratch_ = allocate<uint8_t>(bytes);
        scratch_bytes_ = bytes;
    }
    ops_.push_back(Linear{in, out, residual ? *residual : Value{}, residual != nullptr, quantize_input,
                          prologue, std::move(weight)});
}

void Tape::rope_and_write(Value qkv, int layer, Value out) {
    const int64_t q_width = int64_t(cache_.num_heads) * cache_.head_dim;
    expect_width(qkv, q_width + 2 * int64_t(cache_.num_kv_heads) * cache_.head_dim, "rope_and_write input");
    expect_width(out, q_width, "rope_and_write output");
    uses_cache_ = true;
    ops_.push_back(RopeWrite{qkv, out, check_layer(layer)});
}

void Tape::paged_attention(Value q, int layer, Value out) {
    expect_width(q, int64_t(cache_.num_heads) * cache_.head_dim, "paged_attention input");
    expect_width(out, q.width, "paged_attention output");
    const LayerTiles& tiles = cache_.layers[check_layer(layer)];
    auto& plan = plans_[{tiles.block_size, tiles.sliding_window}];
    if (!plan)
        plan = std::make_unique<AttentionPlan>(window(layer), cache_.num_heads, tiles.sliding_window,
                                               team_->count());
    plan->add_layer(window(layer));
    uses_cache_ = true;
    ops_.push_back(Attention{q, out, layer, plan.get()});
}

void Tape::silu_mul(Value gate_up, Value out) {
    check_value(out, "silu_mul output");
    expect_width(gate_up, 2 * out.width, "silu_mul input");
    ops_.push_back(SiluMul{gate_up, out});
}

void Tape::select(Value in, Value out) {
    check_value(in, "select input");
    expect_width(out, in.width, "select output");
    ops_.push_back(Select{in, out});
}

LayerWindow Tape::window(int layer) const {
    const LayerTiles& tiles = cache_.layers[layer];
    return {cache_.arena,     cache_.frame_bytes, cache_.num_kv_heads,  cache_.head_dim,
            tiles.block_size, cache_.dtype,       tiles.k_tiles.data(), tiles.v_tiles.data()};
}

void Tape::check(const StepArrays& step) {
    const int64_t num_tokens = step.token_ids.size, num_rows = step.rows.size;
    if (num_tokens < 1 || num_tokens > max_tokens_)
        refuse("a step of " + std::to_string(num_tokens) + " tokens: must have 1 to " +
               std::to_string(max_tokens_));
    if (step.positions.size != num_tokens) refuse("positions must have one entry per token");
    if (num_rows < 1 || step.query_start.size != num_rows + 1 || step.context_len.size != num_rows)
        refuse("query_start and context_len must match the number of rows");
    if (int(step.block_tables.size()) != cache_.num_tables)
        refuse("the step has " + std::to_string(step.block_tables.size()) + " block tables, the KV layout " +
               std::to_string(cache_.num_tables));
    for (int64_t t = 0; t < num_tokens; t++)
        if (const int32_t id = step.token_ids.data[t]; id < 0 || id >= vocab_)
            refuse(at("token_ids", t, id) + ": the vocabulary has " + std::to_string(vocab_) + " tokens");

    const int32_t* start = step.query_start.data;
    if (start[0] != 0 || start[num_rows] != num_tokens)
        refuse("query_start must run from 0 to the number of tokens, " + std::to_string(num_tokens));
    for (int64_t i = 0; i < num_rows; i++) {
        if (start[i] >= start[i + 1] || start[i + 1] > num_tokens)
            refuse(at("query_start", i + 1, start[i + 1]) + ": each row must have a token");
        const int64_t context = step.context_len.data[i];
        if (context < 0) refuse(at("context_len", i, context) + ": must not be negative");
        for (int64_t t = start[i]; t < start[i + 1]; t++)
            if (step.positions.data[t] != context + (t - start[i]))
                refuse(at("positions", t, step.positions.data[t]) + ": must be " +
                       std::to_string(context + (t - start[i])) + ", after the row's context");
        if (uses_cache_ && context + (start[i + 1] - start[i]) > cache_.num_positions)
            refuse(at("positions", start[i + 1] - 1, step.positions.data[start[i + 1] - 1]) +
                   ": the rotary table has " + std::to_string(cache_.num_positions) + " positions");
    }
    for (int64_t s = 0; s < step.logit_tokens.size; s++) {
        const int32_t t = step.logit_tokens.data[s];
        if (t < 0 || t >= num_tokens || (s > 0 && t <= step.logit_tokens.data[s - 1]))
            refuse(at("logit_tokens", s, t) + ": must ascend within the step's " +
                   std::to_string(num_tokens) + " tokens");
    }
    if (!uses_cache_) return;
    for (int64_t i = 0; i < num_rows; i++) {
        const int32_t row = step.rows.data[i];
        for (size_t t = 0; t < step.block_tables.size(); t++)
            if (row < 0 || row >= step.block_tables[t].num_rows)
                refuse(at("rows", i, row) + ": block table " + std::to_string(t) + " has " +
                       std::to_string(step.block_tables[t].num_rows) + " rows");
    }
    check_blocks(step);
}

// Every block that the step writes or reads must exist; block 0 is nobody's and may stand only before the
// window.
void Tape::check_blocks(const StepArrays& step) const {
    for (int64_t i = 0; i < step.rows.size; i++) {
        const int32_t row = step.rows.data[i];
        const int64_t context = step.context_len.data[i];
        const int64_t length = context + step.query_start.data[i + 1] - step.query_start.data[i];
        for (size_t t = 0; t < step.block_tables.size(); t++) {
            const TableArray& table = step.block_tables[t];
            const auto [block_size, widest] = table_use_[t];
            if (block_size == 0) continue;
            const int64_t end = (length + block_size - 1) / block_size;
            if (end > table.stride)
                refuse("row " + std::to_string(row) + " needs " + std::to_string(end) + " blocks for " +
                       std::to_string(length) + " tokens: block table " + std::to_string(t) +
                       " has room for " + std::to_string(table.stride));
            const int64_t oldest = widest > 0 ? std::max<int64_t>(0, context - widest + 1) : 0;
            const int32_t* blocks = table.data + row * table.stride;
            for (int64_t b = oldest / block_size; b < end; b++)
                if (blocks[b] < 1 || blocks[b] >= cache_.num_frames)
                    refuse("block_tables[" + std::to_string(t) + "][" + std::to_string(row) + ", " +
                           std::to_string(b) + "]=" + std::to_string(blocks[b]) + ": must be 1 to " +
                           std::to_string(cache_.num_frames - 1));
        }
    }
}

std::vector<AttentionPiece> Tape::attention_pieces() const {
    std::vector<AttentionPiece> pieces;
    for (const auto& [key, plan] : plans_) {
        const AttentionWork work = plan->work();
        for (int64_t i = 0; i < work.num_items; i++) {
            const AttentionItem& item = work.items[i];
            const int32_t* tokens = work.tokens + item.first_token;
            pieces.push_back({item.row, item.part_begin, item.part_end, {tokens, tokens + item.num_tokens}});
        }
    }
    return pieces;
}

std::vector<std::string> Tape::op_names() const {
    const Overloaded name = {
        [](const Embed&) -> std::string { return "embed"; },
        [](const Norm&) -> std::string { return "rms_norm"; },
        [](const HeadNorm&) -> std::string { return "head_norm"; },
        [](const Linear& op) -> std::string {
            const auto kind = op.prologue.kind;
            return kind == Prologue::RmsNorm   ? "rms_norm+linear"
                   : kind == Prologue::SiluMul ? "silu_mul+linear"
                                               : "linear";
        },
        [](const RopeWrite&) -> std::string { return "rope_and_write"; },
        [](const Attention&) -> std::string { return "paged_attention"; },
        [](const SiluMul&) -> std::string { return "silu_mul"; },
        [](const Select&) -> std::string { return "select"; },
    };
    std::vector<std::string> names;
    for (const Op& op : ops_) names.push_back(std::visit(name, op));
    return names;
}

std::vector<int32_t> Tape::run(const StepArrays& step, float* output, int64_t output_rows,
                               int64_t output_width, double* op_seconds) {
    if (ops_.empty()) refuse("the tape is empty");
    const std::lock_guard lock(running_);
    check(step);
    const Value last = std::visit([](const auto& op) { return op.out; }, ops_.back());
    const int64_t rows = last.selected ? step.logit_tokens.size : step.token_ids.size;
    if (last.buffer != Value::kOutput || output_rows != rows || output_width != last.width)
        refuse("the output must be " + std::to_string(rows) + " x " + std::to_string(last.width));

    std::vector<BlockTable> tables;
    for (const TableArray& table : step.block_tables) tables.push_back({table.data, table.stride});
    const StepView view = {
        int(step.token_ids.size), int(step.rows.size), int(step.logit_tokens.size), step.token_ids.data,
        step.positions.data,      step.rows.data,      step.query_start.data,       step.context_len.data,
        step.logit_tokens.data,   tables.data()};
    for (auto& [key, plan] : plans_) plan->build(view);
    largest_.prepare(output, last.selected ? rows : 0, last.width);
    // An operation ends when the first worker goes on to the next: others may come late, or not at all.
    const size_t num_ops = op_seconds ? ops_.size() : 0, num_workers = team_->count();
    std::vector<Clock::time_point> ends(num_workers * num_ops, Clock::time_point::max());
    Clock::time_point before = Clock::now();
    team_->run([&](Worker& worker) {
        execute(view, output, worker, op_seconds ? &ends[worker.id() * num_ops] : nullptr);
        largest_.find(worker);
    });
    for (size_t i = 0; i < num_ops; i++) {
        Clock::time_point end = ends[i];
        for (size_t w = 1; w < num_workers; w++) end = std::min(end, ends[w * num_ops + i]);
        op_seconds[i] = std::chrono::duration<double>(end - before).count();
        before = end;
    }
    return largest_.indices();
}

void Tape::execute(const StepView& step, float* output, Worker& worker, Clock::time_point* ends) const {
    const auto rows = [&](const Value& value) {
        return Rows{value.buffer == Value::kOutput ? output : buffers_[value.buffer].get(), value.width};
    };
    const auto count = [&](const Value& value) { return value.selected ? step.num_logits : step.num_tokens; };
    const auto linear_args = [&](const Linear& op) {
        return LinearArgs{op.weight.get(),
                          op.prologue,
                          rows(op.in),
                          rows(op.out),
                          op.has_residual ? rows(op.residual).data : nullptr,
                          count(op.in),
                          op.quantize_input,
                          scratch_.get(),
                          scratch_bytes_};
    };
    const Overloaded perform = {
        [&](const Embed& op) {
            kernels_.embed({op.table.encoding, op.table.table, row_bytes(op.table.encoding, op.table.width),
                            rows(op.out)},
                           step, worker);
        },
        [&](const Norm& op) {
            kernels_.rms_norm({rows(op.in), rows(op.out), op.weight, op.eps}, count(op.in), worker);
        },
        [&](const HeadNorm& op) {
            kernels_.head_norm(
                {rows(op.in), rows(op.out), op.weight, op.eps, op.first_head, op.num_heads, op.head_dim},
                count(op.in), worker);
        },
        [&](const Linear& op) { kernels_.linear(linear_args(op), worker); },
        [&](const RopeWrite& op) {
            kernels_.rope_and_write({window(op.layer), rows(op.qkv), rows(op.out), cache_.cos, cache_.sin,
                                     cache_.num_heads, cache_.rotary_dim},
                                    step, worker);
        },
        [&](const Attention& op) {
            const float scale = 1.0f / __builtin_sqrtf(float(cache_.head_dim));
            kernels_.paged_attention({window(op.layer), rows(op.q), rows(op.out), cache_.num_heads,
                                      cache_.layers[op.layer].sliding_window, scale, op.plan},
                                     step, worker);
        },
        [&](const SiluMul& op) {
            kernels_.silu_mul({rows(op.gate_up), rows(op.out)}, count(op.gate_up), worker);
        },
        [&](const Select& op) {
            const Rows in = rows(op.in), out = rows(op.out);
            worker.for_each(step.num_logits, [&](int64_t i) {
                std::memcpy(out.row(i), in.row(step.logit_tokens[i]), in.width * sizeof(float));
            });
        },
    };
    const Op* end = ops_.data() + ops_.size();
    const auto fetch_weights_behind = [&](const Op* op) {
        while (++op < end && !std::holds_alternative<Linear>(*op)) {
        }
        worker.fetch_when_idle(
            op < end ? kernels_.first_weights(linear_args(std::get<Linear>(*op)), worker) : nullptr,
            kIdleBytes);
    };
    for (const Op& op : ops_) {
        if (step.num_tokens <= kFewTokens) fetch_weights_behind(&op);
        std::visit(perform, op);
        if (ends) *ends++ = Clock::now();
    }
}

}  // namespace octavo
