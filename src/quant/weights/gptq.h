// GPTQ (arXiv 2210.17323): columns are rounded one after the other, and each error is spread over the columns
// that are still open so that the layer's output changes least.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/number_format.h"
#include "quant/weights/rtn.h"

namespace quatrain {

struct GptqOptions {
  double damping = 0.01;       // times the mean of diag H, added to diag H
  int64_t block = 128;         // columns between two updates of the rest (changes nothing but speed)
  bool act_order = false;      // columns in descending order of diag H; needs static groups
  ThreadPool* pool = nullptr;  // rows are rounded on its threads; none: on the caller's
  bool static_groups = false;  // group scales from the weights as they came, not as they are when reached
};

struct GptqResult {
  NibblePlanes planes;
  double loss = 0;        // sum over rows of e H e^T, e = w^ - w, H with its damping
  double damping = 0;     // what was added to diag H, as a share of its mean
  bool fallback = false;  // H was not positive definite at any damping: rounded to nearest instead
};

/// weight FP32 [out, in], hessian [in, in] = (2 / N) sum of x^T x over the calibration tokens (any positive
/// factor gives the same codes). Blocks in `selected` (ascending numbers, format.residual_block columns) are
/// rounded to 8 bits inside the loop, the others to 4; format.bits = 8 selects all, format.selected replaces
/// `selected`, and otherwise a residual budget chooses by format.residual_score under diag H.
/// format.clip chooses the scales as in round-to-nearest. Dead columns (diag H = 0) become zero. Where the
/// Cholesky factorisation fails the damping is raised tenfold, up to 1; then the matrix is rounded to
/// nearest, with a warning.
GptqResult quantize_gptq(const std::string& name, const torch::Tensor& weight, const torch::Tensor& hessian,
                         const WeightFormat& format, const std::vector<int32_t>& selected,
                         const GptqOptions& options);

}  // namespace quatrain
