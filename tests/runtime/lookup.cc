// Times the look-up on this machine: each step alone, then the functions of the C API that consist of them. The shapes
// are a table's own edges, in turn, so that neither the search nor the branches always go one way.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "aot_gemm.h"
#include "dispatch.h"
#include "kernel.h"
#include "problem.h"

namespace {

constexpr int kRounds = 40;
constexpr int kCalls = 20000;

volatile int64_t sink = 0;

// Gives the least time of one call over the rounds, in nanoseconds.
template <typename Function>
double time_ns(Function function) {
  double least = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) function(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (took.count() < least) least = took.count();
  }
  return least / kCalls;
}

std::vector<aot_gemm_problem_t> problems(int shift) {
  std::vector<aot_gemm_problem_t> result;
  const aot::Section& section = aot::kSections[0];
  for (int32_t i = 0; i < section.num_ladders; ++i) {
    const aot::Ladder& ladder = section.ladders[i];
    for (int32_t j = 0; j < ladder.num_edges; j += 3) {
      const int64_t m = ladder.edges[j];
      const int64_t n = ladder.n + shift;  // of no ladder, unless it is 0
      result.push_back({sizeof(aot_gemm_problem_t), aot::id_of(section.operation), 0, m, n, ladder.k,
                        {reinterpret_cast<void*>(0x10000000000), {ladder.k, 1}},
                        {reinterpret_cast<void*>(0x20000000000), {ladder.k, 1}},
                        {reinterpret_cast<void*>(0x30000000000), {n, 1}}, 0, {}});
    }
  }
  return result;
}

void report(const char* title, const std::vector<aot_gemm_problem_t>& stated) {
  const int count = static_cast<int>(stated.size());
  std::printf("%s, %d problems\n", title, count);
  const auto say = [](const char* name, double ns) { std::printf("  %-28s %6.1f ns\n", name, ns); };
  int32_t operation = 0;
  say("the loop", time_ns([&](int i) { sink = stated[i % count].m; }));
  say("check", time_ns([&](int i) { sink = aot::check(stated[i % count], &operation); }));
  say("canonicalise", time_ns([&](int i) { 
        aot::Canonical canonical;
        aot::canonicalise(stated[i % count], aot::kOperations[0], 15, &canonical);
        sink = canonical.layout;
      }));
  say("find_section", time_ns([&](int i) { sink = aot::find_section(aot::kTables[0], stated[i % count].operation - aot::kFirstOperationId, 0); }));
  say("choose", time_ns([&](int i) {
        const aot_gemm_problem_t& x = stated[i % count];
        sink = choose(aot::kSections[0], aot::kMultiples, x.m, x.n, x.k, true).kernel;
      }));
  say("aot_gemm_select", time_ns([&](int i) {
        aot_gemm_selection_t selection;
        aot_gemm_select(&stated[i % count], &selection);
        sink = selection.kernel;
      }));
  say("aot_gemm_workspace_bytes", time_ns([&](int i) {
        size_t num_bytes = 0;
        aot_gemm_workspace_bytes(&stated[i % count], &num_bytes);
        sink = static_cast<int64_t>(num_bytes);
      }));
}

}  // namespace

int main() {
  report("tuned", problems(0));
  report("grid", problems(8));
}
