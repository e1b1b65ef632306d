// One team of threads for all kernels. A step is one parallel region: every worker walks the same list of
// operations, takes its share of each by claiming items, and waits for the others before the next.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class Team;

// A thread's handle inside a parallel region.
class Worker {
  public:
    Worker(Team& team, int id) : team_(team), id_(id) {}

    int id() const { return id_; }
    int count() const;

    // Calls f(i) for every i in [0, n), each on exactly one worker, then waits for all workers. All workers of
    // the team must make the same sequence of calls. Which worker takes which item must not change a result.
    template <class F>
    void for_each(int64_t n, F&& f) {
        for (int64_t i = claim(); i < n; i = claim()) f(i);
        barrier();
    }

    void barrier();

  private:
    int64_t claim();

    Team& team_;
    int id_;
    uint32_t phase_ = 0;
    friend class Team;
};

// `count` workers: the calling thread and count - 1 of the team's own, which spin briefly, then sleep.
class Team {
  public:
    explicit Team(int count);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int count() const { return count_; }

    // Runs `body` once on every worker and returns when all are done. Not reentrant.
    void run(const std::function<void(Worker&)>& body);

  private:
    friend class Worker;

    void worker_loop(int id);
    void barrier_wait(uint32_t& phase);

    int count_;
    std::vector<std::thread> threads_;
    const std::function<void(Worker&)>* body_ = nullptr;
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> barrier_phase_{0};
    alignas(64) std::atomic<int64_t> next_item_[2] = {};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace octavo
