#include "engine/linear_parts.h"

#include <algorithm>

#include "base/error.h"

namespace quatrain {
namespace {

// A run of linears that can be one matrix.
struct Run {
  std::vector<LinearShape> linears;
  bool quantized = false;
  LinearPolicy policy;
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

LinearPart part_of_planes(const std::string& name, const LinearPolicy& policy, NibblePlanes planes) {
  LinearPart part;
  part.name = name;
  part.policy = policy;
  part.rows = planes.rows;
  part.columns = planes.columns;
  part.planes = std::move(planes);
  return part;
}

LinearPart part_of_dense(const WeightSource& source, const Run& run) {
  LinearPart part;
  part.name = run.linears.front().name;
  part.policy = run.policy;
  part.columns = run.linears.front().in;
  bool biased = false;
  for (const LinearShape& linear : run.linears) {
    source.expect(linear.name + ".weight", {linear.out, linear.in});
    part.rows += linear.out;
    part.bias.resize(static_cast<size_t>(part.rows), 0.0f);
    if (!linear.bias) continue;
    biased = true;
    const std::vector<float> values = source.vector(linear.name + ".bias", linear.out);
    std::copy(values.begin(), values.end(), part.bias.end() - linear.out);
  }
  if (!biased) part.bias.clear();
  part.read = [&source, linears = run.linears, columns = part.columns](int64_t begin, int64_t end,
                                                                       float* out) {
    int64_t first = 0;
    for (const LinearShape& linear : linears) {
      const int64_t from = std::max(begin, first), to = std::min(end, first + linear.out);
      if (from < to)
        source.read_rows(linear.name + ".weight", from - first, to - first, out + (from - begin) * columns);
      first += linear.out;
    }
  };
  return part;
}

}  // namespace

void load_linear_parts(const WeightSource& source, std::span<const LinearShape> linears,
                       const std::function<void(LinearPart&&)>& take) {
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
      take(part_of_dense(source, run));
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
      if (stacked.rows > 0) take(part_of_planes(name, run.policy, std::move(stacked)));
      stacked = std::move(planes);
      name = linear.name;
    }
    take(part_of_planes(name, run.policy, std::move(stacked)));
  }
}

}  // namespace quatrain
