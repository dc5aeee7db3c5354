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

bool cluster_fits(int tile_tokens, int cluster, int64_t tiles, int64_t steps) {
  const int most = exchange_tiles(tile_tokens);
  if (most == 0 || (most == 1 && tiles > 1) || cluster < 2 || cluster > 8 || tiles * steps < cluster)
    return false;
  const ZipperSchedule schedule{static_cast<int>(tiles), 1, static_cast<int>(steps), cluster, true, cluster};
  const int slices = tile_tokens / 8;
  for (int tile = 0; tile < tiles; ++tile) {
    const int n = schedule.shares_of(tile).count;
    if (n > 1 && (slices + n - 1) / n * n > exchange_slices(tile_tokens)) return false;
  }
  return true;
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
  double meeting;   // the same in a cluster's shared memory
  double before;    // the product: activations are prepared
};
constexpr TileCost kTile64{ZipperPlan::Kernel::Gemm, 64, 1, {0.475, 0.475, 0.475, 0.475}, 3.0, 8.5, 2.0, 0.0};
constexpr TileCost kTileCosts[] = {
    kTile64,
    {ZipperPlan::Kernel::Wide, 128, 2, {0.68, 0.68, 0.68, 0.68}, 0.9, 14.0, 0.0, 5.0},
    {ZipperPlan::Kernel::Wide, 256, 2, {0.69, 0.69, 0.82, 1.0}, 1.2, 0.0, 0.0, 5.0}};
// A CTA alone on its SM, and two on one: the step is of both.
constexpr TileCost kTile32{ZipperPlan::Kernel::Gemm, 32, 1, {0.36, 0.36, 0.36, 0.36}, 3.0, 8.5, 2.0, 0.0};
constexpr TileCost kTile16{ZipperPlan::Kernel::Gemm, 16, 1, {0.53, 0.53, 0.53, 0.53}, 3.0, 8.5, 0.0, 0.0};

struct TimedPlan {
  ZipperPlan plan{};
  double time = INFINITY;
};

// Equal shares within clusters that all run at once.
TimedPlan plan_clusters(const TileCost& cost, int64_t tokens, int64_t tiles, int64_t steps,
                        const ZipperSlots& slots) {
  TimedPlan best;
  const int64_t outputs = tiles * ((tokens + cost.tokens - 1) / cost.tokens);
  for (int i = 0; i < 3; ++i) {
    const int cluster = 2 << i;
    for (int64_t each = 1; each < 2 * cluster && each <= outputs; ++each) {
      const int64_t clusters = outputs / each, share = (each * steps + cluster - 1) / cluster;
      if (each * clusters != outputs || clusters > slots.clusters[i] || share < 2) continue;
      if (!cluster_fits(cost.tokens, cluster, each, steps)) continue;
      const auto ends = static_cast<double>((each + cluster - 1) / cluster);
      const double time =
          cost.before + cost.meeting + ends * cost.end + static_cast<double>(share) * cost.step[0];
      if (time >= best.time) continue;
      best.time = time;
      best.plan = {cost.kernel, cost.tokens, static_cast<int>(clusters * cluster), 0, true, cluster};
    }
  }
  return best;
}

double stream_time(const TileCost& cost, int64_t outputs, int64_t steps, const ZipperPlan& plan) {
  return cost.exchange + cost.end + static_cast<double>(outputs * steps) / plan.workers * cost.step[0];
}

}  // namespace

ZipperPlan plan_gemm(int64_t tokens, int64_t tiles, int64_t steps, const ZipperSlots& slots) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Gemm;
  // Measured on an H200 (docs/measurements/gpu.md): where the tiles of 128 rows do not fill the GPU, two
  // narrow token tiles beat one wide one up to 32 and up to 128 tokens, and more while all run at once.
  const int processors = slots.processors;
  const bool few = tiles < processors;
  const bool narrow = tokens <= (few ? 128 : 64) || tiles * ((tokens + 63) / 64) <= processors;
  plan.tile_tokens = tokens <= (few ? 32 : 16) ? 16 : tokens <= 32 ? 32 : narrow ? 64 : 128;
  const int cluster = plan.tile_tokens == 128 ? 2 : 1;
  // Two CTAs share an SM below 64 tokens: the copies of one run while the other drains.
  const int places = processors * (plan.tile_tokens <= 32 ? 2 : 1) / cluster;
  const int64_t row_tiles = (tiles + cluster - 1) / cluster;
  const int64_t outputs = row_tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  const int64_t waves = (outputs + places - 1) / places;
  // Whole tiles cost no exchange of partial sums; equal shares leave no SM idle. Whole tiles win once the
  // idle share of the waves is under a fifth, or under a tenth where arithmetic and not memory is the bound.
  plan.stream_k = outputs * 10 < waves * places * (plan.tile_tokens <= 64 ? 8 : 9);
  // A share of at least four steps keeps the copies' start-up latency small beside the work.
  plan.workers = static_cast<int>(std::clamp<int64_t>(outputs * steps / 4, 1, places));
  if (!plan.stream_k) plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, outputs));
  if (!plan.stream_k || tokens <= 16 || plan.tile_tokens == 128) return plan;
  const TileCost& now = plan.tile_tokens == 16 ? kTile16 : plan.tile_tokens == 32 ? kTile32 : kTile64;
  const TimedPlan clusters = plan_clusters(tokens <= 32 ? kTile32 : kTile64, tokens, tiles, steps, slots);
  return clusters.time < stream_time(now, outputs, steps, plan) ? clusters.plan : plan;
}

ZipperPlan plan_many(int64_t tokens, int64_t tiles, int64_t steps, const ZipperSlots& slots) {
  TimedPlan best = plan_clusters(kTile64, tokens, tiles, steps, slots);
  for (const TileCost& cost : kTileCosts) {
    const int64_t places = std::max(slots.processors / cost.cluster, 1);
    const int64_t outputs =
        (tiles + cost.cluster - 1) / cost.cluster * ((tokens + cost.tokens - 1) / cost.tokens);
    const auto waves = static_cast<double>((outputs + places - 1) / places);
    const auto consider = [&](double time, int64_t workers, bool stream_k) {
      if (time >= best.time) return;
      best.time = time;
      best.plan = {cost.kernel, cost.tokens, static_cast<int>(std::min(workers, places)), 0, stream_k};
    };
    const double step = cost.step[std::min<int64_t>((tokens + 63) / 64, 4) - 1];
    consider(cost.before + waves * (cost.end + static_cast<double>(steps) * step), outputs, false);
    if (cost.exchange == 0) continue;
    const double share = static_cast<double>(outputs * steps) / static_cast<double>(places);
    consider(cost.before + cost.exchange + waves * cost.end + share * step,
             std::max<int64_t>(outputs * steps / 4, 1), true);
  }
  return best.plan;
}

ZipperPlan plan_zipper(int64_t tokens, int64_t rows, int64_t tiles, int64_t steps, const ZipperSlots& slots,
                       bool wide) {
  if (wide && tokens > kMostTileTokens) return plan_many(tokens, tiles, steps, slots);
  if (tokens > 16) return plan_gemm(tokens, tiles, steps, slots);
  const ZipperPlan decode = plan_decode(tokens, rows, slots.processors);
  // Measured on an H200 (docs/measurements/gpu.md): from 9 tokens on, with 8 strips an SM and more, the
  // GEMM's producer keeps more bytes in flight than the decode kernel's warps find issue slots for.
  return tokens > 8 && decode.slices <= 2 ? plan_gemm(tokens, tiles, steps, slots) : decode;
}

}  // namespace quatrain::ops
