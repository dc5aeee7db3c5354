#include <algorithm>

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

ZipperPlan plan_wide(int64_t tokens, int64_t tiles, int processors) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Wide;
  const int64_t slots = processors / 2;
  const auto outputs = [&](int64_t tile) { return (tiles + 1) / 2 * ((tokens + tile - 1) / tile); };
  const auto waves = [&](int64_t tile) { return (outputs(tile) + slots - 1) / slots; };
  // A tile of 256 tokens takes less than two of 128.
  plan.tile_tokens = tokens > 128 && waves(256) * 17 <= waves(128) * 10 ? 256 : 128;
  plan.stream_k =
      plan.tile_tokens == 128 && outputs(128) > slots && outputs(128) * 10 < waves(128) * slots * 9;
  plan.workers = static_cast<int>(std::min(outputs(plan.tile_tokens), slots));
  return plan;
}

ZipperPlan plan_zipper(int64_t tokens, int64_t rows, int64_t tiles, int64_t steps, int processors,
                       bool wide) {
  // Measured on an H200 (docs/measurements/gpu.md): the wide kernel wins once its tiles fill most of the GPU.
  if (wide && tokens > 128 && (tiles + 1) / 2 * ((tokens + 127) / 128) * 3 >= processors)
    return plan_wide(tokens, tiles, processors);
  if (tokens > 16) return plan_gemm(tokens, tiles, steps, processors);
  const ZipperPlan decode = plan_decode(tokens, rows, processors);
  // Measured on an H200 (docs/measurements/gpu.md): from 9 tokens on, with 8 strips an SM and more, the
  // GEMM's producer keeps more bytes in flight than the decode kernel's warps find issue slots for.
  return tokens > 8 && decode.slices <= 2 ? plan_gemm(tokens, tiles, steps, processors) : decode;
}

}  // namespace quatrain::ops
