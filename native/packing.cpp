#include "packing.hpp"

namespace octavo {

int64_t row_bytes(Encoding encoding, int64_t width) {
    switch (encoding) {
        case Encoding::F32:
            return width * 4;
        case Encoding::F16:
        case Encoding::BF16:
            return width * 2;
        case Encoding::Q8_0:
            return width / 32 * 34;
        case Encoding::Q4_0:
            return width / 32 * 18;
        default:
            return width / 32 * 20;
    }
}

}  // namespace octavo
