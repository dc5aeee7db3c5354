// What needs no GPU: the schedule and its table, and what is said where there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/zipper_schedule.h"

namespace quatrain {
namespace {

using ops::ZipperPlan;
using ops::ZipperSchedule;
using ops::ZipperSegment;

void expect_every_step_once(const ZipperSchedule& schedule) {
  SCOPED_TRACE(testing::Message() << schedule.row_tiles << " x " << schedule.token_tiles << " tiles, "
                                  << schedule.steps << " steps, " << schedule.workers << " workers, stream-K "
                                  << schedule.stream_k);
  std::vector<int> seen(static_cast<size_t>(schedule.total()));
  std::vector<int> tile_of(static_cast<size_t>(schedule.row_tiles * schedule.token_tiles));
  for (int worker = 0; worker < schedule.workers; ++worker) {
    ZipperSegment segment;
    int shared = 0;
    bool taken[2] = {};
    for (int64_t cursor = schedule.start(worker); schedule.next(worker, cursor, segment);) {
      ASSERT_LT(segment.row_tile, schedule.row_tiles);
      ASSERT_LT(segment.token_tile, schedule.token_tiles);
      ASSERT_LT(segment.first_step, segment.last_step);
      ASSERT_LE(segment.last_step, schedule.steps);
      const int at = segment.token_tile * schedule.row_tiles + segment.row_tile;
      for (int step = segment.first_step; step < segment.last_step; ++step)
        ++seen[static_cast<size_t>(at * schedule.steps + step)];
      tile_of[static_cast<size_t>(segment.tile)] = at;
      const bool whole = segment.first_step == 0 && segment.last_step == schedule.steps;
      if (whole) continue;
      ++shared;
      // Those who add the shares up must agree on who holds them, and in which of two places.
      const int64_t position = static_cast<int64_t>(segment.tile) * schedule.steps;
      EXPECT_LE(schedule.first_worker(segment.tile), worker);
      EXPECT_GE(schedule.last_worker(segment.tile), worker);
      if (schedule.stream_k) {
        bool& place = taken[schedule.place_of(segment.tile, worker)];
        EXPECT_FALSE(place);
        place = true;
      }
      EXPECT_EQ(schedule.worker_of(position + segment.first_step), worker);
      EXPECT_EQ(schedule.worker_of(position + segment.last_step - 1), worker);
    }
    EXPECT_LE(shared, 2);
  }
  for (const int count : seen) ASSERT_EQ(count, 1);
  std::vector<int> sorted = tile_of;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int>(i));
}

TEST(ZipperSchedule, DividesExactly) {
  for (uint32_t by = 1; by < 3000; ++by) {
    const ops::Divisor divisor(by);
    const auto expect_exact = [&](int64_t n) {
      if (n >= 0 && n <= INT32_MAX)
        ASSERT_EQ(divisor.quotient(static_cast<int>(n)), n / by) << n << " / " << by;
    };
    for (int64_t n = 0; n < 200; ++n) expect_exact(n);
    for (int64_t multiple = by; multiple <= INT32_MAX; multiple += 99'991 * int64_t{by})
      for (const int near : {-1, 0, 1}) expect_exact(multiple + near);
    expect_exact(INT32_MAX);
  }
}

TEST(ZipperSchedule, CoversEveryStepOnce) {
  for (const bool stream_k : {false, true})
    for (const int workers : {1, 3, 66, 132, 264}) {
      expect_every_step_once({16, 1, 32, workers, stream_k});
      expect_every_step_once({24, 16, 32, workers, stream_k});
      expect_every_step_once({3, 37, 5, workers, stream_k});
      expect_every_step_once({112, 17, 7, workers, stream_k});
      expect_every_step_once({1, 1, 300, workers, stream_k});
    }
}

TEST(ZipperSchedule, AClustersSharesAreThoseOfTheWholeSchedule) {
  for (const int cluster : {2, 4, 8})
    for (const int tiles : {1, 2, 3, 5, 7, 11})
      for (const int clusters : {1, 3, 33})
        for (const int steps : {5, 7, 32, 112}) {
          if (tiles * steps < cluster) continue;
          const ZipperSchedule schedule{tiles, clusters, steps, clusters * cluster, true, cluster};
          expect_every_step_once(schedule);
          for (int tile = 0; tile < tiles * clusters; ++tile) {
            const int first = schedule.first_worker(tile), last = schedule.last_worker(tile);
            const ops::ZipperShares shares = schedule.shares_of(tile);
            ASSERT_EQ(first / cluster, last / cluster) << "a tile of two clusters";
            EXPECT_EQ(shares.first, first % cluster);
            EXPECT_EQ(shares.count, last - first + 1);
            EXPECT_EQ(shares.second, schedule.place_of(tile, first) == 1);
            for (int worker = first + 1; worker <= last; ++worker)
              EXPECT_EQ(schedule.place_of(tile, worker), 0);
          }
        }
}

TEST(ZipperSchedule, ClustersHaveRoomForWhatTheyExchange) {
  for (const int cluster : {2, 4, 8}) {
    EXPECT_TRUE(ops::cluster_fits(64, cluster, 1, 32));
    EXPECT_FALSE(ops::cluster_fits(128, cluster, 1, 32));
    EXPECT_FALSE(ops::cluster_fits(64, cluster, 1, cluster - 1)) << "a CTA without a step";
    EXPECT_FALSE(ops::cluster_fits(32, cluster, 3, 32)) << "one place for a tile";
  }
  EXPECT_TRUE(ops::cluster_fits(64, 4, 3, 32));
  EXPECT_TRUE(ops::cluster_fits(64, 8, 3, 32));
  EXPECT_TRUE(ops::cluster_fits(32, 4, 1, 32));
  EXPECT_FALSE(ops::cluster_fits(32, 8, 1, 32)) << "eight sums of a slice";
  EXPECT_FALSE(ops::cluster_fits(64, 6, 1, 32)) << "six sums of each of two slices";
}

TEST(ZipperSchedule, TheTableGivesPlansThatTheKernelsTake) {
  for (const int64_t rows : {16, 100, 576, 4096, 6144, 28672, 128256})
    for (const int64_t steps : {1, 5, 32, 112, 231})
      for (int64_t tokens = 1; tokens < 800; ++tokens) {
        const int64_t tiles = (rows + 127) / 128;
        const bool wide = tokens % 2 == 0;
        const ZipperPlan plan = ops::plan_zipper(tokens, rows, tiles, steps, 132, wide);
        ASSERT_GE(plan.workers, 1);
        ASSERT_TRUE(wide || plan.kernel != ZipperPlan::Kernel::Wide);
        if (plan.kernel == ZipperPlan::Kernel::Decode) {
          ASSERT_LE(tokens, plan.tile_tokens);
          ASSERT_TRUE(plan.tile_tokens == 8 || plan.tile_tokens == 16);
          ASSERT_GE(plan.slices, 1);
          ASSERT_LE(plan.slices, 16);
          ASSERT_LE(plan.workers, 132);
        } else {
          ASSERT_TRUE(plan.tile_tokens == 16 || plan.tile_tokens == 32 || plan.tile_tokens == 64 ||
                      plan.tile_tokens == 128 || (plan.tile_tokens == 256 && !plan.stream_k));
          ASSERT_TRUE(plan.kernel == ZipperPlan::Kernel::Gemm ? plan.tile_tokens <= 128
                                                              : plan.tile_tokens >= 128);
          const int64_t row_tiles = plan.tile_tokens >= 128 ? (tiles + 1) / 2 : tiles;
          const int64_t outputs = row_tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
          ASSERT_LE(plan.workers, outputs * (plan.stream_k ? steps : 1)) << "a worker without work";
          ASSERT_LE(plan.workers, 264);
          if (plan.cluster == 1) continue;
          ASSERT_EQ(plan.workers % plan.cluster, 0);
          const int64_t clusters = plan.workers / plan.cluster;
          ASSERT_EQ(outputs % clusters, 0);
          ASSERT_TRUE(ops::cluster_fits(plan.tile_tokens, plan.cluster, outputs / clusters, steps));
        }
      }
}

TEST(ZipperSchedule, ManyTokensGetWhatWasFastestWhenMeasured) {
  // The linears of Llama-3-8B on 132 processors; see docs/measurements/gpu.md.
  const auto expect = [](int64_t tokens, int64_t rows, int64_t columns, int tile_tokens, bool stream_k) {
    const ZipperPlan plan =
        ops::plan_zipper(tokens, rows, (rows + 127) / 128, (columns + 127) / 128, 132, true);
    EXPECT_EQ(plan.tile_tokens, tile_tokens) << tokens << " tokens, " << rows << " rows";
    EXPECT_EQ(plan.stream_k, stream_k) << tokens << " tokens, " << rows << " rows";
  };
  expect(128, 6144, 4096, 64, false);
  expect(192, 6144, 4096, 128, false);
  expect(384, 6144, 4096, 256, false);
  expect(512, 6144, 4096, 256, false);
  expect(1024, 6144, 4096, 256, false);
  expect(2048, 6144, 4096, 256, false);
  expect(256, 4096, 4096, 64, false);
  expect(384, 4096, 4096, 128, false);
  expect(512, 4096, 4096, 128, false);
  expect(1024, 4096, 4096, 256, false);
  expect(128, 28672, 4096, 128, false);
  expect(192, 28672, 4096, 256, false);
  expect(384, 28672, 4096, 128, true);
  expect(512, 28672, 4096, 256, false);
  expect(2048, 28672, 4096, 256, false);
  expect(128, 4096, 14336, 64, true);
  expect(192, 4096, 14336, 64, true);
  expect(256, 4096, 14336, 64, false);
  expect(384, 4096, 14336, 128, true);
  expect(512, 4096, 14336, 128, false);
  expect(1024, 4096, 14336, 256, false);
}

TEST(Gpu, SaysWhatIsMissing) {
  try {
    EXPECT_GT(ops::gpu_processors(), 0);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--device cpu"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quatrain
