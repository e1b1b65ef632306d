// selftest [rows|linear|attention|threads]...: those parts, or all. Exits with 1 if a check failed.
#include <cstdio>
#include <map>

#include "selftest.hpp"

int main(int argc, char** argv) {
    using namespace octavo;
    using namespace octavo::selftest;
    const std::map<std::string, void (*)(Report&)> parts = {{"rows", test_rows},
                                                            {"linear", test_linear},
                                                            {"attention", test_attention},
                                                            {"threads", test_threads}};
    std::vector<std::string> chosen(argv + 1, argv + argc);
    if (chosen.empty())
        for (const auto& [name, test] : parts) chosen.push_back(name);
    for (const std::string& name : chosen)
        if (!parts.count(name)) {
            std::fprintf(stderr, "no part '%s': choose from attention, linear, rows, threads\n",
                         name.c_str());
            return 2;
        }
    std::printf("instruction sets:");
    for (const Kernels* kernels : tested_kernels()) std::printf(" %s", kernels->isa);
    std::printf("\n");
    Report report;
    for (const std::string& name : chosen) {
        const int checks = report.num_checks(), failures = report.num_failures();
        parts.at(name)(report);
        std::printf("%s: %d checks, %d failed\n", name.c_str(), report.num_checks() - checks,
                    report.num_failures() - failures);
        std::fflush(stdout);
    }
    std::printf("digest: %s\n", report.digest().c_str());
    return report.num_failures() ? 1 : 0;
}
