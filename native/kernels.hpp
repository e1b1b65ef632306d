// The kernels' contract: plain arguments in, one function per operation, one table of functions per
// instruction set. kernels.cpp is compiled once per instruction set; dispatch.cpp chooses a table when the
// module is loaded.
//
// Every kernel reduces in an order that depends only on the weights and on absolute token positions: never on
// the number of tokens in the step, on the threads, or on the block size. Results are bit-exact under all of
// them.
#pragma once

#include <cstdint>

#include "team.hpp"

namespace octavo {

#define OCTAVO_ENCODINGS \
    X(F32) X(F16) X(BF16) X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)

enum class Encoding : int {
#define X(name) name,
    OCTAVO_ENCODINGS
#undef X
};

constexpr bool is_quantized(Encoding encoding) { return encoding >= Encoding::Q8_0; }

enum class KVDtype : int { BF16, F32, INT8, F16 };

constexpr int kMaxHeadDim = 256;  // that attention has room for

// A row-major float32 matrix whose row count is the step's.
struct Rows {
    float* data;
    int64_t width;
    [[gnu::always_inline]] float* row(int64_t i) const { return data + i * width; }
};

struct BlockTable {
    const int32_t* data;
    int64_t stride;  // entries per row
};

// One step; see octavo/attention/plan.py for the meaning of each array.
struct StepView {
    int num_tokens, num_rows, num_logits;
    const int32_t *token_ids, *positions, *rows, *query_start, *context_len, *logit_tokens;
    const BlockTable* tables;
};

struct TileAddress {
    int32_t table;
    int64_t offset;
};

// One layer's window on the arena; see octavo/storage/layout.py for the packing of a tile.
struct LayerWindow {
    uint8_t* arena;
    int64_t frame_bytes;
    int num_kv_heads, head_dim, block_size;
    KVDtype dtype;
    const TileAddress *k_tiles, *v_tiles;  // [num_kv_heads]
};

struct EmbedArgs {
    Encoding encoding;
    const uint8_t* table;  // row-major, as in the file
    int64_t row_bytes;
    Rows out;
};

struct NormArgs {
    Rows in, out;
    const float* weight;
    float eps;
};

struct HeadNormArgs {
    Rows in, out;  // out may be in
    const float* weight;
    float eps;
    int first_head, num_heads, head_dim;
};

struct PackedLinear;  // packed_linear.hpp

// What a linear layer does to its input first.
struct Prologue {
    enum Kind { None, RmsNorm, SiluMul } kind;
    const float* norm_weight;  // [inputs]
    float eps;
};

struct LinearArgs {
    const PackedLinear* weight;
    Prologue prologue;  // only where all weights are int4 or int8 and the input is quantized
    Rows in, out;
    const float* residual;  // same shape as out, or null
    int num_rows;
    bool quantize_input;  // int8 per 32 where the weight is int4 or int8; bfloat16 where it is, and pairs are
                          // multiplied
    void* scratch;        // linear_scratch_bytes(...), the same for all layers of a step
    int64_t scratch_bytes;
};

struct RopeWriteArgs {
    LayerWindow window;
    Rows qkv, q_out;
    const float *cos, *sin;  // [max positions, rotary_dim / 2]
    int num_heads, rotary_dim;
};

class AttentionPlan;  // attention_plan.hpp: work items of one step, and scratch for partial results

struct AttentionArgs {
    LayerWindow window;
    Rows q, out;
    int num_heads;
    int sliding_window;  // tokens, or 0
    float scale;
    AttentionPlan* plan;
};

struct SiluMulArgs {
    Rows gate_up, out;
};

// What ceilings.hpp measures: not a part of any model.
enum class Arithmetic : int { Float32, BFloat16, Int8 };

struct ReadArgs {
    const uint8_t* data;
    int64_t num_bytes, passes;
    bool is_private;  // each worker reads its own share, and no other
};

struct Kernels {
    const char* isa;
    void (*embed)(const EmbedArgs&, const StepView&, Worker&);
    void (*rms_norm)(const NormArgs&, int num_rows, Worker&);
    void (*head_norm)(const HeadNormArgs&, int num_rows, Worker&);
    void (*linear)(const LinearArgs&, Worker&);
    const uint8_t* (*first_weights)(const LinearArgs&, const Worker&);
    void (*rope_and_write)(const RopeWriteArgs&, const StepView&, Worker&);
    void (*paged_attention)(const AttentionArgs&, const StepView&, Worker&);
    void (*silu_mul)(const SiluMulArgs&, int num_rows, Worker&);
    void (*read_memory)(const ReadArgs&, Worker&);
    int64_t (*multiply)(Arithmetic, int64_t rounds);  // returns additions and multiplications done
    bool (*matrix_unit_works)();                      // true if none is used
};

}  // namespace octavo
