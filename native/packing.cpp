#include "packing.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "blocks.hpp"
#include "packed_linear.hpp"

namespace octavo {
namespace {

// Bytes of one panel's tiles and of its scales.
std::pair<int64_t, int64_t> panel_bytes(Encoding encoding, int64_t num_inputs) {
    const Form form = form_of(encoding);
    if (encoding == Encoding::BF16) return {(num_inputs + 1) / 2 * kPanel * 4, 0};
    if (!is_quantized(encoding)) return {num_inputs * kPanel * form.block_bytes, 0};
    return {num_inputs / kGroup * form.tile_bytes(), num_inputs / form.block_values * form.scale_bytes()};
}

// One group of an output into place `n` of its tile.
template <Encoding encoding>
void pack_codes(const uint8_t* codes, int n, uint8_t* tile) {
    if constexpr (form_of(encoding).code_bits == 4) {
        for (int i = 0; i < 16; i++)
            tile[(i / 4 * kPanel + n) * 4 + i % 4] = uint8_t(codes[i] | codes[i + 16] << 4);
    } else {
        for (int i = 0; i < 8; i++) std::memcpy(tile + (i * kPanel + n) * 4, codes + 4 * i, 4);
    }
}

template <Encoding encoding>
void pack_blocks(const uint8_t* block, int64_t num_inputs, int n, uint8_t* tile, uint8_t* scales) {
    constexpr Form form = form_of(encoding);
    constexpr HalfPlaces places = half_places(encoding);
    for (int64_t b = 0; b < num_inputs / form.block_values; b++) {
        std::memcpy(scales + n * 2, block + places.scale, 2);
        if (form.has_minimum) std::memcpy(scales + (kPanel + n) * 2, block + places.minimum, 2);
        // Superblocks subtract their minimums: adding the negative is the same.
        if (form.has_minimum && form.in_superblocks()) scales[(kPanel + n) * 2 + 1] ^= 0x80;
        uint8_t* integers = scales + form.half_bytes();
        for (int g = 0; g < form.block_values / kGroup; g++) {
            Group group;
            read_group(encoding, block, g, group);
            pack_codes<encoding>(group.codes, n, tile);
            if constexpr (form.in_superblocks()) {
                constexpr int count = form.halves ? 2 : 1;
                for (int h = 0; h < count; h++) {
                    integers[h * kPanel + n] = uint8_t(group.scales[h]);
                    if (form.has_minimum) integers[(count + h) * kPanel + n] = group.minimums[h];
                }
            }
            tile += form.tile_bytes();
            integers += form.integer_bytes();
        }
        block += form.block_bytes;
        scales += form.scale_bytes();
    }
}

// One output's row into place `n` of a zeroed panel.
template <Encoding encoding>
void pack_row(const uint8_t* row, int64_t num_inputs, int n, uint8_t* panel, uint8_t* scales) {
    if constexpr (encoding == Encoding::F32) {
        for (int64_t k = 0; k < num_inputs; k++) std::memcpy(panel + (k * kPanel + n) * 4, row + k * 4, 4);
    } else if constexpr (encoding == Encoding::F16) {
        for (int64_t k = 0; k < num_inputs; k++) std::memcpy(panel + (k * kPanel + n) * 2, row + k * 2, 2);
    } else if constexpr (encoding == Encoding::BF16) {
        for (int64_t k = 0; k < num_inputs; k++)
            std::memcpy(panel + (k / 2 * kPanel + n) * 4 + k % 2 * 2, row + k * 2, 2);
    } else {
        pack_blocks<encoding>(row, num_inputs, n, panel, scales);
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

int64_t block_values(Encoding encoding) { return form_of(encoding).block_values; }

int64_t row_bytes(Encoding encoding, int64_t width) {
    const Form form = form_of(encoding);
    return width / form.block_values * form.block_bytes;
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
        if (const int64_t values = block_values(weight.encoding); weight.num_inputs % values)
            throw std::invalid_argument("a quantized weight matrix of " + size +
                                        ": the number of inputs must be a multiple of " +
                                        std::to_string(values));
        Segment segment{};
        segment.encoding = packed_as(weight.encoding);
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
                const uint8_t* rows = weight.data + p * kPanel * stride;
                with_encoding(weight.encoding, [&](auto encoding) {
                    for (int n = 0; n < count; n++)
                        pack_row<encoding.value>(rows + n * stride, weight.num_inputs, n, tile, scale);
                });
            });
        });
    }
    layer->num_segments = int(layer->owned_segments.size());
    layer->segments = layer->owned_segments.data();
    return layer;
}

}  // namespace octavo
