// Which value of each row of a step's output is the largest: all that greedy sampling wants of logits. Plain
// loops over lanes, which compilers turn into the vector instructions that every processor has; more of them
// would not be faster, for memory is what they wait for.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "team.hpp"

namespace octavo {

class LargestFinder {
  public:
    // Before a parallel region: the rows that are looked at in it.
    void prepare(const float* rows, int64_t num_rows, int64_t width) {
        rows_ = rows, width_ = width;
        num_pieces_ = (width + kPiece - 1) / kPiece;
        peaks_.resize(num_rows * num_pieces_);
        indices_.resize(num_rows);
    }

    // In the region, when the rows are complete.
    void find(Worker& worker) {
        worker.for_each(int64_t(peaks_.size()), [&](int64_t i) {
            const int64_t begin = i % num_pieces_ * kPiece;
            const int64_t count = width_ - begin < kPiece ? width_ - begin : kPiece;
            peaks_[i] = peak_of(rows_ + i / num_pieces_ * width_ + begin, count);
        });
        worker.for_each(int64_t(indices_.size()), [&](int64_t r) { indices_[r] = index_in(r); });
    }

    // By row, the first of the largest values; -1 if some value is not finite.
    const std::vector<int32_t>& indices() const { return indices_; }

  private:
    static constexpr int kLanes = 16;
    static constexpr int64_t kPiece = 4096;  // enough to be worth a worker's while

    // The largest value, or NaN if some value is not finite.
    static float peak_of(const float* x, int64_t count) {
        float largest[kLanes],
            trace[kLanes] = {};  // a trace becomes NaN at the first value that is not finite
        for (float& lane : largest) lane = -std::numeric_limits<float>::infinity();
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes)
            for (int j = 0; j < kLanes; j++) {
                largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
                trace[j] += x[i + j] - x[i + j];
            }
        for (int j = 0; i < count; i++, j++) {
            largest[j] = x[i] > largest[j] ? x[i] : largest[j];
            trace[j] += x[i] - x[i];
        }
        float peak = largest[0], sum = trace[0];
        for (int j = 1; j < kLanes; j++) {
            peak = largest[j] > peak ? largest[j] : peak;
            sum += trace[j];
        }
        return peak + sum;
    }

    int32_t index_in(int64_t row) const {
        const float* peaks = &peaks_[row * num_pieces_];
        int64_t best = 0;
        for (int64_t p = 0; p < num_pieces_; p++) {
            if (!std::isfinite(peaks[p])) return -1;
            if (peaks[p] > peaks[best]) best = p;
        }
        int64_t i = best * kPiece;
        while (rows_[row * width_ + i] != peaks[best]) i++;
        return int32_t(i);
    }

    const float* rows_ = nullptr;
    int64_t width_ = 0, num_pieces_ = 0;
    std::vector<float> peaks_;
    std::vector<int32_t> indices_;
};

}  // namespace octavo
