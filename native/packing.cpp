#include "packing.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "packed_linear.hpp"

namespace octavo {
namespace {

bool is_quantized(Encoding encoding) { return encoding >= Encoding::Q8_0; }

int64_t panel_bytes(Encoding encoding, int64_t num_inputs) {
    const int64_t groups = num_inputs / kGroup;
    int64_t bytes = 0;
    switch (encoding) {
        case Encoding::F32:
            bytes = num_inputs * kPanel * 4;
            break;
        case Encoding::F16:
            bytes = num_inputs * kPanel * 2;
            break;
        case Encoding::BF16:
            bytes = (num_inputs + 1) / 2 * kPanel * 4;
            break;
        case Encoding::Q8_0:
            bytes = groups * (512 + 32);
            break;
        case Encoding::Q4_0:
            bytes = groups * (256 + 32);
            break;
        case Encoding::Q4_1:
            bytes = groups * (256 + 64);
            break;
    }
    return (bytes + 63) / 64 * 64;
}

// One output's row into place `n` of a zeroed panel.
void pack_row(Encoding encoding, const uint8_t* row, int64_t num_inputs, int n, uint8_t* panel) {
    const int64_t groups = num_inputs / kGroup;
    switch (encoding) {
        case Encoding::F32:
            for (int64_t k = 0; k < num_inputs; k++)
                std::memcpy(panel + (k * kPanel + n) * 4, row + k * 4, 4);
            break;
        case Encoding::F16:
            for (int64_t k = 0; k < num_inputs; k++)
                std::memcpy(panel + (k * kPanel + n) * 2, row + k * 2, 2);
            break;
        case Encoding::BF16:
            for (int64_t k = 0; k < num_inputs; k++)
                std::memcpy(panel + (k / 2 * kPanel + n) * 4 + k % 2 * 2, row + k * 2, 2);
            break;
        case Encoding::Q8_0:
            for (int64_t g = 0; g < groups; g++) {
                const uint8_t* block = row + g * 34;
                for (int k = 0; k < kGroup; k++)
                    panel[g * 512 + (k / 4 * kPanel + n) * 4 + k % 4] = block[2 + k] ^ 0x80;
                std::memcpy(panel + groups * 512 + (g * kPanel + n) * 2, block, 2);
            }
            break;
        case Encoding::Q4_0:
        case Encoding::Q4_1: {
            const int num_parameters = encoding == Encoding::Q4_1 ? 2 : 1;
            const int header = 2 * num_parameters;
            for (int64_t g = 0; g < groups; g++) {
                const uint8_t* block = row + g * (header + 16);
                for (int i = 0; i < 4; i++)
                    std::memcpy(panel + g * 256 + (i * kPanel + n) * 4, block + header + 4 * i, 4);
                for (int p = 0; p < num_parameters; p++)
                    std::memcpy(panel + groups * 256 + ((g * num_parameters + p) * kPanel + n) * 2,
                                block + 2 * p, 2);
            }
            break;
        }
    }
}

struct FreeAligned {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

// A packed layer with the memory that it points to.
struct OwningLinear : PackedLinear {
    std::vector<Segment> owned_segments;
    std::vector<std::vector<float>> owned_biases;
    std::unique_ptr<uint8_t[], FreeAligned> memory;
};

}  // namespace

int64_t row_bytes(Encoding encoding, int64_t width) {
    switch (encoding) {
        case Encoding::F32:
            return width * 4;
        case Encoding::F16:
        case Encoding::BF16:
            return width * 2;
        case Encoding::Q8_0:
            return width / kGroup * 34;
        case Encoding::Q4_0:
            return width / kGroup * 18;
        case Encoding::Q4_1:
            return width / kGroup * 20;
    }
    return 0;
}

std::shared_ptr<PackedLinear> pack_linear(const std::vector<WeightView>& weights, Team& team) {
    if (weights.empty()) throw std::invalid_argument("a linear layer needs at least one weight matrix");
    auto layer = std::make_shared<OwningLinear>();
    layer->num_inputs = weights[0].num_inputs;
    layer->num_outputs = 0;
    int64_t bytes = 0;
    for (const WeightView& weight : weights) {
        const std::string size =
            std::to_string(weight.num_outputs) + " x " + std::to_string(weight.num_inputs);
        if (weight.num_outputs < 1 || weight.num_inputs < 1)
            throw std::invalid_argument("a weight matrix of " + size + " is empty");
        if (weight.num_inputs != layer->num_inputs)
            throw std::invalid_argument("the matrices of a layer must have the same number of inputs, got " +
                                        std::to_string(layer->num_inputs) + " and " +
                                        std::to_string(weight.num_inputs));
        if (is_quantized(weight.encoding) && weight.num_inputs % kGroup)
            throw std::invalid_argument("a quantized weight matrix of " + size +
                                        ": the number of inputs must be a multiple of 32");
        const int64_t num_panels = (weight.num_outputs + kPanel - 1) / kPanel;
        layer->owned_segments.push_back({weight.encoding, layer->num_outputs, weight.num_outputs, num_panels,
                                         panel_bytes(weight.encoding, weight.num_inputs), nullptr, nullptr});
        layer->num_outputs += weight.num_outputs;
        bytes += num_panels * layer->owned_segments.back().panel_bytes;
    }
    layer->memory.reset(static_cast<uint8_t*>(::operator new[](bytes, std::align_val_t(64))));

    uint8_t* next = layer->memory.get();
    for (size_t s = 0; s < weights.size(); s++) {
        const WeightView& weight = weights[s];
        Segment& segment = layer->owned_segments[s];
        uint8_t* panels = next;
        next += segment.num_panels * segment.panel_bytes;
        segment.panels = panels;
        if (weight.bias) {
            auto& bias = layer->owned_biases.emplace_back(weight.bias, weight.bias + weight.num_outputs);
            bias.resize(segment.num_panels * kPanel);
            segment.bias = bias.data();
        }
        const int64_t stride = row_bytes(weight.encoding, weight.num_inputs);
        team.run([&](Worker& worker) {
            worker.for_each(segment.num_panels, [&](int64_t p) {
                uint8_t* panel = panels + p * segment.panel_bytes;
                std::memset(panel, 0, segment.panel_bytes);
                const int count = int(std::min<int64_t>(kPanel, weight.num_outputs - p * kPanel));
                for (int n = 0; n < count; n++)
                    pack_row(weight.encoding, weight.data + (p * kPanel + n) * stride, weight.num_inputs, n,
                             panel);
            });
        });
    }
    layer->num_segments = int(layer->owned_segments.size());
    layer->segments = layer->owned_segments.data();
    return layer;
}

}  // namespace octavo
