// A model's operations, recorded once and replayed as one parallel region per step.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "attention_plan.hpp"
#include "kernels.hpp"
#include "largest.hpp"
#include "packed_linear.hpp"
#include "packing.hpp"
#include "team.hpp"

namespace octavo {

// A matrix of activations: a buffer of the tape, or kOutput for the array that run() is given.
struct Value {
    static constexpr int kOutput = -1;
    int buffer;
    int64_t width;
    bool selected;  // a row per wanted logit, not per token
};

struct Embedding {
    Encoding encoding;
    const uint8_t* table;
    int64_t num_rows, width;
};

struct LayerTiles {
    int block_size, sliding_window;  // window in tokens, or 0
    std::vector<TileAddress> k_tiles, v_tiles;
};

// Where the KV lies and how positions rotate. The arrays must outlive the tape.
struct CacheView {
    uint8_t* arena;
    int64_t num_frames, frame_bytes;
    int num_heads, num_kv_heads, head_dim, num_tables;
    KVDtype dtype;
    const float *cos, *sin;  // [num_positions, rotary_dim / 2]
    int64_t num_positions;
    int rotary_dim;
    std::vector<LayerTiles> layers;
};

struct IntArray {
    const int32_t* data;
    int64_t size;
};

struct TableArray {
    const int32_t* data;
    int64_t num_rows, stride;
};

struct StepArrays {
    IntArray token_ids, positions, rows, query_start, context_len, logit_tokens;
    std::vector<TableArray> block_tables;
};

// A piece of the attention of a step: so many tokens of it, over partitions [part_begin, part_end) of the
// keys that a row's tables lead to. See attention_plan.hpp.
struct AttentionPiece {
    int row, part_begin, part_end;
    std::vector<int> tokens;
};

class Tape {
  public:
    // `buffer_widths`: float32 values per token of each buffer. Throws std::invalid_argument.
    Tape(std::shared_ptr<Team> team, const Kernels& kernels, int max_tokens,
         std::vector<int64_t> buffer_widths, CacheView cache);

    void embed(const Embedding& table, Value out);
    void rms_norm(Value in, const float* weight, float eps, Value out);
    void head_norm(Value in, int first_head, int num_heads, const float* weight, int64_t weight_width,
                   float eps, Value out);
    // A prologue saves an operation; it needs a quantized input, for all of the weights.
    void linear(Value in, Prologue prologue, std::shared_ptr<PackedLinear> weight, bool quantize_input,
                const Value* residual, Value out);
    void rope_and_write(Value qkv, int layer, Value out);
    void paged_attention(Value q, int layer, Value out);
    void silu_mul(Value gate_up, Value out);
    void select(Value in, Value out);

    // Computes one step. `output` has room for a row per token, or per wanted logit, as the last operation's.
    // Throws std::invalid_argument, naming what is wrong, before anything is written. `op_seconds`: room for
    // the time of each operation, the wait for all workers included, or null. Returns, where the output has a
    // row per wanted logit, the index of each row's largest value: see LargestFinder.
    std::vector<int32_t> run(const StepArrays& step, float* output, int64_t output_rows, int64_t output_width,
                             double* op_seconds = nullptr);

    size_t num_ops() const { return ops_.size(); }

    // What each operation is, by the names of the functions above; joined ones as "rms_norm+linear".
    std::vector<std::string> op_names() const;

    // What the attention of the latest run was cut into, for one layer of each block size and window.
    std::vector<AttentionPiece> attention_pieces() const;

  private:
    struct Embed {
        Embedding table;
        Value out;
    };
    struct Norm {
        Value in, out;
        const float* weight;
        float eps;
    };
    struct HeadNorm {
        Value in, out;
        const float* weight;
        float eps;
        int first_head, num_heads, head_dim;
    };
    struct Linear {
        Value in, out, residual;
        bool has_residual, quantize_input;
        Prologue prologue;
        std::shared_ptr<PackedLinear> weight;
    };
    struct RopeWrite {
        Value qkv, out;
        int layer;
    };
    struct Attention {
        Value q, out;
        int layer;
        AttentionPlan* plan;
    };
    struct SiluMul {
        Value gate_up, out;
    };
    struct Select {
        Value in, out;
    };
    using Clock = std::chrono::steady_clock;
    using Op = std::variant<Embed, Norm, HeadNorm, Linear, RopeWrite, Attention, SiluMul, Select>;
    struct FreeAligned {
        void operator()(void* p) const;
    };
    template <class T>
    using Aligned = std::unique_ptr<T[], FreeAligned>;
    template <class T>
    static Aligned<T> allocate(int64_t count);

    void check(const StepArrays& step);
    void check_blocks(const StepArrays& step) const;
    void check_value(const Value& value, const char* name) const;
    void expect_width(const Value& value, int64_t width, const char* name) const;
    int check_layer(int layer) const;
    LayerWindow window(int layer) const;
    void execute(const StepView& step, float* output, Worker& worker, Clock::time_point* ends) const;

    std::shared_ptr<Team> team_;
    const Kernels& kernels_;
    int max_tokens_;
    std::vector<int64_t> widths_;
    std::vector<Aligned<float>> buffers_;
    Aligned<uint8_t> scratch_;
    int64_t scratch_bytes_ = 0;
    CacheView cache_;
    std::vector<std::pair<int, int>> table_use_;  // per table: block size, and the widest window (0: all)
    std::map<std::pair<int, int>, std::unique_ptr<AttentionPlan>> plans_;
    std::vector<Op> ops_;
    LargestFinder largest_;
    int64_t vocab_ = INT32_MAX;
    bool uses_cache_ = false;
    std::mutex running_;
};

}  // namespace octavo
