#include "ops/cuda/zipper_schedule.h"

#include <algorithm>

namespace quatrain::ops {

ZipperPlan plan_decode(int64_t tokens, int64_t tiles, int64_t steps, int processors) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Decode;
  plan.tile_tokens = tokens <= 8 ? 8 : tokens <= 16 ? 16 : 32;
  plan.cluster = 1;
  while (plan.cluster < 8 && 2 * tiles * plan.cluster < 2 * processors && steps / plan.cluster >= 8) plan.cluster *= 2;
  return plan;
}

ZipperPlan plan_zipper(int64_t tokens, int64_t tiles, int64_t steps, int processors) {
  return tokens <= 16 ? plan_decode(tokens, tiles, steps, processors) : plan_gemm(tokens, tiles, steps, processors);
}

ZipperPlan plan_gemm(int64_t tokens, int64_t tiles, int64_t steps, int processors) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Gemm;
  plan.tile_tokens = tokens <= 16 ? 16 : tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128;
  plan.cluster = plan.tile_tokens == 128 ? 2 : 1;
  // Two CTAs share an SM below 64 tokens: the copies of one run while the other drains.
  const int slots = processors * (plan.tile_tokens <= 32 ? 2 : 1) / plan.cluster;
  const int64_t row_tiles = (tiles + plan.cluster - 1) / plan.cluster;
  const int64_t outputs = row_tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  const int64_t waves = (outputs + slots - 1) / slots;
  // Whole tiles cost no exchange of partial sums; equal shares leave no SM idle. Whole tiles win once the
  // last wave's idle share is under a tenth.
  plan.stream_k = outputs * 10 < waves * slots * 9;
  // A share of at least four steps keeps the copies' start-up latency small beside the work.
  plan.workers = static_cast<int>(std::clamp<int64_t>(outputs * steps / 4, 1, slots));
  if (!plan.stream_k) plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, outputs));
  return plan;
}

}  // namespace quatrain::ops
