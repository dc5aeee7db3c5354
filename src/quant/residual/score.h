// How much each residual block of a matrix is worth.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

/// Scores of the blocks of 16 rows x `block` columns, row-major. weight FP32 [out, in], steps: the scale of
/// every weight, sensitivity FP64 [in] (of the scores that look at inputs). With R the error of the 4-bit
/// weights and E that of the 8-bit ones:
///   residual-norm     sum R^2
///   hessian-diagonal  sum h_j R^2
///   delta-hessian     sum h_j (R^2 - E^2)   (MosaicQuant, arXiv 2606.15652, section 4.1)
///   weight-max        max |w|
std::vector<double> block_scores(std::string_view kind, const torch::Tensor& weight,
                                 const torch::Tensor& steps, const torch::Tensor& sensitivity, int64_t block);

/// The scores of one matrix's blocks, and the energy sum h_j w_ij^2 of its outputs.
struct ScoredMatrix {
  std::vector<double> scores;
  double power = 0;
};

/// residual.scope = "global": of all blocks of all matrices the ceil(budget * blocks) with the largest score
/// relative to their matrix's power, by matrix, ascending. Outputs of different matrices have different
/// units: what is compared is the share of its own output that a matrix gets back. Blocks whose score is not
/// above 0 are left out; of equal ones the earlier matrix (by name) and the lower number win.
std::map<std::string, std::vector<int32_t>> choose_globally(
    const std::map<std::string, ScoredMatrix>& matrices, double budget);

}  // namespace quatrain
