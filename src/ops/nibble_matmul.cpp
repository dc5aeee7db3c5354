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

// Codes of the `tokens` rows of a block as the kernels read them.
void interleave(const uint8_t* codes, int64_t stride, int64_t tokens, int64_t steps, uint8_t* to) {
  for (int64_t s = 0; s < steps; ++s, codes += kStepColumns)
    for (int64_t t = 0; t < tokens; ++t, to += kStepColumns)
      std::memcpy(to, codes + t * stride, kStepColumns);
}

// The same where units are padded.
void interleave_units(const PackedNibbleMatrix& matrix, const uint8_t* codes, int64_t stride, int64_t tokens,
                      uint8_t* to) {
  const int64_t unit = matrix.unit_columns();
  std::memset(to, 0, static_cast<size_t>(matrix.panels().total_steps() * tokens * kStepColumns));
  for (int64_t first = 0; first < matrix.columns(); first += unit) {
    const int64_t end = std::min(first + unit, matrix.columns());
    for (int64_t k = first; k < end; k += kStepColumns, to += tokens * kStepColumns)
      for (int64_t t = 0; t < tokens; ++t)
        std::memcpy(to + t * kStepColumns, codes + t * stride + k,
                    static_cast<size_t>(std::min<int64_t>(kStepColumns, end - k)));
  }
}

// Scales and -zeros of a block's finest groups, of which `shared` are one group of the activations.
void spread_scales(const QuantizedActivations& x, int64_t first, int64_t tokens, int64_t groups,
                   int64_t shared, float* scale, int32_t* negative_zero) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* from = x.scale.data() + (first + t) * x.groups;
    const int16_t* zero = x.zero.data() + (first + t) * x.groups;
    for (int64_t g = 0; g < groups; ++from, ++zero)
      for (const int64_t end = std::min(g + shared, groups); g < end; ++g)
        scale[g * tokens + t] = *from, negative_zero[g * tokens + t] = -*zero;
  }
}

// The kernels' view of the activations; codes are moved unless they lie so already.
NibbleTokens view_of(const PackedNibbleMatrix& matrix, const QuantizedActivations& x, ThreadPool& pool,
                     Scratch& scratch) {
  const NibblePanels& panels = matrix.panels();
  const int64_t groups = panels.groups, steps = panels.total_steps();
  const bool whole = matrix.unit_columns() % kStepColumns == 0 || panels.units == 1;
  const bool move = x.tokens > 1 || !whole;
  scratch.scale.resize(static_cast<size_t>(x.tokens * groups));
  scratch.negative_zero.resize(static_cast<size_t>(x.tokens * groups));
  if (move) scratch.codes.resize(static_cast<size_t>(x.tokens * steps * kStepColumns));
  uint8_t* codes = scratch.codes.data();
  float* scale = scratch.scale.data();
  int32_t* negative_zero = scratch.negative_zero.data();
  const NibbleTokens view{x.tokens, move ? codes : x.codes.data(), steps * kStepColumns, scale,
                          negative_zero};
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kBlockTokens; first < std::min(end * kBlockTokens, x.tokens);
         first += kBlockTokens) {
      const int64_t tokens = view.block_tokens(first);
      spread_scales(x, first, tokens, groups, matrix.groups_per_activation(), scale + first * groups,
                    negative_zero + first * groups);
      const uint8_t* row = x.codes.data() + first * x.stride;
      if (move && whole)
        interleave(row, x.stride, tokens, steps, codes + first * view.stride);
      else if (move)
        interleave_units(matrix, row, x.stride, tokens, codes + first * view.stride);
    }
  };
  constexpr int64_t kSerialBytes = 256 << 10;  // below which another thread joins in too late
  const int64_t blocks = (x.tokens + kBlockTokens - 1) / kBlockTokens;
  if (x.tokens * view.stride < kSerialBytes)
    fill(0, blocks);
  else
    pool.parallel_for(blocks, 4, [&](int64_t begin, int64_t end, int) { fill(begin, end); });
  return view;
}

// Tokens of one work item, whole blocks: their codes stay in the second-level cache while panels pass.
constexpr int64_t kTokensOfItem = 128;
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
  const NibbleTokens view = view_of(matrix, x, pool, scratch);
  const NibbleKernel kernel = kernel_of(active_isa());

  const int64_t panel_bytes = matrix.bytes() / panels.panels;
  const int64_t tiles = (std::min(view.tokens, kTokensOfItem) + kBlockTokens - 1) / kBlockTokens;
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
          out.sums != nullptr ? out.sums + token * panels.rows * panels.groups : nullptr, out.beyond_cache};
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
  constexpr int64_t kCache = 16 << 20;  // a share of a last-level cache
  run(weights, x, pool, {y, stride, nullptr, x.tokens * weights.rows() * 4 > kCache});
}

void nibble_matmul_sums(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool,
                        int32_t* sums) {
  run(weights, x, pool, {nullptr, 0, sums, false});
}

}  // namespace quatrain::ops
