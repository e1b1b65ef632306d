// Memory for packed weights. A step reads all of them, from front to back: on huge pages the processor's
// prefetcher crosses no page boundary, and looking addresses up costs next to nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

namespace octavo {

// Hands out pieces of large mappings, one after the other. A mapping goes back to the system when all pieces
// of it are gone and no more are cut from it.
class WeightMemory {
  public:
    static constexpr int64_t kSlabBytes = 64 << 20;  // costs addresses only: pages come when first written

    // `bytes` bytes of any content, aligned to a cache line. Throws std::bad_alloc.
    std::shared_ptr<uint8_t> allocate(int64_t bytes);

  private:
    std::mutex mutex_;
    std::shared_ptr<uint8_t> slab_;
    int64_t slab_bytes_ = 0, used_bytes_ = 0;
};

}  // namespace octavo
