// Which GPUs are served, by which kernels; no GPU is needed.
#include <gtest/gtest.h>

#include "ops/cuda/gpu.h"
#include "ops/cuda/zipper_mma.h"
#include "ops/cuda/zipper_product.h"

namespace quatrain::ops {
namespace {

TEST(Gpu, KernelsFollowTheComputeCapability) {
  EXPECT_EQ(kernels_of(8, 0), GpuKernels::Nibbles);
  EXPECT_EQ(kernels_of(8, 6), GpuKernels::Nibbles);
  EXPECT_EQ(kernels_of(8, 9), GpuKernels::Nibbles);
  EXPECT_EQ(kernels_of(9, 0), GpuKernels::Wgmma);
  EXPECT_EQ(kernels_of(12, 0), GpuKernels::Bytes);
  for (const auto& [major, minor] : {std::pair{7, 5}, {8, 7}, {10, 0}, {10, 3}, {11, 0}, {13, 0}})
    EXPECT_FALSE(kernels_of(major, minor).has_value()) << major << "." << minor;
}

TEST(Gpu, MmaPlansUseTheGpu) {
  // A100's 108 processors, the linears of Llama-3-8B.
  for (const auto& [tiles, steps] : {std::pair<int64_t, int64_t>{48, 32}, {32, 32}, {224, 32}, {32, 112}})
    for (const int64_t tokens : {1, 16, 17, 64, 65, 2048}) {
      const MmaPlan plan = plan_mma(tokens, tiles, steps, 108, tokens > 16);
      const int64_t outputs = tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
      EXPECT_GE(plan.workers, std::min<int64_t>(outputs, 97)) << tiles << " " << tokens;
      EXPECT_LE(plan.workers, 108);
      if (!plan.stream_k) {
        EXPECT_LE(plan.workers, outputs);
      }
    }
}

TEST(Gpu, InvariantSplitsFollowTheShapeAlone) {
  for (const int64_t tiles : {1, 31, 32, 48, 224, 1002})
    for (const int64_t steps : {1, 5, 32, 112}) {
      const int splits = fixed_splits(tiles, steps, 132);
      EXPECT_GE(splits, 1);
      EXPECT_LE(splits, std::max<int64_t>(1, steps / 4));
      for (const int64_t tokens : {1, 16, 17, 33, 65, 129, 512}) {
        const ZipperPlan plan = plan_invariant(tokens, tiles, steps, 132);
        const int cluster = plan.tile_tokens == 128 ? 2 : 1;
        const ZipperSchedule schedule{static_cast<int>((tiles + cluster - 1) / cluster),
                                      static_cast<int>((tokens + plan.tile_tokens - 1) / plan.tile_tokens),
                                      static_cast<int>(steps), plan.workers, plan.stream_k};
        if (splits == 1) {
          EXPECT_FALSE(plan.stream_k);
          continue;
        }
        // Every worker has one part of one tile, and a tile's parts begin where every other tile's do.
        for (int worker = 0; worker < plan.workers; ++worker) {
          int64_t cursor = schedule.start(worker);
          ZipperSegment segment;
          ASSERT_TRUE(schedule.next(worker, cursor, segment));
          EXPECT_EQ(segment.first_step, steps * (worker % splits) / splits);
          EXPECT_EQ(segment.last_step, steps * (worker % splits + 1) / splits);
          EXPECT_FALSE(schedule.next(worker, cursor, segment));
        }
        EXPECT_LE(static_cast<int64_t>(plan.workers) * cluster * 2 * kTileRows * plan.tile_tokens,
                  invariant_partials(tiles, steps, tokens, 132));
      }
    }
}

}  // namespace
}  // namespace quatrain::ops
