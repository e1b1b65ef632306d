#include "attention_plan.hpp"

namespace octavo {

AttentionPlan::AttentionPlan(const LayerWindow&, int, int, int) {}
void AttentionPlan::build(const StepView&) {}

}  // namespace octavo
