// Paged attention. Placeholder.
#pragma once

#include "attention_plan.hpp"
#include "kernels.hpp"
#include "simd.hpp"

namespace octavo {
namespace {

inline void paged_attention(const AttentionArgs&, const StepView&, Worker&) {}

}  // namespace
}  // namespace octavo
