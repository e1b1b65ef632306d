// Linear layers in every encoding, with float32 and with int8 activations.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "blocks.hpp"
#include "selftest.hpp"

namespace octavo::selftest {
namespace {

constexpr int kInputs = 96;

// What an int8 input stands for: groups of 32, scale = max |x| / 127 with two bits of the mantissa clear.
Floats quantized(const Floats& x) {
    Floats result(x.size());
    for (size_t group = 0; group < x.size(); group += 32) {
        float largest = 0;
        for (size_t i = group; i < group + 32; i++) largest = std::max(largest, std::abs(x[i]));
        float scale = largest / 127.0f;
        uint32_t bits;
        std::memcpy(&bits, &scale, 4);
        bits &= ~3u;
        std::memcpy(&scale, &bits, 4);
        const float inverse = 1.0f / scale;
        for (size_t i = group; i < group + 32; i++) result[i] = std::nearbyint(x[i] * inverse) * scale;
    }
    return result;
}

// A layer of one or more matrices, one below the other.
struct Layer {
    std::vector<Matrix> matrices;
    std::vector<Floats> biases;  // of each matrix, or empty

    int64_t num_outputs() const {
        int64_t count = 0;
        for (const Matrix& m : matrices) count += m.num_rows;
        return count;
    }

    std::shared_ptr<PackedLinear> pack(int num_threads) const {
        Team team(num_threads);
        std::vector<WeightView> views;
        for (size_t i = 0; i < matrices.size(); i++)
            views.push_back({matrices[i].encoding, matrices[i].bytes.data(), matrices[i].num_rows,
                             matrices[i].width, biases[i].empty() ? nullptr : biases[i].data()});
        WeightMemory memory;
        return pack_linear(views, memory, team);
    }

    Doubles apply(const Floats& x, int num_rows, bool quantize) const {
        Doubles out;
        const Floats rounded = quantize ? quantized(x) : x;
        for (int r = 0; r < num_rows; r++)
            for (size_t i = 0; i < matrices.size(); i++)
                for (int64_t n = 0; n < matrices[i].num_rows; n++) {
                    double sum = biases[i].empty() ? 0.0 : biases[i][n];
                    const Floats& input = matrices[i].encoding >= Encoding::Q8_0 ? rounded : x;
                    for (int k = 0; k < kInputs; k++)
                        sum += input[r * kInputs + k] * matrices[i].values[n * kInputs + k];
                    out.push_back(sum);
                }
        return out;
    }
};

Layer make_layer(Random& random, const std::vector<std::pair<Encoding, int>>& parts) {
    Layer layer;
    for (const auto& [encoding, num_outputs] : parts) {
        layer.matrices.push_back(make_matrix(random, encoding, num_outputs, kInputs));
        layer.biases.push_back(random.below(2) ? random.uniform(num_outputs) : Floats());
    }
    return layer;
}

void test_layer(Report& report, const std::string& name, const Layer& layer, bool quantize, int num_rows,
                Random& random) {
    Floats x = random.uniform(num_rows * kInputs);
    const bool is_bf16 = layer.matrices.size() == 1 && layer.matrices[0].encoding == Encoding::BF16;
    if (quantize && is_bf16)  // rounded by some instruction sets only: here nothing is left to round
        for (float& value : x) value = float(int(value * 128.0f)) / 128.0f;
    const auto packed = layer.pack(2);
    report.compare(
        name + (quantize ? ", reduced input, " : ", ") + std::to_string(num_rows) + " rows",
        layer.apply(x, num_rows, quantize), within(2e-6),
        [&](const Kernels& kernels, int num_threads) {
            return run(kernels, num_threads, no_cache(), step_without_cache(num_rows),
                       float_matrix(x, kInputs), layer.num_outputs(), [&](Tape& tape, Value in, Value out) {
                           tape.linear(in, {}, packed, quantize, nullptr, out);
                       });
        },
        [&](const std::string& isa) { return quantize && is_bf16 && is_paired(isa); });
}

// A prologue and a residual, against the same operations one by one.
void test_prologues(Report& report, Random& random) {
    const Layer layer = make_layer(random, {{Encoding::Q4_0, kInputs}, {Encoding::Q8_0, kInputs}});
    const auto packed = layer.pack(1);
    const Floats weight = random.uniform(kInputs, 0.5f, 1.5f);
    const Record joined_norm = [&](Tape& tape, Value in, Value out) {
        tape.linear(in, {Prologue::RmsNorm, weight.data(), 1e-5f}, packed, true, nullptr, out);
    };
    const Record norm = [&](Tape& tape, Value in, Value out) {
        const Value normed{kFreeBuffer, kInputs, false};
        tape.rms_norm(in, weight.data(), 1e-5f, normed);
        tape.linear(normed, {}, packed, true, nullptr, out);
    };
    const Record joined_silu = [&](Tape& tape, Value in, Value out) {
        tape.linear(in, {Prologue::SiluMul, nullptr, 0}, packed, true, &in, out);
    };
    const Record silu = [&](Tape& tape, Value in, Value out) {
        const Value gated{kFreeBuffer, kInputs, false};
        tape.silu_mul(in, gated);
        tape.linear(gated, {}, packed, true, &in, out);
    };
    for (const int num_rows : {1, 2, 17}) {
        const Matrix x = float_matrix(random.uniform(num_rows * kInputs, -4, 4), kInputs);
        const Matrix gate_up = float_matrix(random.uniform(num_rows * 2 * kInputs, -4, 4), 2 * kInputs);
        for (const Kernels* kernels : tested_kernels())
            for (const int num_threads : {1, 3}) {
                const auto compute = [&](const Matrix& input, const Record& record) {
                    return run(*kernels, num_threads, no_cache(), step_without_cache(num_rows), input,
                               layer.num_outputs(), record);
                };
                const std::string where = std::string(" on ") + kernels->isa + ", " +
                                          std::to_string(num_rows) + " rows, " + std::to_string(num_threads) +
                                          " threads";
                report.expect_same(compute(x, joined_norm), compute(x, norm), "norm_linear" + where);
                report.expect_same(compute(gate_up, joined_silu), compute(gate_up, silu),
                                   "silu_linear with residual" + where);
            }
    }
}

// The group of an infinite or NaN input makes all outputs NaN, and no other row's.
void test_not_finite(Report& report, Random& random) {
    const Layer layer = make_layer(random, {{Encoding::Q4_0, 17}, {Encoding::Q8_0, 3}, {Encoding::Q4_1, 5}});
    const auto packed = layer.pack(1);
    Floats x = random.uniform(4 * kInputs);
    x[kInputs + 40] = INFINITY;
    x[3 * kInputs + 1] = NAN;
    for (const Kernels* kernels : tested_kernels()) {
        const Floats out =
            run(*kernels, 2, no_cache(), step_without_cache(4), float_matrix(x, kInputs), 25,
                [&](Tape& tape, Value in, Value out) { tape.linear(in, {}, packed, true, nullptr, out); });
        for (int r = 0; r < 4; r++)
            for (int n = 0; n < 25; n++)
                report.check(std::isnan(out[r * 25 + n]) == (r % 2 == 1),
                             std::string("rows of infinity and NaN on ") + kernels->isa);
    }
}

// Any bytes whose float16 numbers are below 2, as rows of blocks.
Bytes random_blocks(Random& random, Encoding encoding, int64_t num_blocks) {
    const Form form = form_of(encoding);
    const HalfPlaces places = half_places(encoding);
    Bytes bytes(num_blocks * form.block_bytes);
    for (uint8_t& byte : bytes) byte = uint8_t(random.below(256));
    for (int64_t block = 0; block < num_blocks; block++)
        for (const int place : {places.scale, form.has_minimum ? places.minimum : places.scale})
            bytes[block * form.block_bytes + place + 1] &= 0xbf;
    return bytes;
}

// A row's results do not depend on the number of rows, by which the vectors and a matrix unit share the work,
// and are the same wherever there is FMA.
void test_row_counts(Report& report, Encoding encoding, Random& random) {
    constexpr int kWidth = 256, kMost = 100;
    const int64_t num_outputs = 40;
    const Bytes blocks =
        random_blocks(random, encoding, num_outputs * kWidth / form_of(encoding).block_values);
    const Layer layer{{{encoding, num_outputs, kWidth, blocks, {}}}, {{}}};
    const auto packed = layer.pack(1);
    const Floats x = random.uniform(kMost * kWidth, -4, 4);
    Floats agreed;
    for (const Kernels* kernels : tested_kernels()) {
        const auto compute = [&](int num_rows) {
            const Floats rows(x.begin(), x.begin() + num_rows * kWidth);
            return run(*kernels, 1, no_cache(), step_without_cache(num_rows), float_matrix(rows, kWidth),
                       num_outputs, [&](Tape& tape, Value in, Value out) {
                           tape.linear(in, {}, packed, true, nullptr, out);
                       });
        };
        const std::string where = std::string(name_of(encoding)) + " on " + kernels->isa;
        const Floats all = compute(kMost);
        for (int num_rows = 1; num_rows < kMost; num_rows += num_rows < 50 ? 1 : 7)
            report.expect_same(
                compute(num_rows), Floats(all.begin(), all.begin() + num_rows * num_outputs),
                where + ", " + std::to_string(num_rows) + " rows as of " + std::to_string(kMost));
        if (kernels->isa == std::string("generic")) continue;
        if (agreed.empty()) agreed = all;
        report.expect_same(all, agreed, where + " as on other instruction sets with FMA");
    }
}

}  // namespace

void test_linear(Report& report) {
    Random random(2);
    for (const int num_rows : {1, 2, 3, 17, 65}) {
        for (const Encoding encoding : kEncodings) {
            const Layer layer = make_layer(random, {{encoding, 83}});
            for (const bool quantize : {false, true})
                if (!quantize || encoding >= Encoding::Q8_0 || encoding == Encoding::BF16)
                    test_layer(report, name_of(encoding), layer, quantize, num_rows, random);
        }
        const Layer mixed =
            make_layer(random, {{Encoding::Q4_1, 33}, {Encoding::BF16, 7}, {Encoding::Q8_0, 64}});
        test_layer(report, "Q4_1 + BF16 + Q8_0", mixed, true, num_rows, random);
    }
    for (int i = int(Encoding::Q8_0); i <= int(Encoding::Q6_K); i++)
        test_row_counts(report, Encoding(i), random);
    for (const Kernels* kernels : tested_kernels())
        report.check(kernels->matrix_unit_works(), std::string("matrix unit of ") + kernels->isa);
    test_prologues(report, random);
    test_not_finite(report, random);
}

}  // namespace octavo::selftest
