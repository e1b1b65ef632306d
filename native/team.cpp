#include "team.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

// Some tens of microseconds: long enough for the gaps inside a step, short enough that an idle or crowded
// machine loses little.
constexpr int kSpins = 1000;

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

constexpr uint32_t kClosed = 1u << 31;

// Of a share that is being taken: items of one loop are fewer than 2^24, and loops than 2^40.
constexpr int kItemBits = 24;
constexpr uint64_t kItemMask = (uint64_t(1) << kItemBits) - 1;

}  // namespace

struct Team::State {
    // How much of a worker's share of a loop is taken: the loop's number, and below it a number of items. Of
    // an earlier loop it means that nothing is taken yet.
    struct alignas(64) Taken {
        std::atomic<uint64_t> value{0};
    };
    explicit State(int count) : taken(count) {}

    std::vector<Taken> taken;
    alignas(64) std::atomic<int64_t> num_done{0};     // items that are done of the loop in progress
    alignas(64) std::atomic<uint32_t> loop{1};        // its number, the lower half, to wait for
    alignas(64) std::atomic<uint32_t> region{0};      // changes when a region starts, and when the team ends
    alignas(64) std::atomic<uint32_t> gate{kClosed};  // workers inside the region, and whether more may enter
    Call call = nullptr;
    void* body = nullptr;
    uint64_t first_loop = 1;  // of the region
    uint64_t next_loop = 1;
    std::atomic<bool> stop{false};
    std::mutex running;
    std::vector<std::thread> threads;
};

Worker::Worker(Team& team, int id)
    : team_(team), id_(id), count_(team.count_), loop_(team.state_->first_loop) {}

// A few items of the worker's own share, or else of another's; false if all are taken.
bool Worker::claim(int64_t n, Items& items) {
    const int64_t chunk = n / (32 * int64_t(count_)) + 1;
    for (int k = 0, whose = id_; k < count_; k++, whose = whose + 1 < count_ ? whose + 1 : 0) {
        const int64_t first = n * whose / count_, size = n * (whose + 1) / count_ - first;
        std::atomic<uint64_t>& taken = team_.state_->taken[whose].value;
        uint64_t seen = taken.load(std::memory_order_acquire);
        for (;;) {
            const uint64_t loop = seen >> kItemBits;
            const int64_t at = loop == loop_ ? int64_t(seen & kItemMask) : loop < loop_ ? 0 : size;
            if (at >= size) break;
            const int64_t end = at + chunk < size ? at + chunk : size;
            if (taken.compare_exchange_weak(seen, loop_ << kItemBits | uint64_t(end),
                                            std::memory_order_acq_rel, std::memory_order_acquire)) {
                items = {first + at, first + end};
                return true;
            }
        }
    }
    return false;
}

// Whoever finishes the last item opens the next loop: nobody comes to it before.
void Worker::finish(int64_t count, int64_t n) {
    Team::State& state = *team_.state_;
    if (state.num_done.fetch_add(count, std::memory_order_acq_rel) + count < n) return;
    state.num_done.store(0, std::memory_order_relaxed);
    state.next_loop = loop_ + 1;
    state.loop.store(uint32_t(loop_ + 1), std::memory_order_release);
    state.loop.notify_all();
}

void Worker::await_loop() {
    std::atomic<uint32_t>& loop = team_.state_->loop;
    // A late worker finds other numbers than its own, all of later loops.
    const uint32_t number = uint32_t(loop_);
    if (loop.load(std::memory_order_acquire) == number) await_change(loop, number);
    loop_++;
}

Team::Team(int count) : count_(count) {
    if (count < 1 || count > kMaxCount)
        throw std::invalid_argument("count=" + std::to_string(count) + ": a team has from 1 to " +
                                    std::to_string(kMaxCount) + " workers");
    start();
}

void Team::start() {
    state_ = std::make_unique<State>(count_);
    owner_ = getpid();
    try {
        for (int id = 1; id < count_; id++)
            state_->threads.emplace_back([this, id, &state = *state_] { work(id, state); });
    } catch (const std::system_error&) {
        // The system grants no more threads. Nobody waits for those that are missing.
    }
}

void Team::work(int id, State& state) {
    uint32_t seen = 0;
    for (;;) {
        await_change(state.region, seen);
        seen = state.region.load(std::memory_order_acquire);
        if (state.stop.load(std::memory_order_acquire)) return;
        if (!(state.gate.fetch_add(1, std::memory_order_acq_rel) & kClosed)) {
            Worker worker(*this, id);
            state.call(state.body, worker);
        }
        if (state.gate.fetch_sub(1, std::memory_order_acq_rel) - 1 == kClosed) state.gate.notify_all();
    }
}

Team::~Team() {
    if (owner_ != getpid()) {
        (void)state_.release();  // its threads live in another process
        return;
    }
    state_->stop.store(true, std::memory_order_release);
    state_->region.fetch_add(1, std::memory_order_release);
    state_->region.notify_all();
    for (std::thread& thread : state_->threads) thread.join();
}

void Team::run_body(Call call, void* body) {
    if (owner_ != getpid()) {
        (void)state_.release();
        start();
    }
    State& state = *state_;
    const std::lock_guard lock(state.running);
    state.call = call;
    state.body = body;
    state.first_loop = state.next_loop;
    Worker worker(*this, 0);
    if (count_ > 1) {
        state.gate.fetch_and(~kClosed, std::memory_order_acq_rel);
        state.region.fetch_add(1, std::memory_order_release);
        state.region.notify_all();
    }
    call(body, worker);
    if (count_ > 1) {  // Whoever has not come in by now need not; the others are on their way out.
        uint32_t inside = state.gate.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
        while (inside != kClosed) {
            await_change(state.gate, inside);
            inside = state.gate.load(std::memory_order_acquire);
        }
    }
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
