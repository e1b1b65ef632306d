// Which instruction set runs: the best one that this CPU has, or a lower one by name.
#include "dispatch.hpp"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {

#define X(isa) extern const Kernels kernels_##isa;
OCTAVO_ISAS
#undef X

namespace {

#if defined(__x86_64__)
// AMX has registers so large that Linux saves them only for a process that has asked for it.
bool tile_registers_granted() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool supported(const Kernels& kernels) {
    const std::string isa = kernels.isa;
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
    // Trusted once it has multiplied something: few machines have it to be tested on.
    if (isa == "avx512_amx")
        return avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("amx-tile") &&
               __builtin_cpu_supports("amx-int8") && tile_registers_granted() && kernels.matrix_unit_works();
#elif defined(__aarch64__)
    if (isa == "neon") return true;
    const unsigned long has = getauxval(AT_HWCAP), has2 = getauxval(AT_HWCAP2);
    const bool dotprod = has & HWCAP_ASIMDDP, bf16 = has2 & HWCAP2_BF16;
    if (isa == "neon_dotprod") return dotprod;
    if (isa == "neon_bf16") return dotprod && bf16;
#endif
    return isa == "generic";
}

std::vector<const Kernels*> find_available() {
    std::vector<const Kernels*> available;
    for (const Kernels* kernels : compiled_kernels())
        if (supported(*kernels)) available.insert(available.begin(), kernels);
#if defined(__x86_64__)
    // Intel's vdpbf16ps takes two cycles of one port: half of what two FMA ports do with widened operands,
    // which are also more precise. On AMD it does one per cycle, twice as much.
    for (size_t i = 0; i + 1 < available.size(); i++)
        if (available[i]->isa == std::string("avx512_bf16") && __builtin_cpu_is("intel")) {
            std::swap(available[i], available[i + 1]);
            break;
        }
#endif
    return available;
}

}  // namespace

const std::vector<const Kernels*>& compiled_kernels() {
#define X(isa) &kernels_##isa,
    static const std::vector<const Kernels*> compiled = {OCTAVO_ISAS};
#undef X
    return compiled;
}

const std::vector<const Kernels*>& available_kernels() {
    static const std::vector<const Kernels*> available = find_available();
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
