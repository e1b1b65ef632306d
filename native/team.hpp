// One team of threads for all kernels. A step is one parallel region: every worker walks the same list of
// operations, takes its share of each by claiming items, and waits for the others before the next.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace octavo {

class Team;

// A thread's handle inside a parallel region.
class Worker {
  public:
    Worker(Team& team, int id);

    [[gnu::always_inline]] int id() const { return id_; }
    [[gnu::always_inline]] int count() const { return count_; }

    // Calls f(i) for every i in [0, n), each on exactly one worker, then waits for all workers. All workers
    // of the team must make the same sequence of calls. Which worker takes which item must not change a
    // result.
    template <class F>
    void for_each(int64_t n, F&& f) {
        if (count_ == 1) {
            for (int64_t i = 0; i < n; i++) f(i);
            return;
        }
        for (int64_t i = claim(); i < n; i = claim()) f(i);
        barrier();
    }

    void barrier();

  private:
    int64_t claim();

    Team& team_;
    int id_, count_;
    uint32_t phase_;
};

// `count` workers: the calling thread and count - 1 of the team's own, which between regions and at barriers
// spin briefly, then sleep. Survives fork(): the child starts threads of its own when it first needs them.
class Team {
  public:
    explicit Team(int count);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int count() const { return count_; }

    // Runs `body(worker)` once on every worker and returns when all are done. Calls from several threads take
    // turns; a body must not call it. An exception that leaves a body ends the process.
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

    int count_;
    long owner_ = 0;  // the process whose threads they are
    std::unique_ptr<State> state_;
};

// Cores this process may use: its CPU affinity, further limited by the CPU quota of its control groups.
int usable_cores();

}  // namespace octavo
