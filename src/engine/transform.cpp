#include "engine/transform.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/block_transform.h"
#include "ops/hadamard.h"

namespace quatrain {
namespace {

class HadamardOperator : public OnlineTransform {
 public:
  HadamardOperator(ops::HadamardTransform hadamard, int64_t repeats)
      : hadamard_(std::move(hadamard)), repeats_(repeats) {}

  int64_t parts() const override { return repeats_; }
  void apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const override {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = begin; i < end; ++i) hadamard_.apply_row(x + row * stride + i * hadamard_.width());
  }

 private:
  ops::HadamardTransform hadamard_;
  int64_t repeats_;  // vectors side by side in a row
};

class BlockOperator : public OnlineTransform {
 public:
  explicit BlockOperator(ops::BlockTransform blocks) : blocks_(std::move(blocks)) {}
  int64_t parts() const override { return blocks_.blocks(); }
  int64_t bytes() const override { return blocks_.bytes(); }
  void apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const override {
    blocks_.apply(x, rows, stride, begin, end);
  }

 private:
  ops::BlockTransform blocks_;
};

void check_order(const Transform& transform, int64_t width, std::string_view site) {
  const bool grouped = transform.kind != "hadamard";
  require(transform.order > 0 && width % transform.order == 0 && (grouped || transform.order == width),
          "{}: a {} of order {} does not fit {} values; the order {}", site, transform.kind, transform.order,
          width, grouped ? "must divide them" : "must be that number");
}

std::unique_ptr<OnlineTransform> hadamard(const Transform& transform, int64_t width, int64_t repeats,
                                          std::string_view site) {
  try {
    return std::make_unique<HadamardOperator>(
        ops::HadamardTransform(width, transform.order, transform.seed,
                               transform.kind == "grouped-offset-hadamard"),
        repeats);
  } catch (const Error& error) {
    fail("{}: {}", site, error.what());
  }
}

std::unique_ptr<OnlineTransform> block_operator(const BlockMatrices& blocks) {
  return std::make_unique<BlockOperator>(
      ops::BlockTransform(blocks.order, blocks.values, blocks.matrix_of_block, blocks.offset));
}

// The tensor of a stored transform, whose shape must be [matrices, rows, columns].
std::vector<float> stored(const Transform& transform, const WeightSource* source, int64_t matrices,
                          int64_t rows, int64_t columns, std::string_view site) {
  require(source != nullptr && !transform.tensor.empty(), "{}: a transform of kind \"{}\" needs a tensor",
          site, transform.kind);
  source->expect(transform.tensor, {matrices, rows, columns});
  std::vector<float> values(static_cast<size_t>(matrices * rows * columns));
  source->read_rows(transform.tensor, 0, matrices * rows, values.data());
  return values;
}

}  // namespace

BlockMatrices load_block_matrices(const Transform& transform, int64_t width, std::string_view site,
                                  const WeightSource* source) {
  const int64_t order = transform.order;
  require(order > 0 && width % order == 0, "{}: blocks of {} do not divide {} values", site, order, width);
  BlockMatrices blocks{order, stored(transform, source, width / order, order, order, site), {}, {}};
  blocks.matrix_of_block.resize(static_cast<size_t>(width / order));
  std::iota(blocks.matrix_of_block.begin(), blocks.matrix_of_block.end(), 0);
  return blocks;
}

// Of each KV head the tensor holds A, A^-T and the mean key, [2 d + 1, d]: q <- q A^-T, k <- (k - mean) A.
BlockMatrices load_key_matrices(const Transform& transform, const ModelConfig& config, std::string_view site,
                                const WeightSource& source) {
  const int64_t d = config.head_dim, square = d * d;
  const std::vector<float> values = stored(transform, &source, config.kv_heads, 2 * d + 1, d, site);
  std::vector<float> matrices;  // A^-T of every KV head, then A of every one
  std::vector<float> offset(static_cast<size_t>(config.heads * d), 0.0f);
  for (const int64_t first : {square, int64_t{0}})
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      const auto at = values.begin() + head * (2 * square + d) + first;
      matrices.insert(matrices.end(), at, at + square);
    }
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const auto mean = values.begin() + head * (2 * square + d) + 2 * square;
    offset.insert(offset.end(), mean, mean + d);
  }
  std::vector<int32_t> of_block;
  for (int64_t head = 0; head < config.heads; ++head)
    of_block.push_back(static_cast<int32_t>(head / (config.heads / config.kv_heads)));
  for (int64_t head = 0; head < config.kv_heads; ++head)
    of_block.push_back(static_cast<int32_t>(config.kv_heads + head));
  return {d, std::move(matrices), std::move(of_block), std::move(offset)};
}

void check_transform(const Transform& transform, int64_t width, std::string_view site) {
  const std::string& kind = transform.kind;
  if (kind == "none" || kind == "block") return;
  require(kind == "hadamard" || kind == "grouped-hadamard" || kind == "grouped-offset-hadamard",
          "{}: the engine has no online transform of kind \"{}\"; it has none, hadamard, grouped-hadamard, "
          "grouped-offset-hadamard, block",
          site, kind);
  check_order(transform, width, site);
}

void check_key_transform(const Transform& transform, int64_t head_dim, std::string_view site) {
  if (transform.kind == "none" || transform.kind == "matrix") return;
  require(transform.kind == "hadamard",
          "{}: the engine has no key transform of kind \"{}\"; it has none, hadamard, matrix", site,
          transform.kind);
  check_order(transform, head_dim, site);
}

std::unique_ptr<OnlineTransform> make_transform(const Transform& transform, int64_t width,
                                                std::string_view site, const WeightSource* source) {
  check_transform(transform, width, site);
  if (transform.kind == "none") return nullptr;
  if (transform.kind == "block") return block_operator(load_block_matrices(transform, width, site, source));
  return hadamard(transform, width, 1, site);
}

std::unique_ptr<OnlineTransform> make_key_transform(const Transform& transform, const ModelConfig& config,
                                                    std::string_view site, const WeightSource& source) {
  check_key_transform(transform, config.head_dim, site);
  if (transform.kind == "none") return nullptr;
  if (transform.kind == "matrix") return block_operator(load_key_matrices(transform, config, site, source));
  return hadamard(transform, config.head_dim, config.heads + config.kv_heads, site);
}

}  // namespace quatrain
