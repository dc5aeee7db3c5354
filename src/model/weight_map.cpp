#include "model/weight_map.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/element_type.h"
#include "model/tensor_problems.h"

namespace quatrain {
namespace {

std::map<std::string, std::vector<int64_t>, std::less<>> expected_shapes(const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes;
  for (PlainShape& tensor : plain_tensors_of_model(config))
    shapes.emplace(std::move(tensor.name), std::move(tensor.shape));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (PlainShape& tensor : plain_tensors_of_layer(config, layer))
      shapes.emplace(std::move(tensor.name), std::move(tensor.shape));
    for (const LinearShape& linear : linears_of_layer(config, layer)) {
      shapes.emplace(linear.name + ".weight", std::vector<int64_t>{linear.out, linear.in});
      if (linear.bias) shapes.emplace(linear.name + ".bias", std::vector<int64_t>{linear.out});
    }
  }
  return shapes;
}

// Same values: by bytes where the types agree, else as FP32 row by row.
bool equal_tensors(const TensorSource& source, const TensorInfo& a, const TensorInfo& b) {
  if (a.shape != b.shape) return false;
  if (a.type == b.type) return std::ranges::equal(source.raw(a), source.raw(b));
  std::vector<float> row_a(static_cast<size_t>(a.columns())), row_b(row_a.size());
  for (int64_t row = 0; row < a.rows(); ++row) {
    source.read_rows(a, row, row_a);
    source.read_rows(b, row, row_b);
    if (row_a != row_b) return false;
  }
  return true;
}

// Rows that a part takes of its tensor; a vector's elements are its rows.
int64_t rows_of(const std::vector<int64_t>& shape) {
  return shape.empty() ? 1 : shape.front();
}

bool shape_fits(const TensorInfo& tensor, const std::vector<std::vector<int64_t>>& parts, int64_t experts) {
  if (parts.size() == 1) return tensor.shape == parts.front();
  int64_t rows = 0;
  for (const auto& part : parts) {
    rows += rows_of(part);
    if (part.size() != parts.front().size() ||
        part.back() != (part.size() > 1 ? tensor.columns() : part.back()))
      return false;
  }
  const bool vectors = parts.front().size() == 1;
  if (vectors) return tensor.shape == std::vector<int64_t>{rows};
  if (tensor.shape.size() == 3) return tensor.shape[0] == experts && tensor.rows() == rows;
  return tensor.shape.size() == 2 && tensor.rows() == rows;
}

bool is_rotated(std::string_view name) {
  return name.find(".q_proj.") != name.npos || name.find(".k_proj.") != name.npos;
}

}  // namespace

WeightMap map_weights(const TensorSource& source, const WeightNamer& namer, bool paired,
                      ModelConfig& config) {
  std::vector<std::pair<const TensorInfo*, std::vector<std::string>>> named;
  TensorProblems problems;
  const TensorInfo *head = nullptr, *embedding = nullptr;
  for (const TensorInfo& tensor : source.tensors()) {
    auto parts = namer(tensor.name);
    if (!parts) {
      problems.unexpected.push_back(tensor.name + " " + shape_text(tensor.shape));
      continue;
    }
    if (*parts == std::vector<std::string>{"lm_head.weight"}) head = &tensor;
    if (*parts == std::vector<std::string>{"model.embed_tokens.weight"}) embedding = &tensor;
    if (!parts->empty()) named.emplace_back(&tensor, std::move(*parts));
  }
  if (config.tied_embeddings && head != nullptr) {
    if (embedding != nullptr && equal_tensors(source, *head, *embedding)) {
      std::erase_if(named, [&](const auto& entry) { return entry.first == head; });
    } else {
      log_warn("{}: tie_word_embeddings is set, but {} differs from the embedding; using it",
               source.path().string(), head->name);
      config.tied_embeddings = false;
    }
  }

  auto expected = expected_shapes(config);
  WeightMap map;
  for (const auto& [tensor, parts] : named) {
    std::vector<std::vector<int64_t>> shapes;
    for (const std::string& part : parts)
      if (const auto found = expected.find(part); found != expected.end()) shapes.push_back(found->second);
    if (shapes.size() != parts.size()) {
      problems.unexpected.push_back(tensor->name + " " + shape_text(tensor->shape));
      continue;
    }
    if (is_integer_type(tensor->type))
      problems.mistyped.push_back(fmt::format("{} holds {}, no weights", tensor->name, tensor->type));
    const bool fits = shape_fits(*tensor, shapes, config.moe.experts);
    if (!fits)
      problems.misshapen.push_back(fmt::format(
          "{} is {}, not {}", tensor->name, shape_text(tensor->shape),
          parts.size() == 1 ? shape_text(shapes.front())
                            : fmt::format("{} x {} stacked", parts.size(), shape_text(shapes.front()))));
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      WeightSlice slice{tensor, shapes[i], row, paired && is_rotated(parts[i]) ? config.head_dim : 0};
      if (!map.emplace(parts[i], std::move(slice)).second)
        problems.unexpected.push_back(fmt::format("{} (a second {})", tensor->name, parts[i]));
      row += rows_of(shapes[i]);
    }
  }
  for (const auto& [name, shape] : expected)
    if (!map.contains(name)) problems.missing.push_back(name + " " + shape_text(shape));
  problems.raise(source.path().string());
  return map;
}

}  // namespace quatrain
