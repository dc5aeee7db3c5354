#include "engine/linear.h"

#include <algorithm>

#include "base/error.h"

namespace quatrain {
namespace {

// A run of linears that can be one matrix.
struct Run {
  std::vector<LinearShape> linears;
  bool quantized = false;
  LinearPolicy policy;
  int64_t rows() const {
    int64_t rows = 0;
    for (const LinearShape& linear : linears) rows += linear.out;
    return rows;
  }
};

bool same_input(const LinearPolicy& a, const LinearPolicy& b) {
  return a.activation == b.activation && a.input_transform == b.input_transform;
}

NibblePlanes load_planes(const WeightSource& source, const LinearShape& linear) {
  NibblePlanes planes = source.planes(linear.name);
  require(planes.rows == linear.out && planes.columns == linear.in,
          "{}: {} has planes of {} x {}, the config asks for {} x {}", source.where(), linear.name,
          planes.rows, planes.columns, linear.out, linear.in);
  require(linear.bias == !planes.bias.empty(), "{}: {}.bias {}", source.where(), linear.name,
          linear.bias ? "is missing" : "is there, but the config says that there is none");
  return planes;
}

// Rows of residual blocks must not straddle two matrices.
bool stackable(const NibblePlanes& above, const NibblePlanes& below) {
  return above.rows % kResidualRows == 0 && above.weight_group == below.weight_group &&
         above.residual_block == below.residual_block;
}

void stack(NibblePlanes& above, NibblePlanes below) {
  if (!above.bias.empty() || !below.bias.empty()) {
    above.bias.resize(static_cast<size_t>(above.rows), 0.0f);
    below.bias.resize(static_cast<size_t>(below.rows), 0.0f);
    above.bias.insert(above.bias.end(), below.bias.begin(), below.bias.end());
  }
  const auto first_block = static_cast<int32_t>(above.rows / kResidualRows * above.block_columns());
  for (const int32_t block : below.residual_index) above.residual_index.push_back(first_block + block);
  above.hi.insert(above.hi.end(), below.hi.begin(), below.hi.end());
  above.scale.insert(above.scale.end(), below.scale.begin(), below.scale.end());
  above.lo.insert(above.lo.end(), below.lo.begin(), below.lo.end());
  above.rows += below.rows;
}

std::shared_ptr<const ops::DenseMatrix> dense_of_planes(const NibblePlanes& planes, ThreadPool& pool) {
  const auto read = [&planes](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row)
      planes.dequantize_row(row, out + (row - begin) * planes.columns);
  };
  return std::make_shared<ops::DenseMatrix>(planes.rows, planes.columns, read, planes.bias, pool);
}

std::shared_ptr<const ops::DenseMatrix> dense_of_run(const WeightSource& source, const Run& run,
                                                     ThreadPool& pool) {
  const int64_t columns = run.linears.front().in;
  std::vector<float> bias;
  for (const LinearShape& linear : run.linears) {
    source.expect(linear.name + ".weight", {linear.out, linear.in});
    if (linear.bias) {
      const std::vector<float> values = source.vector(linear.name + ".bias", linear.out);
      bias.insert(bias.end(), values.begin(), values.end());
    } else {
      bias.resize(bias.size() + static_cast<size_t>(linear.out), 0.0f);
    }
  }
  if (std::none_of(run.linears.begin(), run.linears.end(),
                   [](const LinearShape& linear) { return linear.bias; }))
    bias.clear();
  const auto read = [&](int64_t begin, int64_t end, float* out) {
    int64_t first = 0;
    for (const LinearShape& linear : run.linears) {
      const int64_t from = std::max(begin, first), to = std::min(end, first + linear.out);
      if (from < to)
        source.read_rows(linear.name + ".weight", from - first, to - first, out + (from - begin) * columns);
      first += linear.out;
    }
  };
  return std::make_shared<ops::DenseMatrix>(run.rows(), columns, read, std::move(bias), pool);
}

}  // namespace

LinearGroup::LinearGroup(const WeightSource& source, std::span<const LinearShape> linears, ThreadPool& pool) {
  std::vector<Run> runs;
  for (const LinearShape& linear : linears) {
    const bool quantized = source.quantized(linear.name);
    const LinearPolicy policy = source.policy(linear.name);
    require(quantized || policy.activation.bits == 16,
            "{}: {} has {}-bit activations but unquantised weights, which the engine does not multiply",
            source.where(), linear.name, policy.activation.bits);
    require(linear.in == linears.front().in, "{}: {} has {} inputs, {} has {}", source.where(), linear.name,
            linear.in, linears.front().name, linears.front().in);
    if (runs.empty() || runs.back().quantized != quantized || !same_input(runs.back().policy, policy))
      runs.push_back({{}, quantized, policy});
    runs.back().linears.push_back(linear);
  }
  for (const Run& run : runs) {
    if (!run.quantized) {
      add_dense(run.linears.front().name, run.policy, dense_of_run(source, run, pool), &source);
      continue;
    }
    std::string name;
    NibblePlanes stacked;
    for (const LinearShape& linear : run.linears) {
      NibblePlanes planes = load_planes(source, linear);
      if (stacked.rows > 0 && stackable(stacked, planes)) {
        stack(stacked, std::move(planes));
        continue;
      }
      if (stacked.rows > 0) add_planes(name, run.policy, stacked, pool, &source);
      stacked = std::move(planes);
      name = linear.name;
    }
    add_planes(name, run.policy, stacked, pool, &source);
  }
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

void LinearGroup::run(const float* x, int64_t tokens, int64_t stride, ThreadPool& pool,
                      LinearScratch& scratch, float* y, int64_t y_stride, Operator product) const {
  const Part* before = nullptr;
  const float* input = x;
  int64_t input_stride = stride;
  for (const Part& part : parts_) {
    const bool same_transform = before != nullptr && before->transform == part.transform;
    if (part.online && !same_transform) {
      scratch.transformed.resize(static_cast<size_t>(tokens * inputs_));
      transform_rows(*part.online, x, tokens, stride, inputs_, pool, scratch.transformed.data(), inputs_);
      scratch.clock.lap(Operator::Transform);
    }
    if (!same_transform) {
      input = part.online ? scratch.transformed.data() : x;
      input_stride = part.online ? inputs_ : stride;
    }
    if (part.dense) {
      ops::dense_matmul(*part.dense, input, tokens, input_stride, pool, y + part.offset, y_stride);
    } else {
      if (!same_transform || before->activation != part.activation) {
        ops::quantize_activations(input, tokens, input_stride, inputs_, part.activation, part.name, pool,
                                  scratch.quantized);
        scratch.clock.lap(Operator::Quantize);
      }
      ops::nibble_matmul(*part.nibbles, scratch.quantized, pool, y + part.offset, y_stride);
    }
    scratch.clock.lap(product);
    before = &part;
  }
}

}  // namespace quatrain
