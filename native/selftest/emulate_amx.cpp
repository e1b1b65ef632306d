// AMX on a CPU without it: each of its instructions that a kernel comes to raises a signal, and is carried
// out by the signal's handler as Intel's manual says. So the kernels are tested down to their last byte of
// machine code.
#include "selftest.hpp"

#if defined(__x86_64__)
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>

namespace octavo::selftest {
namespace {

struct Shapes {  // as in memory
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Of one thread. Without a palette there are no registers.
struct Registers {
    Shapes shapes;
    uint8_t bytes[8][16][64];
};
thread_local Registers registers;

void require(bool ok, const char* what) {
    if (ok) return;
    const char* const parts[] = {"FAILED: emulated AMX: ", what, "\n"};
    for (const char* part : parts) (void)!write(STDERR_FILENO, part, std::strlen(part));
    _exit(1);
}

void configure(const uint8_t* p) {
    registers = {};
    Shapes& shapes = registers.shapes;
    std::memcpy(&shapes, p, sizeof shapes);
    const Shapes none{};
    require(shapes.palette == 1 && shapes.first_row == 0, "palette 1 and row 0");
    require(std::memcmp(shapes.reserved, none.reserved, sizeof none.reserved) == 0, "reserved bytes are 0");
    for (int i = 0; i < 16; i++) {
        const int most_rows = i < 8 ? 16 : 0, most_bytes = i < 8 ? 64 : 0;
        require(shapes.rows[i] <= most_rows && shapes.row_bytes[i] <= most_bytes, "shapes fit the registers");
    }
}

void load(int to, const uint8_t* p, int64_t stride) {
    std::memset(registers.bytes[to], 0, sizeof registers.bytes[to]);
    for (int i = 0; i < registers.shapes.rows[to]; i++)
        std::memcpy(registers.bytes[to][i], p + i * stride, registers.shapes.row_bytes[to]);
}

void store(int from, uint8_t* p, int64_t stride) {
    for (int i = 0; i < registers.shapes.rows[from]; i++)
        std::memcpy(p + i * stride, registers.bytes[from][i], registers.shapes.row_bytes[from]);
}

// Signed bytes on the left, unsigned ones on the right.
void multiply(int sums, int left, int right) {
    const Shapes& shapes = registers.shapes;
    const int rows = shapes.rows[sums], depth = shapes.row_bytes[left], row_bytes = shapes.row_bytes[sums];
    require(rows == shapes.rows[left] && row_bytes == shapes.row_bytes[right] &&
                depth == 4 * shapes.rows[right] && row_bytes % 4 == 0,
            "shapes fit each other");
    require(sums != left && sums != right && left != right, "three registers");
    for (int i = 0; i < rows; i++)
        for (int n = 0; n < row_bytes / 4; n++) {
            uint32_t sum;
            std::memcpy(&sum, &registers.bytes[sums][i][4 * n], 4);
            for (int k = 0; k < depth; k++)
                sum += uint32_t(int8_t(registers.bytes[left][i][k]) *
                                registers.bytes[right][k / 4][4 * n + k % 4]);
            std::memcpy(&registers.bytes[sums][i][4 * n], &sum, 4);
        }
}

constexpr int kGeneral[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// Carries out the instruction at the thread's place and goes on to the next: the three bytes of a long VEX
// prefix, opcode, ModRM, and perhaps SIB and a displacement. Register numbers in the prefix are inverted.
void carry_out(int, siginfo_t*, void* context) {
    greg_t(&general)[NGREG] = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto* bytes = reinterpret_cast<const uint8_t*>(general[REG_RIP]);
    require(bytes[0] == 0xc4 && (bytes[1] & 31) == 2 && (bytes[2] & 0x84) == 0, "an instruction of AMX");
    const int base_high = bytes[1] & 0x20 ? 0 : 8, index_high = bytes[1] & 0x40 ? 0 : 8;
    const int operation = bytes[3] << 4 | (bytes[2] & 3), vector = ~bytes[2] >> 3 & 15;
    const int mode = bytes[4] >> 6, reg = bytes[4] >> 3 & 7, rm = bytes[4] & 7;
    const uint8_t* next = bytes + 5;
    const auto value = [&](int number) { return general[kGeneral[number]]; };
    int64_t address = 0, stride = 0;
    if (mode < 3) {
        int base = rm;
        if (rm == 4) {
            const int scale = *next >> 6, index = (*next >> 3 & 7) | index_high;
            if (index != 4) stride = value(index) << scale;
            base = *next++ & 7;
        }
        require(mode > 0 || base != 5, "an address in a register");
        address = value(base | base_high);
        if (mode == 1) address += int8_t(*next++);
        if (mode == 2) {
            int32_t displacement;
            std::memcpy(&displacement, next, 4);
            address += displacement, next += 4;
        }
    }
    general[REG_RIP] = reinterpret_cast<greg_t>(next);
    auto* p = reinterpret_cast<uint8_t*>(address);
    if (operation == 0x490 && mode < 3) return configure(p + stride);  // ldtilecfg
    require(registers.shapes.palette == 1, "registers are configured");
    switch (operation) {
        case 0x490:  // tilerelease
            registers.shapes = {};
            break;
        case 0x493:  // tilezero
            std::memset(registers.bytes[reg], 0, sizeof registers.bytes[reg]);
            break;
        case 0x4b3:  // tileloadd
            load(reg, p, stride);
            break;
        case 0x4b2:  // tilestored
            store(reg, p, stride);
            break;
        case 0x5e2:  // tdpbsud
            multiply(reg, rm, vector);
            break;
        default:
            require(false, "an instruction that is known");
    }
}

}  // namespace

bool emulate_amx() {
    if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vnni"))
        return false;
    struct sigaction action{};
    action.sa_sigaction = carry_out;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGILL, &action, nullptr) == 0;
}

}  // namespace octavo::selftest

#else

bool octavo::selftest::emulate_amx() { return false; }

#endif
