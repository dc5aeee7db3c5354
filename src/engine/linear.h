// Linears that share one input: q, k, v; gate and up; or one alone.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/linear_input.h"
#include "engine/operator_clock.h"
#include "engine/transform.h"
#include "engine/weight_source.h"
#include "model/config.h"
#include "ops/dense_matmul.h"
#include "ops/nibble_matmul.h"

namespace quatrain {

/// y = [x W_0^T + b_0, x W_1^T + b_1, ...]: outputs side by side in the order of the linears. Matrices with
/// equal policies become one; the input is transformed and quantised once for each run of linears that agree
/// on it.
class LinearGroup {
 public:
  LinearGroup() = default;
  /// Loads and repacks; every mismatch of shape, group or transform is an Error that names the linear.
  LinearGroup(const WeightSource& source, std::span<const LinearShape> linears, ThreadPool& pool);
  /// Adds one matrix below the others. `source` has the tensors of stored transforms.
  void add_planes(const std::string& name, const LinearPolicy& policy, const NibblePlanes& planes,
                  ThreadPool& pool, const WeightSource* source = nullptr);
  void add_dense(const std::string& name, const LinearPolicy& policy,
                 std::shared_ptr<const ops::DenseMatrix> matrix, const WeightSource* source = nullptr);

  /// The matrix of planes when there is nothing but one; nullptr otherwise.
  std::shared_ptr<const ops::NibbleMatrix> only_planes() const {
    return parts_.size() == 1 ? parts_.front().nibbles : nullptr;
  }
  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }
  /// Bytes of weights and of matrices of transforms that decoding a token reads.
  int64_t bytes() const;
  /// Multiply-adds of one token.
  int64_t multiplies() const { return inputs_ * outputs_; }

  /// y [tokens, outputs()], rows `y_stride` floats apart. The clock books the products as `product`.
  void run(const LinearInput& input, int64_t tokens, ThreadPool& pool, LinearScratch& scratch, float* y,
           int64_t y_stride, Operator product) const;

 private:
  struct Part {
    std::string name;  // of its first linear, for messages
    Transform transform;
    ActivationPolicy activation;
    int64_t offset = 0;  // of its outputs in y
    std::shared_ptr<const OnlineTransform> online;
    std::shared_ptr<const ops::NibbleMatrix> nibbles;  // when activation.bits < 16
    std::shared_ptr<const ops::DenseMatrix> dense;
  };
  Part& add_part(const std::string& name, const LinearPolicy& policy, int64_t inputs, int64_t outputs,
                 const WeightSource* source);

  int64_t inputs_ = 0, outputs_ = 0;
  std::vector<Part> parts_;
};

}  // namespace quatrain
