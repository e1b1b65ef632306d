// Linear layers. One kernel for any number of rows: each tile of 32 inputs x 16 outputs is unpacked once and
// meets all rows of a block, whose sums wait in the first-level cache. Each output adds up its inputs, or
// groups of them, from first to last, whatever the number of rows, so a row's result does not depend on its
// company.
#pragma once

#include "linear_bf16.hpp"
#include "linear_float.hpp"
#include "linear_int8.hpp"

namespace octavo {
namespace {

// Whether a layer sees its input rounded to bfloat16.
OCTAVO_INLINE bool rounds_input(const LinearArgs& args) {
    return kHasBf16Dot && args.quantize_input && args.weight->all_bf16();
}

inline void linear_item(const LinearArgs& args, const LinearItem& item) {
    if constexpr (kHasBf16Dot)
        if (item.rounded.data) return pair_item(args, item);
    with_encoding(item.segment->encoding, [&](auto encoding) {
        // What is packed as another never comes here.
        if constexpr (packed_as(encoding.value) == encoding.value) {
            if constexpr (is_quantized(encoding.value))
                if (args.quantize_input) return quantized_item<encoding.value>(args, item);
            float_item<encoding.value>(args, item);
        }
    });
}

OCTAVO_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How the work on a segment is cut into items.
struct Split {
    int rows;  // of a block
    int64_t row_blocks, panels;
    int64_t num_items;

    struct Place {
        int64_t panels, row_block;
    };

    // Of item i. Where there are rows enough, each worker's share of the items is a share of the rows, the
    // same one in all layers; some panels after the other, which stay in the cache while all these rows meet
    // them.
    OCTAVO_INLINE Place place(int64_t i, int num_workers) const {
        if (row_blocks < num_workers) return {i / row_blocks, i % row_blocks};
        const int64_t groups = num_items / row_blocks;
        int64_t part = i * num_workers / num_items;
        const auto first_of = [&](int64_t p) { return row_blocks * p / num_workers; };
        while (i < first_of(part) * groups) part--;
        while (i >= first_of(part + 1) * groups) part++;
        const int64_t first = first_of(part), count = first_of(part + 1) - first;
        i -= first * groups;
        return {i / count, first + i % count};
    }
};

// Small enough to share out evenly, large enough that claiming costs nothing. Few rows are bound by reading
// weights, and long reads are faster. Of many, a block's input should stay in the cache for all panels.
OCTAVO_INLINE Split split_of(const LinearArgs& args, const Segment& segment, int num_workers) {
    Split split;
    split.rows = kRowBlock;
    const bool rounded = rounds_input(args);
    if (!args.quantize_input || !segment.is_quantized()) {
        const int64_t fitting = kFloatInputBytes / ((rounded ? 2 : 4) * args.weight->num_inputs) / 12 * 12;
        const int most = rounded ? 8 * 12 : kRowBlock;
        split.rows = int(fitting < 12 ? 12 : fitting < most ? fitting : most);
    }
    split.row_blocks = divide_up(args.num_rows, split.rows);
    const bool few = args.num_rows < kRowBlock / 2;
    const int64_t fair =
        divide_up(segment.num_panels * split.row_blocks, (few ? 4 : 16) * int64_t(num_workers));
    const int64_t most = divide_up(few ? 256 << 10 : 1 << 20, segment.tile_bytes);
    const int64_t together = rounded ? kPairPanels : segment.is_quantized() ? kDotPanels : kFloatPanels;
    split.panels = divide_up(fair < most ? fair : most, together) * together;
    split.num_items = divide_up(segment.num_panels, split.panels) * split.row_blocks;
    return split;
}

// The weights that a worker's share of a layer begins with, or null.
inline const uint8_t* first_weights(const LinearArgs& args, const Worker& worker) {
    if (args.num_rows == 0) return nullptr;
    const PackedLinear& layer = *args.weight;
    const auto split = [&](const Segment& segment) { return split_of(args, segment, worker.count()); };
    int64_t num_items = 0;
    for (int s = 0; s < layer.num_segments; s++) num_items += split(layer.segments[s]).num_items;
    int64_t i = num_items * worker.id() / worker.count();
    for (int s = 0; s < layer.num_segments; s++) {
        const Segment& segment = layer.segments[s];
        const Split by = split(segment);
        if (i < by.num_items)
            return segment.tiles + by.place(i, worker.count()).panels * by.panels * segment.tile_bytes;
        i -= by.num_items;
    }
    return nullptr;
}

// A row of the input after the other made what the dot products read, by all workers together or by each for
// itself. Returns where they lie.
template <class Input>
OCTAVO_INLINE uint8_t* prepare_input(const LinearArgs& args, Worker& worker, Input&& prepare_row) {
    auto* place = static_cast<uint8_t*>(args.scratch);
    if (args.num_rows > kFewRows) {
        worker.for_each(args.num_rows, [&](int64_t r) { prepare_row(place, r); });
    } else {
        // A late worker may still be at an earlier layer, of another width: its place must not depend on it.
        place += worker.id() * (args.scratch_bytes / 64 / worker.count() * 64);
        for (int r = 0; r < args.num_rows; r++) prepare_row(place, r);
    }
    return place;
}

OCTAVO_INLINE QuantizedGroup* as_groups(uint8_t* place) { return reinterpret_cast<QuantizedGroup*>(place); }

inline void linear(const LinearArgs& args, Worker& worker) {
    if (args.num_rows == 0) return;  // a step whose tokens' logits nobody wants
    const PackedLinear& layer = *args.weight;
    QuantizedGroup* groups = nullptr;
    RoundedRows rounded = {};
    if (rounds_input(args))
        rounded = rounded_rows(args, prepare_input(args, worker, [&](uint8_t* place, int64_t r) {
                                   round_row(args, r, rounded_rows(args, place));
                               }));
    else if (args.quantize_input && layer.any_quantized())
        groups = as_groups(prepare_input(
            args, worker, [&](uint8_t* place, int64_t r) { quantize_row(args, r, as_groups(place)); }));
    const auto split = [&](const Segment& segment) { return split_of(args, segment, worker.count()); };
    int64_t num_items = 0;
    for (int s = 0; s < layer.num_segments; s++) num_items += split(layer.segments[s]).num_items;
    worker.for_each(num_items, [&](int64_t i) {
        const Segment* segment = layer.segments;
        Split by = split(*segment);
        for (; i >= by.num_items; by = split(*++segment)) i -= by.num_items;
        const auto [panels, row_block] = by.place(i, worker.count());
        const int64_t first = panels * by.panels;
        const int64_t end = first + by.panels < segment->num_panels ? first + by.panels : segment->num_panels;
        const int row = int(row_block) * by.rows;
        const int end_row = row + by.rows < args.num_rows ? row + by.rows : args.num_rows;
        linear_item(args, {segment, groups ? row_groups(args, groups, row) : RowGroups{}, rounded, first, end,
                           row, end_row});
    });
}

}  // namespace
}  // namespace octavo
