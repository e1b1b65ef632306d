// The work items of one step's attention, and scratch for partial results. Placeholder.
// Kernels include this: what needs std:: containers goes to attention_plan.cpp, which is compiled once.
#pragma once

#include "kernels.hpp"

namespace octavo {

// One for all layers that share a block size, a sliding window and their head counts.
class AttentionPlan {
  public:
    AttentionPlan(const LayerWindow& window, int num_heads, int sliding_window, int num_workers);

    // Called once per step by one thread, before the parallel region; may allocate.
    void build(const StepView& step);
};

}  // namespace octavo
