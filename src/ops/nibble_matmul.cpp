#include "ops/nibble_matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/nibble_pack.h"

namespace quatrain::ops {
namespace {

NibbleKernel kernel_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::Avx512Vnni:
      return nibble_panels_avx512vnni;
    case Isa::AvxVnni:
      return nibble_panels_avxvnni;
    case Isa::Avx2:
      return nibble_panels_avx2;
#endif
    default:
      return nibble_panels_generic;
  }
}

// Reused by the calls of one thread, so that a decode step allocates nothing.
struct Scratch {
  AlignedBuffer<uint8_t> codes;
  AlignedBuffer<float> scale;
  AlignedBuffer<int32_t> negative_zero;
  std::vector<int64_t> starts;
};

// The kernels' view of the activations: scale and -zero for every finest group, and codes moved only
// where units are padded.
NibbleTokens view_of(const PackedNibbleMatrix& matrix, const QuantizedActivations& x, Scratch& scratch) {
  const NibblePanels& panels = matrix.panels();
  const int64_t shared = matrix.groups_per_activation();
  scratch.scale.resize(static_cast<size_t>(x.tokens * panels.groups));
  scratch.negative_zero.resize(static_cast<size_t>(x.tokens * panels.groups));
  for (int64_t t = 0; t < x.tokens; ++t) {
    float* scale = scratch.scale.data() + t * panels.groups;
    int32_t* negative_zero = scratch.negative_zero.data() + t * panels.groups;
    const float* from_scale = x.scale.data() + t * x.groups;
    const int16_t* from_zero = x.zero.data() + t * x.groups;
    if (shared == 1) {
      std::memcpy(scale, from_scale, static_cast<size_t>(panels.groups) * sizeof *scale);
      for (int64_t g = 0; g < panels.groups; ++g) negative_zero[g] = -from_zero[g];
    } else {
      for (int64_t g = 0; g < panels.groups; ++g)
        scale[g] = from_scale[g / shared], negative_zero[g] = -from_zero[g / shared];
    }
  }
  NibbleTokens view{x.tokens, x.codes.data(), x.stride, scratch.scale.data(), scratch.negative_zero.data()};
  const int64_t unit = matrix.unit_columns();
  if (unit % kStepColumns == 0 || panels.units == 1) return view;

  const int64_t padded_unit = panels.steps * kStepColumns;
  view.stride = panels.total_steps() * kStepColumns;
  scratch.codes.resize(static_cast<size_t>(x.tokens * view.stride));
  std::memset(scratch.codes.data(), 0, scratch.codes.size());
  for (int64_t t = 0; t < x.tokens; ++t)
    for (int64_t u = 0; u < panels.units; ++u)
      std::memcpy(scratch.codes.data() + t * view.stride + u * padded_unit,
                  x.codes.data() + t * x.stride + u * unit,
                  static_cast<size_t>(std::min(unit, x.width - u * unit)));
  view.codes = scratch.codes.data();
  return view;
}

// Tokens of one work item: their codes stay in the second-level cache while panels pass.
constexpr int64_t kTokensOfItem = 128;
constexpr int64_t kTokensOfTile = 8;
// Weight bytes of one work item, times tiles of tokens: a preempted thread holds up no more than this.
constexpr int64_t kLargestItem = 512 << 10;

// Cuts panels into items that shrink towards the end: long enough to stream and to be worth claiming, yet the
// threads finish together. Fills `starts` with the first panel of each, and the end.
void cut_panels(int64_t panels, int64_t largest, int threads, std::vector<int64_t>& starts) {
  starts.assign(1, 0);
  for (int64_t first = 0; first < panels; starts.push_back(first))
    first += std::clamp<int64_t>((panels - first) / (2 * threads), 1, largest);
}

void run(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool,
         const NibbleResults& out) {
  const auto& matrix = static_cast<const PackedNibbleMatrix&>(weights);
  const NibblePanels& panels = matrix.panels();
  require(x.width == weights.columns() && x.group == matrix.activation_group(),
          "nibble matmul: activations of {} columns in groups of {} meet a matrix of {} columns packed for "
          "groups "
          "of {}",
          x.width, x.group, weights.columns(), matrix.activation_group());
  if (x.tokens == 0) return;
  thread_local Scratch scratch;
  const NibbleTokens view = view_of(matrix, x, scratch);
  const NibbleKernel kernel = kernel_of(active_isa());

  const int64_t panel_bytes = matrix.bytes() / panels.panels;
  const int64_t tiles = (std::min(view.tokens, kTokensOfItem) + kTokensOfTile - 1) / kTokensOfTile;
  cut_panels(panels.panels, std::max<int64_t>(1, kLargestItem / (panel_bytes * tiles)), pool.threads(),
             scratch.starts);
  const auto& starts = scratch.starts;
  const auto panel_items = static_cast<int64_t>(starts.size()) - 1;
  const int64_t token_items = (view.tokens + kTokensOfItem - 1) / kTokensOfItem;
  pool.parallel_for(panel_items * token_items, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel_item = item % panel_items;
      const int64_t token = item / panel_items * kTokensOfItem;
      const NibbleTokens part{std::min(kTokensOfItem, view.tokens - token), view.codes + token * view.stride,
                              view.stride, view.scale + token * panels.groups,
                              view.negative_zero + token * panels.groups};
      const NibbleResults part_out{
          out.y != nullptr ? out.y + token * out.stride : nullptr, out.stride,
          out.sums != nullptr ? out.sums + token * panels.rows * panels.groups : nullptr};
      kernel(panels, part, starts[panel_item], starts[panel_item + 1], part_out);
    }
  });
}

}  // namespace

std::unique_ptr<NibbleMatrix> pack_nibble_matrix(const NibblePlanes& planes, int64_t activation_group,
                                                 ThreadPool& pool) {
  return std::make_unique<PackedNibbleMatrix>(planes, activation_group, pool);
}

void nibble_matmul(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool, float* y,
                   int64_t stride) {
  run(weights, x, pool, {y, stride, nullptr});
}

void nibble_matmul_sums(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool,
                        int32_t* sums) {
  run(weights, x, pool, {nullptr, 0, sums});
}

}  // namespace quatrain::ops
