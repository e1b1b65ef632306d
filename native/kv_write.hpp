// RoPE and the write of K and V to the cache. Placeholder.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

inline void rope_and_write(const RopeWriteArgs&, const StepView&, Worker&) {}

}  // namespace
}  // namespace octavo
