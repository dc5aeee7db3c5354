#include "engine/linear.h"

#include <algorithm>

#include "base/error.h"
#include "engine/linear_parts.h"

namespace quatrain {
namespace {

std::shared_ptr<const ops::DenseMatrix> dense_of_planes(const NibblePlanes& planes, ThreadPool& pool) {
  const auto read = [&planes](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row)
      planes.dequantize_row(row, out + (row - begin) * planes.columns);
  };
  return std::make_shared<ops::DenseMatrix>(planes.rows, planes.columns, read, planes.bias, pool);
}

}  // namespace

LinearGroup::LinearGroup(const WeightSource& source, std::span<const LinearShape> linears, ThreadPool& pool) {
  load_linear_parts(source, linears, [&](LinearPart&& part) {
    if (part.planes)
      add_planes(part.name, part.policy, *part.planes, pool, &source);
    else
      add_dense(
          part.name, part.policy,
          std::make_shared<ops::DenseMatrix>(part.rows, part.columns, part.read, std::move(part.bias), pool),
          &source);
  });
}

LinearGroup::Part& LinearGroup::add_part(const std::string& name, const LinearPolicy& policy, int64_t inputs,
                                         int64_t outputs, const WeightSource* source) {
  require(policy.activation.bits == 4 || policy.activation.bits == 8 || policy.activation.bits == 16,
          "{}: activation bits: {} is not 4, 8 or 16", name, policy.activation.bits);
  Part part;
  part.name = name;
  part.transform = policy.input_transform;
  part.activation = policy.activation;
  part.offset = outputs_;
  if (!parts_.empty() && parts_.back().transform == part.transform)
    part.online = parts_.back().online;
  else
    part.online = make_transform(policy.input_transform, inputs, name, source);
  inputs_ = inputs;
  outputs_ += outputs;
  return parts_.emplace_back(std::move(part));
}

void LinearGroup::add_planes(const std::string& name, const LinearPolicy& policy, const NibblePlanes& planes,
                             ThreadPool& pool, const WeightSource* source) {
  if (policy.activation.bits == 16) return add_dense(name, policy, dense_of_planes(planes, pool), source);
  Part& part = add_part(name, policy, planes.columns, planes.rows, source);
  try {
    part.nibbles = ops::pack_nibble_matrix(planes, policy.activation.group, pool);
  } catch (const Error& error) {
    fail("{}: {}", name, error.what());
  }
}

void LinearGroup::add_dense(const std::string& name, const LinearPolicy& policy,
                            std::shared_ptr<const ops::DenseMatrix> matrix, const WeightSource* source) {
  require(policy.activation.bits == 16, "{}: {}-bit activations need quantised weights", name,
          policy.activation.bits);
  add_part(name, policy, matrix->columns(), matrix->rows(), source).dense = std::move(matrix);
}

int64_t LinearGroup::bytes() const {
  int64_t bytes = 0;
  const Part* before = nullptr;
  for (const Part& part : parts_) {
    bytes += part.dense ? part.dense->bytes() : part.nibbles->bytes();
    if (part.online && (before == nullptr || before->transform != part.transform))
      bytes += part.online->bytes();
    before = &part;
  }
  return bytes;
}

void LinearGroup::run(const LinearInput& input, int64_t tokens, ThreadPool& pool, LinearScratch& scratch,
                      float* y, int64_t y_stride, Operator product) const {
  const Part* before = nullptr;
  LinearInput values;
  for (const Part& part : parts_) {
    const ActivationPolicy* codes = part.dense ? nullptr : &part.activation;
    const bool transformed = before != nullptr && before->transform == part.transform;
    if (!transformed)
      values = prepare_input(input, tokens, inputs_, {part.online.get(), codes, part.name, product}, pool,
                             scratch);
    else if (before->activation != part.activation)
      prepare_input(values, tokens, inputs_, {nullptr, codes, part.name, product}, pool, scratch);
    if (part.dense)
      ops::dense_matmul(*part.dense, values.x, tokens, values.stride, pool, y + part.offset, y_stride);
    else
      ops::nibble_matmul(*part.nibbles, scratch.quantized, pool, y + part.offset, y_stride);
    scratch.clock.lap(product);
    before = &part;
  }
}

}  // namespace quatrain
