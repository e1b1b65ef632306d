// Linear layers. Placeholder.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

inline void linear(const LinearArgs&, Worker&) {}

}  // namespace
}  // namespace octavo
