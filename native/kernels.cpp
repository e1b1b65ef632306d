// Compiled once per instruction set, with OCTAVO_ISA its name: everything included here becomes that one's
// kernels.
#include "kernels.hpp"

#include "attention.hpp"
#include "ceilings.hpp"
#include "elementwise.hpp"
#include "kv_write.hpp"
#include "linear.hpp"
#include "simd.hpp"

#define OCTAVO_NAME_OF(isa) OCTAVO_NAME_OF_(isa)
#define OCTAVO_NAME_OF_(isa) #isa
#define OCTAVO_TABLE_OF(isa) OCTAVO_TABLE_OF_(isa)
#define OCTAVO_TABLE_OF_(isa) kernels_##isa

namespace octavo {

extern const Kernels OCTAVO_TABLE_OF(OCTAVO_ISA);
const Kernels OCTAVO_TABLE_OF(OCTAVO_ISA) = {
    OCTAVO_NAME_OF(OCTAVO_ISA),
    embed,
    rms_norm,
    head_norm,
    linear,
    first_weights,
    rope_and_write,
    paged_attention,
    silu_mul,
    read_memory,
    multiply,
    matrix_unit_works,
};

}  // namespace octavo
