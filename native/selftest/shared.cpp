#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "selftest.hpp"

namespace octavo::selftest {

uint32_t Random::bits() {  // SplitMix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return uint32_t((z ^ z >> 31) >> 32);
}

Floats Random::uniform(int64_t count, float low, float high) {
    Floats values(count);
    for (float& value : values) value = between(low, high);
    return values;
}

float half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float magnitude =
        exponent ? std::ldexp(float(1024 + mantissa), exponent - 25) : std::ldexp(float(mantissa), -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

float bf16_to_float(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}

uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

const char* name_of(Encoding encoding) {
#define X(name) #name,
    static const char* const names[] = {OCTAVO_ENCODINGS};
#undef X
    return names[int(encoding)];
}

bool is_paired(const std::string& isa) { return isa.ends_with("bf16"); }

const char* name_of(KVDtype dtype) {
    return dtype == KVDtype::F32 ? "float32" : dtype == KVDtype::BF16 ? "bfloat16" : "int8";
}

namespace {

// Of either sign, from 2^exponent up to twice that; now and then subnormal.
uint16_t random_half(Random& random, int exponent) {
    const int sign = random.below(2) << 15, mantissa = random.below(1024);
    return uint16_t(sign | (random.below(16) ? (exponent + 15) << 10 : 0) | mantissa);
}

void put_u16(Bytes& bytes, uint16_t x) {
    bytes.push_back(uint8_t(x));
    bytes.push_back(uint8_t(x >> 8));
}

void put_float(Matrix& m, float value) {
    uint8_t bytes[4];
    std::memcpy(bytes, &value, 4);
    m.bytes.insert(m.bytes.end(), bytes, bytes + 4);
    m.values.push_back(value);
}

// GGML's block of 32: a scale, for Q4_1 a minimum, and the numbers, those of four bits as i and i + 16 in a
// byte.
void put_block(Matrix& m, Random& random) {
    const bool is_q8 = m.encoding == Encoding::Q8_0, has_minimum = m.encoding == Encoding::Q4_1;
    const uint16_t scale = random_half(random, is_q8 ? -11 : -7);
    const uint16_t minimum = has_minimum ? random_half(random, -4) : uint16_t(0);
    put_u16(m.bytes, scale);
    if (has_minimum) put_u16(m.bytes, minimum);
    int numbers[32];
    for (int& number : numbers) number = is_q8 ? random.below(256) - 128 : random.below(16);
    for (int i = 0; i < (is_q8 ? 32 : 16); i++)
        m.bytes.push_back(uint8_t(is_q8 ? numbers[i] : numbers[i] | numbers[i + 16] << 4));
    const int zero = m.encoding == Encoding::Q4_0 ? 8 : 0;
    for (const int number : numbers)
        m.values.push_back(double(half_to_float(scale)) * (number - zero) + double(half_to_float(minimum)));
}

}  // namespace

Matrix make_matrix(Random& random, Encoding encoding, int64_t num_rows, int64_t width) {
    Matrix m{encoding, num_rows, width, {}, {}};
    for (int64_t i = 0; i < num_rows * width; i += encoding >= Encoding::Q8_0 ? 32 : 1) {
        if (encoding >= Encoding::Q8_0) {
            put_block(m, random);
        } else if (encoding == Encoding::F32) {
            put_float(m, random.between(-0.2f, 0.2f));
        } else if (encoding == Encoding::F16) {
            const uint16_t bits = random_half(random, -4);
            put_u16(m.bytes, bits);
            m.values.push_back(half_to_float(bits));
        } else {
            const uint16_t bits = to_bf16(random.between(-0.2f, 0.2f));
            put_u16(m.bytes, bits);
            m.values.push_back(bf16_to_float(bits));
        }
    }
    return m;
}

Matrix float_matrix(const Floats& values, int64_t width) {
    Matrix m{Encoding::F32, int64_t(values.size()) / width, width, {}, {}};
    for (const float value : values) put_float(m, value);
    return m;
}

Step::Step(const std::vector<RowWork>& work, std::vector<int32_t> table, int64_t table_rows)
    : query_start{0}, table_(std::move(table)), table_rows_(table_rows) {
    for (const RowWork& w : work) {
        rows.push_back(w.row);
        context_len.push_back(w.context_len);
        for (int i = 0; i < w.num_tokens; i++) {
            token_ids.push_back(num_tokens());
            positions.push_back(w.context_len + i);
            row_of_token.push_back(w.row);
        }
        query_start.push_back(num_tokens());
    }
}

StepArrays Step::arrays() const {
    const auto view = [](const std::vector<int32_t>& v) { return IntArray{v.data(), int64_t(v.size())}; };
    return {view(token_ids),
            view(positions),
            view(rows),
            view(query_start),
            view(context_len),
            {nullptr, 0},
            {{table_.data(), table_rows_, int64_t(table_.size()) / table_rows_}}};
}

Step step_without_cache(int num_tokens) { return Step({{0, 0, num_tokens}}, {0}, 1); }

CacheView no_cache(int num_heads, int num_kv_heads, int head_dim) {
    return {nullptr, 1, 0, num_heads, num_kv_heads, head_dim, 1, KVDtype::F32, nullptr, nullptr, 0, 0, {}};
}

const std::vector<const Kernels*>& tested_kernels() {
    static const std::vector<const Kernels*> tested = [] {
        std::vector<const Kernels*> kernels = available_kernels();
        const Kernels* last = compiled_kernels().back();
        if (last->isa == std::string("avx512_amx") && kernels.front() != last && emulate_amx())
            kernels.push_back(last);
        return kernels;
    }();
    return tested;
}

Floats run(const Kernels& kernels, int num_threads, const CacheView& cache, const Step& step,
           const Matrix& input, int64_t out_width, const Record& record) {
    Tape tape(std::make_shared<Team>(num_threads), kernels, step.num_tokens(), {input.width, input.width},
              cache);
    const Value in{0, input.width, false};
    tape.embed({input.encoding, input.bytes.data(), input.num_rows, input.width}, in);
    record(tape, in, {Value::kOutput, out_width, false});
    Floats out(step.num_tokens() * out_width, std::nanf(""));
    tape.run(step.arrays(), out.data(), step.num_tokens(), out_width);
    return out;
}

void Report::check(bool ok, const std::string& what) {
    num_checks_++;
    if (ok) return;
    num_failures_++;
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

void Report::expect_same(const Floats& got, const Floats& expected, const std::string& what) {
    size_t i = 0;
    while (i < got.size() && i < expected.size() && std::memcmp(&got[i], &expected[i], 4) == 0) i++;
    const bool same = i == got.size() && i == expected.size();
    check(same, what + ", value " + std::to_string(i) +
                    (same || got.size() != expected.size()
                         ? ""
                         : ": " + std::to_string(got[i]) + ", not " + std::to_string(expected[i])));
}

std::string Report::digest() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest_));
    return num_agreed_ ? text : "none";
}

Floats Report::compare(const std::string& what, const Doubles& expected, const Tolerance& tolerance,
                       const Compute& compute, const std::function<bool(const std::string&)>& differs) {
    Floats agreed;
    for (const Kernels* kernels : tested_kernels()) {
        const std::string isa = kernels->isa, where = what + " on " + isa;
        const Floats got = compute(*kernels, 1);
        for (const int num_threads : {2, 3})
            expect_same(compute(*kernels, num_threads), got,
                        where + ", " + std::to_string(num_threads) + " threads as 1");
        size_t worst = 0;
        double most = -1;
        for (size_t i = 0; i < got.size() && i < expected.size(); i++) {
            const double error = std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i]));
            if (most < error || std::isnan(error)) most = error, worst = i;
            if (std::isnan(error)) break;
        }
        check(got.size() == expected.size() && most <= tolerance(isa),
              where + ", value " + std::to_string(worst) + ": " + std::to_string(got[worst]) + ", not " +
                  std::to_string(expected[worst]) + " within " + std::to_string(tolerance(isa)));
        if (isa == "generic" || (differs && differs(isa))) continue;
        if (agreed.empty())
            agreed = got;
        else
            expect_same(got, agreed, where + " as on other instruction sets with FMA");
    }
    num_agreed_ += !agreed.empty();
    for (const float value : agreed) {
        uint8_t bytes[4];
        std::memcpy(bytes, &value, 4);
        for (const uint8_t byte : bytes) digest_ = (digest_ ^ byte) * 0x100000001b3;
    }
    return agreed;
}

}  // namespace octavo::selftest
