#include "packing.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "packed_linear.hpp"

namespace octavo {
namespace {

bool is_quantized(Encoding encoding) { return encoding >= Encoding::Q8_0; }

// Bytes of one panel's tiles and of its scales.
std::pair<int64_t, int64_t> panel_bytes(Encoding encoding, int64_t num_inputs) {
    const int64_t groups = num_inputs / kGroup;
    switch (encoding) {
        case Encoding::F32:
            return {num_inputs * kPanel * 4, 0};
        case Encoding::F16:
            return {num_inputs * kPanel * 2, 0};
        case Encoding::BF16:
            return {(num_inputs + 1) / 2 * kPanel * 4, 0};
        case Encoding::Q8_0:
            return {groups * 512, groups * 32};
        case Encoding::Q4_0:
            return {groups * 256, groups * 32};
        case Encoding::Q4_1:
            return {groups * 256, groups * 64};
    }
    return {0, 0};
}

// One output's row into place `n` of a zeroed panel.
void pack_row(Encoding encoding, const uint8_t* row, int64_t num_inputs, int n, uint8_t* panel,
              uint8_t* scales) {
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
                std::memcpy(scales + (g * kPanel + n) * 2, block, 2);
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
                    std::memcpy(scales + ((g * num_parameters + p) * kPanel + n) * 2, block + 2 * p, 2);
            }
            break;
        }
    }
}

int64_t segment_bytes(const Segment& segment) {
    const int64_t bytes = segment.num_panels * (segment.tile_bytes + segment.scale_bytes);
    return (bytes + 63) / 64 * 64;
}

// A packed layer with the memory that it points to.
struct OwningLinear : PackedLinear {
    std::vector<Segment> owned_segments;
    std::vector<std::vector<float>> owned_biases;
    std::shared_ptr<uint8_t> memory;
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

std::shared_ptr<PackedLinear> pack_linear(const std::vector<WeightView>& weights, WeightMemory& memory,
                                          Team& team) {
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
        Segment segment{};
        segment.encoding = weight.encoding;
        segment.first_output = layer->num_outputs;
        segment.num_outputs = weight.num_outputs;
        segment.num_panels = (weight.num_outputs + kPanel - 1) / kPanel;
        std::tie(segment.tile_bytes, segment.scale_bytes) = panel_bytes(weight.encoding, weight.num_inputs);
        layer->owned_segments.push_back(segment);
        layer->num_outputs += weight.num_outputs;
        bytes += segment_bytes(segment);
    }
    layer->memory = memory.allocate(bytes);

    uint8_t* next = layer->memory.get();
    for (size_t s = 0; s < weights.size(); s++) {
        const WeightView& weight = weights[s];
        Segment& segment = layer->owned_segments[s];
        uint8_t* tiles = next;
        uint8_t* scales = tiles + segment.num_panels * segment.tile_bytes;
        next += segment_bytes(segment);
        segment.tiles = tiles;
        segment.scales = scales;
        if (weight.bias) {
            auto& bias = layer->owned_biases.emplace_back(weight.bias, weight.bias + weight.num_outputs);
            bias.resize(segment.num_panels * kPanel);
            segment.bias = bias.data();
        }
        const int64_t stride = row_bytes(weight.encoding, weight.num_inputs);
        team.run([&](Worker& worker) {
            worker.for_each(segment.num_panels, [&](int64_t p) {
                uint8_t *tile = tiles + p * segment.tile_bytes, *scale = scales + p * segment.scale_bytes;
                std::memset(tile, 0, segment.tile_bytes);
                std::memset(scale, 0, segment.scale_bytes);
                const int count = int(std::min<int64_t>(kPanel, weight.num_outputs - p * kPanel));
                for (int n = 0; n < count; n++)
                    pack_row(weight.encoding, weight.data + (p * kPanel + n) * stride, weight.num_inputs, n,
                             tile, scale);
            });
        });
    }
    layer->num_segments = int(layer->owned_segments.size());
    layer->segments = layer->owned_segments.data();
    return layer;
}

}  // namespace octavo
