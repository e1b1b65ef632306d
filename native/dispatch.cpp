// Which instruction set runs: the best one that this CPU has, or a lower one by name.
#include "dispatch.hpp"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace octavo {

#define X(isa) extern const Kernels kernels_##isa;
OCTAVO_ISAS
#undef X

namespace {

bool supported(const std::string& isa) {
#if defined(__x86_64__)
    const auto avx2 = [] {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    };
    const auto avx512 = [&] {
        return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    };
    if (isa == "avx2") return avx2();
    if (isa == "avx512") return avx512();
    if (isa == "avx512_vnni") return avx512() && __builtin_cpu_supports("avx512vnni");
    if (isa == "avx512_bf16")
        return avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    if (isa == "neon") return true;
    const unsigned long has = getauxval(AT_HWCAP), has2 = getauxval(AT_HWCAP2);
    const bool dotprod = has & HWCAP_ASIMDDP, bf16 = has2 & HWCAP2_BF16;
    if (isa == "neon_dotprod") return dotprod;
    if (isa == "neon_bf16") return dotprod && bf16;
#endif
    return isa == "generic";
}

}  // namespace

std::vector<const Kernels*> available_kernels() {
    std::vector<const Kernels*> available;
#define X(isa) \
    if (supported(#isa)) available.insert(available.begin(), &kernels_##isa);
    OCTAVO_ISAS
#undef X
#if defined(__x86_64__)
    // Intel's vdpbf16ps takes two cycles of one port: half of what two FMA ports do with widened operands,
    // which are also more precise. On AMD it does one per cycle, twice as much.
    if (available.size() > 1 && available[0]->isa == std::string("avx512_bf16") && __builtin_cpu_is("intel"))
        std::swap(available[0], available[1]);
#endif
    return available;
}

const Kernels& find_kernels(const std::string& isa) {
    std::string choices;
    for (const Kernels* kernels : available_kernels()) {
        if (isa == kernels->isa) return *kernels;
        choices += (choices.empty() ? "" : ", ") + std::string(kernels->isa);
    }
    throw std::invalid_argument("instruction set '" + isa +
                                "' is not one of those this CPU and build have: " + choices);
}

const Kernels& default_kernels() {
    const char* forced = std::getenv("OCTAVO_ISA");
    if (!forced || !*forced) return *available_kernels().front();
    try {
        return find_kernels(forced);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument("OCTAVO_ISA: " + std::string(error.what()));
    }
}

}  // namespace octavo
