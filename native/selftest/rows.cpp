// Embedding, norms and the gated activation.
#include <cmath>

#include "selftest.hpp"

namespace octavo::selftest {
namespace {

constexpr float kEps = 1e-5f;

void normalize(const float* x, const Floats& weight, double* out) {
    double squares = 0;
    for (size_t i = 0; i < weight.size(); i++) squares += double(x[i]) * x[i];
    const double scale = 1 / std::sqrt(squares / double(weight.size()) + kEps);
    for (size_t i = 0; i < weight.size(); i++) out[i] = x[i] * scale * weight[i];
}

void test_embed(Report& report, Random& random) {
    for (const Encoding encoding : kEncodings) {
        const Matrix table = make_matrix(random, encoding, 7, encoding >= Encoding::Q8_0 ? 96 : 37);
        report.compare(
            std::string("embed of ") + name_of(encoding), table.values, within(1e-6),
            [&](const Kernels& kernels, int num_threads) {
                const auto copy = [&](Tape& tape, Value, Value out) {
                    tape.embed({table.encoding, table.bytes.data(), table.num_rows, table.width}, out);
                };
                return run(kernels, num_threads, no_cache(), step_without_cache(7), table, table.width, copy);
            });
    }
}

void test_rms_norm(Report& report, Random& random) {
    for (const int width : {1, 15, 16, 63, 64, 100, 130}) {
        const Floats x = random.uniform(5 * width, -3, 3), weight = random.uniform(width, 0.5f, 1.5f);
        Doubles expected(x.size());
        for (int r = 0; r < 5; r++) normalize(&x[r * width], weight, &expected[r * width]);
        report.compare("rms_norm of " + std::to_string(width), expected, within(2e-6),
                       [&](const Kernels& kernels, int num_threads) {
                           return run(kernels, num_threads, no_cache(), step_without_cache(5),
                                      float_matrix(x, width), width, [&](Tape& tape, Value in, Value out) {
                                          tape.rms_norm(in, weight.data(), kEps, out);
                                      });
                       });
    }
}

void test_head_norm(Report& report, Random& random) {
    const int head_dim = 48, num_heads = 5, width = num_heads * head_dim;
    const Floats x = random.uniform(3 * width, -3, 3), weight = random.uniform(head_dim, 0.5f, 1.5f);
    Doubles expected(x.begin(), x.end());
    for (int r = 0; r < 3; r++)
        for (int h = 1; h < 4; h++)
            normalize(&x[r * width + h * head_dim], weight, &expected[r * width + h * head_dim]);
    report.compare("head_norm of heads 1 to 3", expected, within(2e-6),
                   [&](const Kernels& kernels, int num_threads) {
                       return run(kernels, num_threads, no_cache(5, 1, head_dim), step_without_cache(3),
                                  float_matrix(x, width), width, [&](Tape& tape, Value in, Value out) {
                                      tape.head_norm(in, 1, 3, weight.data(), head_dim, kEps, out);
                                  });
                   });
}

void test_silu_mul(Report& report, Random& random) {
    for (const int width : {1, 16, 45}) {
        const Floats x = random.uniform(4 * 2 * width, -20, 20);
        Doubles expected;
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < width; i++) {
                const double gate = x[r * 2 * width + i], up = x[r * 2 * width + width + i];
                expected.push_back(gate / (1 + std::exp(-gate)) * up);
            }
        report.compare("silu_mul of " + std::to_string(width), expected, within(2e-6),
                       [&](const Kernels& kernels, int num_threads) {
                           return run(kernels, num_threads, no_cache(), step_without_cache(4),
                                      float_matrix(x, 2 * width), width,
                                      [&](Tape& tape, Value in, Value out) { tape.silu_mul(in, out); });
                       });
    }
}

}  // namespace

void test_rows(Report& report) {
    Random random(1);
    test_embed(report, random);
    test_rms_norm(report, random);
    test_head_norm(report, random);
    test_silu_mul(report, random);
}

}  // namespace octavo::selftest
