// Online transforms: from a policy's Transform to an operator on activations.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "checkpoint/artifact.h"
#include "engine/weight_source.h"
#include "model/config.h"

namespace quatrain {

/// Stored matrices of blocks of a row: x_b <- (x_b - offset_b) A_b, ops/block_transform.h.
struct BlockMatrices {
  int64_t order = 0;
  std::vector<float> values;             // [matrices, order, order]
  std::vector<int32_t> matrix_of_block;  // which of them each block takes
  std::vector<float> offset;             // [blocks, order], or empty for zero
};

/// The matrices of a transform of kind "block" on vectors of `width` values.
BlockMatrices load_block_matrices(const Transform& transform, int64_t width, std::string_view site,
                                  const WeightSource* source);
/// The matrices of a key transform of kind "matrix" on a token's heads of q and k.
BlockMatrices load_key_matrices(const Transform& transform, const ModelConfig& config, std::string_view site,
                                const WeightSource& source);
/// Throws unless `transform` is an online transform of linear inputs of a known kind, and a Hadamard one fits
/// `width`.
void check_transform(const Transform& transform, int64_t width, std::string_view site);
/// The same for key transforms.
void check_key_transform(const Transform& transform, int64_t head_dim, std::string_view site);

class OnlineTransform {
 public:
  virtual ~OnlineTransform() = default;
  /// Equal runs of columns that are transformed apart from each other.
  virtual int64_t parts() const { return 1; }
  /// Bytes of matrices that one row reads.
  virtual int64_t bytes() const { return 0; }
  /// Transforms parts [begin, end) of rows of `width` values in place, `stride` floats apart; x points to the
  /// start of a row. Runs on the calling thread.
  virtual void apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const = 0;
};

/// The operator of `transform` on vectors of `width` values; nullptr for kind "none". Stored tensors are read
/// from `source`. An unknown kind, an order or a tensor that does not fit the width is an Error that begins
/// with `site` (the linear).
std::unique_ptr<OnlineTransform> make_transform(const Transform& transform, int64_t width,
                                                std::string_view site, const WeightSource* source = nullptr);

/// The operator of a key transform on a token's heads of q and k, which lie side by side; nullptr for "none".
std::unique_ptr<OnlineTransform> make_key_transform(const Transform& transform, const ModelConfig& config,
                                                    std::string_view site, const WeightSource& source);

}  // namespace quatrain
