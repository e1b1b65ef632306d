// The team of threads: every item once, every loop after the one before it.
#include <atomic>
#include <thread>

#include "selftest.hpp"
#include "team.hpp"

namespace octavo::selftest {
namespace {

// Each loop's items read what the loop before has written, anywhere: a race or a loop begun early shows.
void test_loops(Report& report, int num_threads) {
    Team team(num_threads);
    const int sizes[] = {1, 2, 3, 7, 64, 1000, 0, 5};
    for (int region = 0; region < 40; region++) {
        std::vector<int64_t> front(1000, 1), back(1000, 0);
        int64_t expected = 1;
        int num_loops = 0;
        for (int round = 0; round < 8; round++)
            for (const int size : sizes) num_loops += size > 0;
        team.run([&](Worker& worker) {
            std::vector<int64_t>*from = &front, *to = &back;
            for (int round = 0; round < 8; round++)
                for (const int size : sizes) {
                    if (size == 0) {
                        worker.for_each(0, [&](int64_t) { report.check(false, "an item of an empty loop"); });
                        continue;
                    }
                    worker.for_each(size, [&](int64_t i) {
                        // The loop's items together set all 1000 values.
                        for (int64_t j = i; j < 1000; j += size) (*to)[j] = (*from)[(j * 7 + 3) % 1000] + 1;
                    });
                    std::swap(from, to);
                }
        });
        expected += num_loops;
        const std::vector<int64_t>& last = num_loops % 2 ? back : front;
        bool all = true;
        for (const int64_t value : last) all = all && value == expected;
        report.check(all, "loops in order on " + std::to_string(num_threads) + " threads");
    }
}

void test_each_item_once(Report& report, int num_threads) {
    Team team(num_threads);
    for (const int size : {1, 3, 100, 10007}) {
        std::vector<std::atomic<int>> counts(size);
        team.run([&](Worker& worker) { worker.for_each(size, [&](int64_t i) { counts[i]++; }); });
        bool once = true;
        for (const auto& count : counts) once = once && count == 1;
        report.check(
            once, std::to_string(size) + " items once each on " + std::to_string(num_threads) + " threads");
    }
}

// Several threads that use one team take turns.
void test_callers(Report& report) {
    Team team(3);
    std::vector<int64_t> sums(100, 0);  // not atomic: the turns must order them
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; caller++)
        callers.emplace_back([&] {
            for (int i = 0; i < 50; i++)
                team.run([&](Worker& worker) { worker.for_each(100, [&](int64_t item) { sums[item]++; }); });
        });
    for (std::thread& caller : callers) caller.join();
    bool all = true;
    for (const int64_t sum : sums) all = all && sum == 150;
    report.check(all, "regions of three callers");
}

void test_short_lives(Report& report) {
    int64_t sum = 0;
    for (int i = 0; i < 50; i++) {
        Team team(3);
        if (i % 2) team.run([&](Worker& worker) { worker.for_each(1, [&](int64_t) { sum++; }); });
    }
    report.check(sum == 25, "teams that live briefly");
}

}  // namespace

void test_threads(Report& report) {
    for (const int num_threads : {1, 2, 3, 5}) {
        test_loops(report, num_threads);
        test_each_item_once(report, num_threads);
    }
    test_callers(report);
    test_short_lives(report);
}

}  // namespace octavo::selftest
