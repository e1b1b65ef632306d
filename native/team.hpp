// One team of threads for all kernels. A step is one parallel region: every worker walks the same list of
// loops, takes a share of each, and goes on to the next when the loop's items are done.
//
// Nobody waits for a worker that holds no item: one that the system has put to sleep finds the loops it
// missed finished, and catches up. On crowded cores that matters more than anything else.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace octavo {

class Team;

// A thread's handle inside a parallel region.
class Worker {
  public:
    [[gnu::always_inline]] int id() const { return id_; }
    [[gnu::always_inline]] int count() const { return count_; }

    // Calls f(i) for every i in [0, n), each on exactly one worker, and returns when all calls have returned.
    // A worker has the same share of every loop, in the order of the items: so it finds in its cache what it
    // wrote there in the loop before. When it is done it takes over from others.
    // All workers must come to the same loops in the same order, but a late one may find its loop over: what
    // it does between two loops may then read what later loops are writing, and must not matter. Which worker
    // takes which item must not change a result.
    template <class F>
    void for_each(int64_t n, F&& f) {
        if (count_ == 1) {
            for (int64_t i = 0; i < n; i++) f(i);
        } else if (n > 0) {
            Items items{};
            while (claim(n, items)) {
                for (int64_t i = items.first; i < items.end; i++) f(i);
                finish(items.end - items.first, n);
            }
            for (int64_t i = 0; i < idle_bytes_; i += 64) __builtin_prefetch(idle_data_ + i, 0, 2);
            await_loop();
        }
    }

    // What to fetch into the second-level cache at the end of each loop, while others may still be busy; or
    // null.
    void fetch_when_idle(const uint8_t* data, int64_t num_bytes) {
        idle_data_ = data;
        idle_bytes_ = data ? num_bytes : 0;
    }

  private:
    friend class Team;
    Worker(Team& team, int id);

    struct Items {
        int64_t first, end;
    };

    bool claim(int64_t n, Items& items);
    void finish(int64_t count, int64_t n);
    void await_loop();

    Team& team_;
    int id_, count_;
    const uint8_t* idle_data_ = nullptr;
    int64_t idle_bytes_ = 0;
    uint64_t loop_;  // number of the loop that it comes to next
};

// `count` workers: the calling thread and count - 1 of the team's own, which spin briefly when there is
// nothing to do, then sleep. Survives fork(): the child starts threads of its own when it first needs them.
class Team {
  public:
    static constexpr int kMaxCount = 4096;

    // Throws std::invalid_argument unless `count` is from 1 to kMaxCount.
    explicit Team(int count);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int count() const { return count_; }

    // Runs `body(worker)` on the workers and returns when it is done. Calls from several threads take turns;
    // a body must not call it. An exception that leaves a body ends the process.
    template <class F>
    void run(F&& body) {
        using Body = std::remove_reference_t<F>;
        run_body([](void* f, Worker& worker) noexcept { (*static_cast<Body*>(f))(worker); }, &body);
    }

  private:
    friend class Worker;
    struct State;
    using Call = void (*)(void*, Worker&) noexcept;

    void run_body(Call call, void* body);
    void start();
    void work(int id, State& state);

    int count_;
    long owner_ = 0;  // the process whose threads they are
    std::unique_ptr<State> state_;
};

// Cores this process may use: its CPU affinity, further limited by the CPU quota of its control groups.
int usable_cores();

}  // namespace octavo
