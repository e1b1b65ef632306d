// What the self-test's parts share: inputs that are the same on every machine, a way to run one operation on
// any instruction set and number of threads, and the comparison of its results.
//
// The kernels are driven through a tape, as in a real step. What is expected is computed by plain loops in
// double, from nothing but the formats' definitions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dispatch.hpp"
#include "tape.hpp"

namespace octavo::selftest {

using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Integer arithmetic and exact conversions alone, so that any two machines agree on every bit.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint32_t bits();
    int below(int n) { return int(bits() % uint32_t(n)); }
    float between(float low, float high) { return low + (high - low) * (float(bits() >> 8) * 0x1p-24f); }
    Floats uniform(int64_t count, float low = -1, float high = 1);

  private:
    uint64_t state_;
};

float half_to_float(uint16_t bits);
float bf16_to_float(uint16_t bits);
uint16_t to_bf16(float x);  // nearest even

// A matrix as a file would hold it, and the values that its bytes mean.
struct Matrix {
    Encoding encoding;
    int64_t num_rows, width;
    Bytes bytes;
    Doubles values;
};
Matrix make_matrix(Random& random, Encoding encoding, int64_t num_rows, int64_t width);
Matrix float_matrix(const Floats& values, int64_t width);

inline constexpr Encoding kEncodings[] = {Encoding::F32,  Encoding::F16,  Encoding::BF16,
                                          Encoding::Q8_0, Encoding::Q4_0, Encoding::Q4_1};
const char* name_of(Encoding encoding);
const char* name_of(KVDtype dtype);

// Whether an instruction set multiplies pairs of bfloat16: then what meets weights, K or V of it is rounded
// to it.
bool is_paired(const std::string& isa);

// The kernels of every instruction set that can run here. Where nothing but AMX is missing, it is emulated.
const std::vector<const Kernels*>& tested_kernels();

// From here on AMX instructions work, if slowly. False if this CPU lacks others that those kernels need.
bool emulate_amx();

struct RowWork {
    int row, context_len, num_tokens;
};

// One step, with token ids 0, 1, 2, ... and one block table.
class Step {
  public:
    Step(const std::vector<RowWork>& work, std::vector<int32_t> table, int64_t table_rows);
    StepArrays arrays() const;
    int num_tokens() const { return int(token_ids.size()); }

    std::vector<int32_t> token_ids, positions, rows, query_start, context_len;
    std::vector<int32_t> row_of_token;

  private:
    std::vector<int32_t> table_;
    int64_t table_rows_;
};
Step step_without_cache(int num_tokens);

// Records operations from `in`, which holds the step's input, to `out`. Buffer 1 is free, and as wide.
using Record = std::function<void(Tape& tape, Value in, Value out)>;
inline constexpr int kFreeBuffer = 1;

Floats run(const Kernels& kernels, int num_threads, const CacheView& cache, const Step& step,
           const Matrix& input, int64_t out_width, const Record& record);
CacheView no_cache(int num_heads = 1, int num_kv_heads = 1, int head_dim = 16);

// Counts what fails and says it; folds results that all machines must agree on into one number.
class Report {
  public:
    void check(bool ok, const std::string& what);
    void expect_same(const Floats& got, const Floats& expected, const std::string& what);

    using Compute = std::function<Floats(const Kernels&, int num_threads)>;
    using Tolerance = std::function<double(const std::string& isa)>;  // absolute, plus the same relative
    // `compute` on every instruction set and on 1, 2 and 3 threads: near what is expected, the same on any
    // number of threads, and the same wherever there is FMA, but for instruction sets that `differs` names.
    // Returns the result that machines must agree on.
    Floats compare(const std::string& what, const Doubles& expected, const Tolerance& tolerance,
                   const Compute& compute,
                   const std::function<bool(const std::string& isa)>& differs = nullptr);

    int num_checks() const { return num_checks_; }
    int num_failures() const { return num_failures_; }
    // Of all results that machines must agree on; "none" if no instruction set here has FMA.
    std::string digest() const;

  private:
    int num_checks_ = 0, num_failures_ = 0, num_agreed_ = 0;
    uint64_t digest_ = 0xcbf29ce484222325;  // FNV-1a
};

inline Report::Tolerance within(double tolerance) {
    return [=](const std::string&) { return tolerance; };
}

void test_rows(Report& report);
void test_linear(Report& report);
void test_attention(Report& report);
void test_threads(Report& report);

}  // namespace octavo::selftest
