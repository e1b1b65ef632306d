// The tables of kernels that are compiled in; see dispatch.cpp.
#pragma once

#include <string>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// All of them, worst first.
const std::vector<const Kernels*>& compiled_kernels();

// Those whose instruction set this CPU has, best first. Found out once.
const std::vector<const Kernels*>& available_kernels();

// By name. Throws std::invalid_argument, listing the choices.
const Kernels& find_kernels(const std::string& isa);

// The best, or the one that OCTAVO_ISA in the environment names.
const Kernels& default_kernels();

}  // namespace octavo
