#include "team.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

// Long enough for the gaps inside a step, short enough that an idle or crowded machine loses little.
constexpr int kSpins = 2000;

void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns when `value` is no longer `old`: spins a bounded number of times, then sleeps.
void await_change(std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; i < kSpins; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

struct Team::State {
    alignas(64) std::atomic<uint32_t> region{0};   // changes when a region starts, and when the team ends
    alignas(64) std::atomic<uint32_t> barrier{0};  // changes when all have arrived
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int64_t> next_item{0};
    Call call = nullptr;
    void* body = nullptr;
    bool stop = false;
    std::mutex running;
    std::vector<std::thread> threads;
};

Worker::Worker(Team& team, int id)
    : team_(team),
      id_(id),
      count_(team.count_),
      phase_(team.state_->barrier.load(std::memory_order_acquire)) {}

int64_t Worker::claim() { return team_.state_->next_item.fetch_add(1, std::memory_order_relaxed); }

// The last to arrive rewinds the item counter: nobody claims between arriving and being let go.
void Worker::barrier() {
    if (count_ == 1) return;
    Team::State& state = *team_.state_;
    if (state.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
        state.arrived.store(0, std::memory_order_relaxed);
        state.next_item.store(0, std::memory_order_relaxed);
        state.barrier.store(++phase_, std::memory_order_release);
        state.barrier.notify_all();
    } else {
        await_change(state.barrier, phase_++);
    }
}

Team::Team(int count) : count_(std::max(1, count)) { start(); }

void Team::start() {
    state_ = std::make_unique<State>();
    owner_ = getpid();
    for (int id = 1; id < count_; id++)
        state_->threads.emplace_back([this, id, &state = *state_] {
            for (uint32_t seen = 0;; seen++) {
                await_change(state.region, seen);
                if (state.stop) return;
                Worker worker(*this, id);
                state.call(state.body, worker);
                worker.barrier();
            }
        });
}

Team::~Team() {
    if (owner_ != getpid()) {
        (void)state_.release();  // its threads live in another process
        return;
    }
    state_->stop = true;
    state_->region.fetch_add(1, std::memory_order_release);
    state_->region.notify_all();
    for (std::thread& thread : state_->threads) thread.join();
}

void Team::run_body(Call call, void* body) {
    if (count_ > 1 && owner_ != getpid()) {
        (void)state_.release();
        start();
    }
    State& state = *state_;
    const std::lock_guard lock(state.running);
    state.call = call;
    state.body = body;
    Worker worker(*this, 0);
    if (count_ > 1) {
        state.region.fetch_add(1, std::memory_order_release);
        state.region.notify_all();
    }
    call(body, worker);
    worker.barrier();
}

namespace {

// Cores that a control group's quota allows, or a large number if it has none.
double quota_of(const std::string& directory) {
    std::string quota;
    double period = 0;
    if (std::ifstream file(directory + "/cpu.max"); file >> quota >> period) {
        if (quota == "max" || period <= 0) return 1e9;
        return std::stod(quota) / period;
    }
    double microseconds = 0;
    std::ifstream quota_file(directory + "/cpu.cfs_quota_us"), period_file(directory + "/cpu.cfs_period_us");
    if (quota_file >> microseconds && period_file >> period && microseconds > 0 && period > 0)
        return microseconds / period;
    return 1e9;
}

// The smallest quota from this process' control group up to the root, of either version.
double cgroup_quota() {
    double least = 1e9;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
        std::istringstream fields(line);
        std::string hierarchy, controllers, path;
        std::getline(fields, hierarchy, ':');
        std::getline(fields, controllers, ':');
        std::getline(fields, path);
        if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
        const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
        for (;;) {
            least = std::min(least, quota_of(root + path));
            if (path.empty()) break;
            path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
        }
    }
    return least;
}

int affinity_cores() {
    for (int limit = 1024; limit <= 1 << 20; limit *= 2) {
        cpu_set_t* set = CPU_ALLOC(limit);
        const size_t bytes = CPU_ALLOC_SIZE(limit);
        const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

int usable_cores() {
    const double quota = cgroup_quota();
    const int cores = affinity_cores();
    return quota < cores ? std::max(1, int(quota)) : cores;
}

}  // namespace octavo
