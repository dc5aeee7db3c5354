#include <algorithm>
#include <cmath>

#include "ops/cuda/zipper_schedule.h"

namespace quatrain::ops {

ZipperPlan plan_decode(int64_t tokens, int64_t rows, int processors) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Decode;
  plan.tile_tokens = tokens <= 8 ? 8 : 16;
  const int64_t strips = (rows + 15) / 16;
  const int64_t cta_strips = std::min<int64_t>((strips + processors - 1) / processors, 16);
  plan.workers = static_cast<int>(std::min<int64_t>((strips + cta_strips - 1) / cta_strips, processors));
  plan.slices = static_cast<int>(16 / cta_strips);
  return plan;
}

ZipperPlan plan_gemm(int64_t tokens, int64_t tiles, int64_t steps, int processors) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Gemm;
  // Measured on an H200 (docs/measurements/gpu.md): where the tiles of 128 rows do not fill the GPU, two
  // narrow token tiles beat one wide one up to 32 and up to 128 tokens, and more while all run at once.
  const bool few = tiles < processors;
  const bool narrow = tokens <= (few ? 128 : 64) || tiles * ((tokens + 63) / 64) <= processors;
  plan.tile_tokens = tokens <= (few ? 32 : 16) ? 16 : tokens <= 32 ? 32 : narrow ? 64 : 128;
  const int cluster = plan.tile_tokens == 128 ? 2 : 1;
  // Two CTAs share an SM below 64 tokens: the copies of one run while the other drains.
  const int slots = processors * (plan.tile_tokens <= 32 ? 2 : 1) / cluster;
  const int64_t row_tiles = (tiles + cluster - 1) / cluster;
  const int64_t outputs = row_tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  const int64_t waves = (outputs + slots - 1) / slots;
  // Whole tiles cost no exchange of partial sums; equal shares leave no SM idle. Whole tiles win once the
  // idle share of the waves is under a fifth, or under a tenth where arithmetic and not memory is the bound.
  plan.stream_k = outputs * 10 < waves * slots * (plan.tile_tokens <= 64 ? 8 : 9);
  // A share of at least four steps keeps the copies' start-up latency small beside the work.
  plan.workers = static_cast<int>(std::clamp<int64_t>(outputs * steps / 4, 1, slots));
  if (!plan.stream_k) plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, outputs));
  return plan;
}

namespace {

// What a tile costs in microseconds, fitted to `zipper_gemm_cuda_bench --sweep` on an H200 (within 10 % of
// what docs/measurements/gpu.md lists from 128 tokens on). Only the choice depends on them, no result.
struct TileCost {
  ZipperPlan::Kernel kernel;
  int tokens, cluster;
  double step[4];   // 128 columns, by blocks of 64 tokens that there are
  double end;       // scales, biases and stores
  double exchange;  // of partial sums where tiles are shared; 0: they cannot be
  double before;    // the product: activations are prepared
};
constexpr TileCost kTileCosts[] = {
    {ZipperPlan::Kernel::Gemm, 64, 1, {0.475, 0.475, 0.475, 0.475}, 3.0, 8.5, 0.0},
    {ZipperPlan::Kernel::Wide, 128, 2, {0.68, 0.68, 0.68, 0.68}, 0.9, 14.0, 5.0},
    {ZipperPlan::Kernel::Wide, 256, 2, {0.69, 0.69, 0.82, 1.0}, 1.2, 0.0, 5.0}};

}  // namespace

ZipperPlan plan_many(int64_t tokens, int64_t tiles, int64_t steps, int processors) {
  ZipperPlan best{};
  double least = INFINITY;
  for (const TileCost& cost : kTileCosts) {
    const int64_t slots = std::max(processors / cost.cluster, 1);
    const int64_t outputs =
        (tiles + cost.cluster - 1) / cost.cluster * ((tokens + cost.tokens - 1) / cost.tokens);
    const auto waves = static_cast<double>((outputs + slots - 1) / slots);
    const auto consider = [&](double time, int64_t workers, bool stream_k) {
      if (time >= least) return;
      least = time;
      best = {cost.kernel, cost.tokens, static_cast<int>(std::min(workers, slots)), 0, stream_k};
    };
    const double step = cost.step[std::min<int64_t>((tokens + 63) / 64, 4) - 1];
    consider(cost.before + waves * (cost.end + static_cast<double>(steps) * step), outputs, false);
    if (cost.exchange == 0) continue;
    const double share = static_cast<double>(outputs * steps) / static_cast<double>(slots);
    consider(cost.before + cost.exchange + waves * cost.end + share * step,
             std::max<int64_t>(outputs * steps / 4, 1), true);
  }
  return best;
}

ZipperPlan plan_zipper(int64_t tokens, int64_t rows, int64_t tiles, int64_t steps, int processors,
                       bool wide) {
  if (wide && tokens > kMostTileTokens) return plan_many(tokens, tiles, steps, processors);
  if (tokens > 16) return plan_gemm(tokens, tiles, steps, processors);
  const ZipperPlan decode = plan_decode(tokens, rows, processors);
  // Measured on an H200 (docs/measurements/gpu.md): from 9 tokens on, with 8 strips an SM and more, the
  // GEMM's producer keeps more bytes in flight than the decode kernel's warps find issue slots for.
  return tokens > 8 && decode.slices <= 2 ? plan_gemm(tokens, tiles, steps, processors) : decode;
}

}  // namespace quatrain::ops
