#include "base/affinity.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>

#include "base/thread_pool.h"

namespace quatrain {
namespace {

TEST(Affinity, ProcessorsOfOneCoreCountOnce) {
  const fs::path topology = fs::temp_directory_path() / "quatrain-affinity-test";
  fs::remove_all(topology);
  const auto put = [&](int processor, const std::string& siblings) {
    fs::create_directories(topology / ("cpu" + std::to_string(processor)) / "topology");
    write_file(topology / ("cpu" + std::to_string(processor)) / "topology/thread_siblings_list",
               siblings + "\n");
  };
  put(0, "0,4"), put(4, "0,4"), put(1, "1,5"), put(5, "1,5");
  EXPECT_EQ(count_physical_cores(std::vector{0, 1, 4, 5}, topology), 2);
  EXPECT_EQ(count_physical_cores(std::vector{0, 1}, topology), 2);
  EXPECT_EQ(count_physical_cores(std::vector{0, 4}, topology), 1);
  EXPECT_EQ(count_physical_cores(std::vector{0, 4, 6, 7}, topology), 3);  // 6 and 7 say nothing
  EXPECT_EQ(count_physical_cores(std::vector<int>{}, topology), 0);
  fs::remove_all(topology);
}

TEST(Affinity, AvailableCoresAreThoseOfTheMask) {
  EXPECT_FALSE(allowed_processors().empty());
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), static_cast<int>(allowed_processors().size()));
}

// A process of its own: pinning holds for all pools made later.
TEST(AffinityDeathTest, PinnedWorkersStayOnOneProcessorAndTheCallerIsFree) {
  EXPECT_EXIT(
      {
        pin_workers();
        ThreadPool pool(4);
        std::atomic<int> wrong{0};
        pool.parallel_for(400, 1, [&](int64_t, int64_t, int thread) {
          cpu_set_t mask;
          sched_getaffinity(0, sizeof mask, &mask);
          const bool one = CPU_COUNT(&mask) == 1;
          const bool all = CPU_COUNT(&mask) == static_cast<int>(allowed_processors().size());
          if (thread == 0 ? !all : !one) ++wrong;
        });
        std::_Exit(wrong == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace quatrain
