#include <algorithm>
#include <cmath>
#include <span>

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
// what docs/measurements/gpu.md lists). Only the choice depends on them, no result.
struct TileCost {
  ZipperPlan::Kernel kernel;
  int tokens, cluster;
  double step[4];   // 128 columns, by blocks of 64 tokens that there are
  double crowded;   // a step where two CTAs share an SM; 0: there is no room for two
  double end;       // scales, biases and stores
  double exchange;  // of partial sums where tiles are shared; 0: they cannot be
  double meeting;   // the same in a cluster's shared memory; 0: they cannot
  double before;    // the product: activations are prepared
};
using Kernel = ZipperPlan::Kernel;
constexpr TileCost kTile32[] = {{Kernel::Gemm, 32, 1, {0.39, 0.39, 0.39, 0.39}, 0.66, 3.4, 8.5, 3.1, 0}};
constexpr TileCost kTile64[] = {{Kernel::Gemm, 64, 1, {0.446, 0.446, 0.446, 0.446}, 0, 3.7, 9.2, 3.9, 0}};
constexpr TileCost kMany[] = {kTile64[0],
                              {Kernel::Wide, 128, 2, {0.64, 0.64, 0.64, 0.64}, 0, 0.9, 14.0, 0, 5.0},
                              {Kernel::Wide, 256, 2, {0.69, 0.69, 0.82, 0.95}, 0, 0.9, 0, 0, 5.0}};

struct TimedPlan {
  ZipperPlan plan{};
  double time = INFINITY;

  void consider(double other_time, const ZipperPlan& other) {
    if (other_time >= time) return;
    time = other_time;
    plan = other;
  }
};

// Equal shares within clusters that all run at once.
void consider_clusters(const TileCost& cost, int64_t tokens, int64_t tiles, int64_t steps,
                       const ZipperSlots& slots, TimedPlan& best) {
  if (cost.meeting == 0) return;
  const int64_t outputs = tiles * ((tokens + cost.tokens - 1) / cost.tokens);
  for (int i = 0; i < 3; ++i) {
    const int cluster = 2 << i;
    for (int64_t each = 1; each < 2 * cluster && each <= outputs; ++each) {
      const int64_t clusters = outputs / each, share = (each * steps + cluster - 1) / cluster;
      const bool crowded = clusters > slots.clusters[i];
      if (each * clusters != outputs || share < 2) continue;
      if (crowded && (cost.crowded == 0 || clusters > 2 * slots.clusters[i])) continue;
      if (!cluster_fits(cost.tokens, cluster, each, steps)) continue;
      const auto ends = static_cast<double>((each + cluster - 1) / cluster);
      best.consider(cost.before + cost.meeting + ends * cost.end +
                        static_cast<double>(share) * (crowded ? cost.crowded : cost.step[0]),
                    {cost.kernel, cost.tokens, static_cast<int>(clusters * cluster), 0, true, cluster});
    }
  }
}

// Whole tiles in turn, and equal shares of all that meet in memory.
void consider_all_places(const TileCost& cost, int64_t tokens, int64_t tiles, int64_t steps,
                         const ZipperSlots& slots, TimedPlan& best) {
  const int64_t alone = std::max(slots.processors / cost.cluster, 1),
                places = cost.crowded > 0 ? 2 * alone : alone;
  const int64_t outputs =
      (tiles + cost.cluster - 1) / cost.cluster * ((tokens + cost.tokens - 1) / cost.tokens);
  const auto waves = static_cast<double>((outputs + places - 1) / places);
  const auto plan = [&](int64_t workers, bool stream_k) {
    return ZipperPlan{cost.kernel, cost.tokens, static_cast<int>(std::min(workers, places)), 0, stream_k};
  };
  const auto step = [&](int64_t workers) {
    return workers > alone && cost.crowded > 0 ? cost.crowded
                                               : cost.step[std::min<int64_t>((tokens + 63) / 64, 4) - 1];
  };
  best.consider(cost.before + waves * (cost.end + static_cast<double>(steps) * step(outputs)),
                plan(outputs, false));
  if (cost.exchange == 0) return;
  // A share of at least four steps keeps the copies' start-up latency small beside the work.
  const int64_t workers = std::clamp<int64_t>(outputs * steps / 4, 1, places);
  best.consider(cost.before + cost.exchange + waves * cost.end +
                    static_cast<double>(outputs * steps) / static_cast<double>(workers) * step(workers),
                plan(workers, true));
}

ZipperPlan cheapest(std::span<const TileCost> costs, int64_t tokens, int64_t tiles, int64_t steps,
                    const ZipperSlots& slots) {
  TimedPlan best;
  for (const TileCost& cost : costs) {
    consider_all_places(cost, tokens, tiles, steps, slots, best);
    consider_clusters(cost, tokens, tiles, steps, slots, best);
  }
  return best.plan;
}

}  // namespace

ZipperPlan plan_gemm(int64_t tokens, int64_t tiles, int64_t steps, const ZipperSlots& slots) {
  if (tokens > 16 && tokens <= 32) return cheapest(kTile32, tokens, tiles, steps, slots);
  if (tokens > 32 && tokens <= 64) return cheapest(kTile64, tokens, tiles, steps, slots);
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Gemm;
  // Measured on an H200 (docs/measurements/gpu.md): where the tiles of 128 rows do not fill the GPU, two
  // narrow token tiles beat one wide one up to 128 tokens, and more while all run at once.
  const int processors = slots.processors;
  const bool narrow = (tokens <= 128 && tiles < processors) || tiles * ((tokens + 63) / 64) <= processors;
  plan.tile_tokens = tokens <= 16 ? 16 : narrow ? 64 : 128;
  const int cluster = plan.tile_tokens == 128 ? 2 : 1;
  // Two CTAs share an SM below 64 tokens: the copies of one run while the other drains.
  const int places = processors * (plan.tile_tokens == 16 ? 2 : 1) / cluster;
  const int64_t row_tiles = (tiles + cluster - 1) / cluster;
  const int64_t outputs = row_tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  const int64_t waves = (outputs + places - 1) / places;
  // Whole tiles cost no exchange of partial sums; equal shares leave no SM idle. Whole tiles win once the
  // idle share of the waves is under a fifth, or under a tenth where arithmetic and not memory is the bound.
  plan.stream_k = outputs * 10 < waves * places * (plan.tile_tokens <= 64 ? 8 : 9);
  plan.workers = static_cast<int>(std::clamp<int64_t>(outputs * steps / 4, 1, places));
  if (!plan.stream_k) plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, outputs));
  return plan;
}

ZipperPlan plan_many(int64_t tokens, int64_t tiles, int64_t steps, const ZipperSlots& slots) {
  return cheapest(kMany, tokens, tiles, steps, slots);
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
