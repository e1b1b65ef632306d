#include "weight_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace octavo {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;
constexpr int64_t kLineBytes = 64;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Aligned to a huge page, and on huge pages where the system has them.
std::shared_ptr<uint8_t> map_slab(int64_t bytes) {
    void* area =
        mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        const std::align_val_t line{kLineBytes};
        return {static_cast<uint8_t*>(::operator new(bytes, line)),
                [line](uint8_t* p) { ::operator delete(p, line); }};
    }
    auto* first = static_cast<uint8_t*>(area);
    auto* slab = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<int64_t>(area), kHugePageBytes));
    const int64_t before = slab - first;
    if (before) munmap(first, before);
    munmap(slab + bytes, kHugePageBytes - before);
#ifdef MADV_HUGEPAGE
    madvise(slab, bytes, MADV_HUGEPAGE);  // refused: pages of the usual size
#endif
    return {slab, [bytes](uint8_t* p) { munmap(p, bytes); }};
}

}  // namespace

std::shared_ptr<uint8_t> WeightMemory::allocate(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = round_up(bytes, kLineBytes);
    if (bytes > slab_bytes_ - used_bytes_) {
        slab_.reset();
        slab_bytes_ = std::max(kSlabBytes, round_up(bytes, kHugePageBytes));
        used_bytes_ = 0;
        slab_ = map_slab(slab_bytes_);
    }
    uint8_t* piece = slab_.get() + used_bytes_;
    used_bytes_ += bytes;
    return {slab_, piece};
}

}  // namespace octavo
