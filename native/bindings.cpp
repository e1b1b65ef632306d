// octavo._native: plain arrays in, plain arrays out. See src/octavo/_native.pyi for the Python side.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "dispatch.hpp"
#include "tape.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Data = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Times = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;
using Tiles = std::vector<std::pair<int, int64_t>>;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

Encoding parse_encoding(const std::string& name) {
#define X(name) {#name, Encoding::name},
    static const std::map<std::string, Encoding> names = {OCTAVO_ENCODINGS};
#undef X
    const auto found = names.find(name);
    if (found == names.end()) refuse("encoding '" + name + "' has no kernels");
    return found->second;
}

KVDtype parse_kv_dtype(const std::string& name) {
    if (name == "bfloat16") return KVDtype::BF16;
    if (name == "float16") return KVDtype::F16;
    if (name == "float32") return KVDtype::F32;
    if (name == "int8") return KVDtype::INT8;
    refuse("KV dtype '" + name + "' has no kernels");
}

Arithmetic parse_arithmetic(const std::string& name) {
    if (name == "float32") return Arithmetic::Float32;
    if (name == "bfloat16") return Arithmetic::BFloat16;
    if (name == "int8") return Arithmetic::Int8;
    refuse("arithmetic '" + name + "': choose float32, bfloat16 or int8");
}

template <class F>
double seconds_of(F&& f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void check_integers(const AnyArray& array, size_t ndim, const char* name) {
    bool contiguous = array.ndim() == ndim;
    int64_t stride = 1;
    for (size_t i = ndim; contiguous && i-- > 0; stride *= int64_t(array.shape(i)))
        contiguous = array.shape(i) <= 1 || array.stride(i) == stride;
    if (!contiguous || array.dtype() != nb::dtype<int32_t>())
        refuse(std::string(name) + " must be a C-contiguous int32 array of " + std::to_string(ndim) +
               " dimension(s)");
}

IntArray integers(const AnyArray& array, const char* name) {
    check_integers(array, 1, name);
    return {static_cast<const int32_t*>(array.data()), int64_t(array.shape(0))};
}

std::vector<TileAddress> tile_addresses(const Tiles& tiles) {
    std::vector<TileAddress> addresses;
    for (const auto& [table, offset] : tiles) addresses.push_back({table, offset});
    return addresses;
}

// A weight matrix: encoding, bytes, number of inputs, bias.
using WeightTuple = std::tuple<std::string, Bytes, int64_t, std::optional<Vector>>;

// One layer of the KV layout: block size, sliding window or 0, K tiles, V tiles.
using LayerTuple = std::tuple<int, int, Tiles, Tiles>;

void check_row_bytes(Encoding encoding, const std::string& name, const Bytes& data, int64_t width) {
    if (const int64_t values = block_values(encoding); width < 1 || width % values)
        refuse(name + " holds rows of a multiple of " + std::to_string(values) + " values, not of " +
               std::to_string(width));
    if (int64_t(data.shape(1)) != row_bytes(encoding, width))
        refuse("a row of " + std::to_string(width) + " values in " + name + " takes " +
               std::to_string(row_bytes(encoding, width)) + " bytes, the data has " +
               std::to_string(data.shape(1)));
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, m) {
    using namespace octavo;
    nb::set_leak_warnings(false);

    m.def("available_isas", [] {
        std::vector<std::string> names;
        for (const Kernels* kernels : available_kernels()) names.push_back(kernels->isa);
        return names;
    });
    m.def("isa", [] { return std::string(default_kernels().isa); });
    m.def("usable_cores", &usable_cores);

    nb::class_<Team>(m, "Team").def(nb::init<int>(), "count"_a).def_prop_ro("count", &Team::count);

    nb::class_<Value>(m, "Value")
        .def(
            "__init__",
            [](Value* self, int buffer, int64_t width, bool selected) {
                new (self) Value{buffer, width, selected};
            },
            "buffer"_a, "width"_a, "selected"_a);

    nb::class_<Embedding>(m, "Embedding")
        .def(
            "__init__",
            [](Embedding* self, const std::string& encoding, const Bytes& table, int64_t width) {
                const Encoding e = parse_encoding(encoding);
                check_row_bytes(e, encoding, table, width);
                new (self) Embedding{e, table.data(), int64_t(table.shape(0)), width};
            },
            "encoding"_a, "table"_a.noconvert(), "width"_a, nb::keep_alive<1, 3>());

    nb::class_<PackedLinear>(m, "PackedLinear")
        .def_ro("num_inputs", &PackedLinear::num_inputs)
        .def_ro("num_outputs", &PackedLinear::num_outputs)
        .def_prop_ro("all_quantized", &PackedLinear::all_quantized)
        .def_prop_ro("all_bf16", &PackedLinear::all_bf16);

    nb::class_<WeightMemory>(m, "WeightMemory").def(nb::init<>());

    m.def(
        "pack_linear",
        [](Team& team, WeightMemory& memory, const std::vector<WeightTuple>& weights) {
            std::vector<WeightView> views;
            for (const auto& [name, data, num_inputs, bias] : weights) {
                const Encoding encoding = parse_encoding(name);
                check_row_bytes(encoding, name, data, num_inputs);
                if (bias && bias->shape(0) != data.shape(0)) refuse("a bias must have one value per output");
                views.push_back({encoding, data.data(), int64_t(data.shape(0)), num_inputs,
                                 bias ? bias->data() : nullptr});
            }
            nb::gil_scoped_release release;
            return pack_linear(views, memory, team);
        },
        "team"_a, "memory"_a, "weights"_a);

    nb::class_<CacheView>(m, "Cache")
        .def(
            "__init__",
            [](CacheView* self, nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> arena,
               const std::string& dtype, int num_heads, int num_kv_heads, int head_dim, int num_tables,
               const Matrix& cos, const Matrix& sin, const std::vector<LayerTuple>& layers) {
                if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1))
                    refuse("cos and sin must have the same shape");
                if (num_kv_heads < 1 || head_dim < 1 || num_heads < 1 || num_heads % num_kv_heads)
                    refuse("num_heads must be a multiple of num_kv_heads, both at least 1");
                if (2 * int64_t(cos.shape(1)) > head_dim) refuse("cos is wider than half a head");
                CacheView view{arena.data(),
                               int64_t(arena.shape(0)),
                               int64_t(arena.shape(1)),
                               num_heads,
                               num_kv_heads,
                               head_dim,
                               num_tables,
                               parse_kv_dtype(dtype),
                               cos.data(),
                               sin.data(),
                               int64_t(cos.shape(0)),
                               2 * int(cos.shape(1)),
                               {}};
                for (const auto& [block_size, window, k_tiles, v_tiles] : layers)
                    view.layers.push_back(
                        {block_size, window, tile_addresses(k_tiles), tile_addresses(v_tiles)});
                new (self) CacheView(std::move(view));
            },
            "arena"_a.noconvert(), "dtype"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "num_tables"_a,
            "cos"_a.noconvert(), "sin"_a.noconvert(), "layers"_a, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>());

    nb::class_<Tape>(m, "Tape")
        .def(
            "__init__",
            [](Tape* self, std::shared_ptr<Team> team, const std::string& isa, int max_tokens,
               std::vector<int64_t> buffer_widths, const CacheView& cache) {
                new (self)
                    Tape(std::move(team), find_kernels(isa), max_tokens, std::move(buffer_widths), cache);
            },
            "team"_a, "isa"_a, "max_tokens"_a, "buffer_widths"_a, "cache"_a, nb::keep_alive<1, 6>())
        .def("embed", &Tape::embed, "table"_a, "out"_a, nb::keep_alive<1, 2>())
        .def(
            "rms_norm",
            [](Tape& self, Value in, const Vector& weight, float eps, Value out) {
                if (int64_t(weight.shape(0)) != in.width)
                    refuse("rms_norm: the weight must be as wide as the input");
                self.rms_norm(in, weight.data(), eps, out);
            },
            "x"_a, "weight"_a.noconvert(), "eps"_a, "out"_a, nb::keep_alive<1, 3>())
        .def(
            "head_norm",
            [](Tape& self, Value in, int first_head, int num_heads, const Vector& weight, float eps,
               Value out) {
                self.head_norm(in, first_head, num_heads, weight.data(), int64_t(weight.shape(0)), eps, out);
            },
            "qkv"_a, "first_head"_a, "num_heads"_a, "weight"_a.noconvert(), "eps"_a, "out"_a,
            nb::keep_alive<1, 5>())
        .def(
            "linear",
            [](Tape& self, Value in, std::shared_ptr<PackedLinear> weight, bool quantize_input,
               std::optional<Value> residual, Value out) {
                self.linear(in, {}, std::move(weight), quantize_input, residual ? &*residual : nullptr, out);
            },
            "x"_a, "weight"_a, "quantize_input"_a, "residual"_a.none(), "out"_a)
        .def(
            "norm_linear",
            [](Tape& self, Value in, const Vector& norm_weight, float eps,
               std::shared_ptr<PackedLinear> weight, std::optional<Value> residual, Value out) {
                if (int64_t(norm_weight.shape(0)) != in.width)
                    refuse("norm_linear: the norm's weight must be as wide as the input");
                self.linear(in, {Prologue::RmsNorm, norm_weight.data(), eps}, std::move(weight), true,
                            residual ? &*residual : nullptr, out);
            },
            "x"_a, "norm_weight"_a.noconvert(), "eps"_a, "weight"_a, "residual"_a.none() = nb::none(),
            nb::kw_only(), "out"_a, nb::keep_alive<1, 3>())
        .def(
            "silu_linear",
            [](Tape& self, Value in, std::shared_ptr<PackedLinear> weight, std::optional<Value> residual,
               Value out) {
                self.linear(in, {Prologue::SiluMul, nullptr, 0}, std::move(weight), true,
                            residual ? &*residual : nullptr, out);
            },
            "x"_a, "weight"_a, "residual"_a.none() = nb::none(), nb::kw_only(), "out"_a)
        .def("rope_and_write", &Tape::rope_and_write, "qkv"_a, "layer"_a, "out"_a)
        .def("paged_attention", &Tape::paged_attention, "q"_a, "layer"_a, "out"_a)
        .def("silu_mul", &Tape::silu_mul, "gate_up"_a, "out"_a)
        .def("select", &Tape::select, "x"_a, "out"_a)
        .def(
            "run",
            [](Tape& self, const AnyArray& token_ids, const AnyArray& positions, const AnyArray& rows,
               const AnyArray& query_start, const AnyArray& context_len, const AnyArray& logit_tokens,
               const std::vector<AnyArray>& block_tables, const Output& output,
               const std::optional<Times>& op_seconds) {
                StepArrays step{integers(token_ids, "token_ids"),
                                integers(positions, "positions"),
                                integers(rows, "rows"),
                                integers(query_start, "query_start"),
                                integers(context_len, "context_len"),
                                integers(logit_tokens, "logit_tokens"),
                                {}};
                for (const AnyArray& table : block_tables) {
                    check_integers(table, 2, "a block table");
                    step.block_tables.push_back({static_cast<const int32_t*>(table.data()),
                                                 int64_t(table.shape(0)), int64_t(table.shape(1))});
                }
                if (op_seconds && op_seconds->shape(0) != self.num_ops())
                    refuse("op_seconds must have room for " + std::to_string(self.num_ops()) + " operations");
                nb::gil_scoped_release release;
                return self.run(step, output.data(), int64_t(output.shape(0)), int64_t(output.shape(1)),
                                op_seconds ? op_seconds->data() : nullptr);
            },
            "token_ids"_a, "positions"_a, "rows"_a, "query_start"_a, "context_len"_a, "logit_tokens"_a,
            "block_tables"_a, "output"_a.noconvert(), "op_seconds"_a.noconvert().none() = nb::none())
        .def("op_names", &Tape::op_names)
        .def("attention_pieces", [](const Tape& self) {
            std::vector<std::tuple<int, std::vector<int>, int, int>> pieces;
            for (AttentionPiece& piece : self.attention_pieces())
                pieces.emplace_back(piece.row, std::move(piece.tokens), piece.part_begin, piece.part_end);
            return pieces;
        });

    m.def(
        "read_memory",
        [](Team& team, const std::string& isa, const Data& data, int64_t passes, bool is_private) {
            const Kernels& kernels = find_kernels(isa);
            const ReadArgs args = {data.data(), int64_t(data.shape(0)), passes, is_private};
            nb::gil_scoped_release release;
            return seconds_of([&] { team.run([&](Worker& worker) { kernels.read_memory(args, worker); }); });
        },
        "team"_a, "isa"_a, "data"_a.noconvert(), "passes"_a = 1, "is_private"_a = false);
    m.def(
        "multiply",
        [](Team& team, const std::string& isa, const std::string& name, int64_t rounds) {
            const Kernels& kernels = find_kernels(isa);
            const Arithmetic arithmetic = parse_arithmetic(name);
            std::atomic<int64_t> operations{0};
            nb::gil_scoped_release release;
            const double seconds = seconds_of([&] {
                team.run([&](Worker& worker) {
                    worker.for_each(worker.count(),
                                    [&](int64_t) { operations += kernels.multiply(arithmetic, rounds); });
                });
            });
            return std::pair(operations.load(), seconds);
        },
        "team"_a, "isa"_a, "arithmetic"_a, "rounds"_a);
    m.def(
        "run_empty_loops",
        [](Team& team, int64_t count) {
            nb::gil_scoped_release release;
            return seconds_of([&] {
                team.run([&](Worker& worker) {
                    for (int64_t i = 0; i < count; i++) worker.for_each(worker.count(), [](int64_t) {});
                });
            });
        },
        "team"_a, "count"_a);
}
