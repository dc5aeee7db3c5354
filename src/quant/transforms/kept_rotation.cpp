#include "quant/transforms/kept_rotation.h"

#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"

namespace quatrain {
namespace {

std::string bytes_of(const torch::Tensor& rotation) {
  return {static_cast<const char*>(rotation.data_ptr()), rotation.nbytes()};
}

// One line of facts, then the FP64 values.
std::optional<torch::Tensor> read_rotation(const fs::path& file, const Json& key,
                                           std::vector<std::string>& notes) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  try {
    const std::string text = read_file(file);
    const size_t end = text.find('\n');
    require(end != std::string::npos, "{}: no line of facts", file.string());
    const Json facts = parse_json(std::string_view(text).substr(0, end), file.string());
    const std::string_view values = std::string_view(text).substr(end + 1);
    require(facts.at("key") == key && facts.at("sha256") == sha256_hex(values),
            "{}: holds another rotation, or is damaged", file.string());
    const int64_t width = facts.at("width");
    const torch::Tensor rotation = torch::empty({width, width}, torch::kDouble);
    require(values.size() == rotation.nbytes(), "{}: {} bytes for a width of {}", file.string(),
            values.size(), width);
    std::memcpy(rotation.data_ptr(), values.data(), values.size());
    for (const Json& note : facts.at("notes")) notes.push_back(note);
    return rotation;
  } catch (const std::exception& problem) {
    log_warn("{}; it is made again", problem.what());
    return std::nullopt;
  }
}

}  // namespace

torch::Tensor kept_stream_rotation(const fs::path& directory, const std::string& model,
                                   const std::string& samples,
                                   const std::shared_ptr<const Checkpoint>& checkpoint, const Recipe& recipe,
                                   const std::vector<std::vector<int32_t>>& ids,
                                   std::vector<std::string>& notes, const SampleWork& work) {
  const Recipe::Transforms& transform = recipe.transform;
  const bool measured = transform.residual == "top1-pca-offset" || recipe.residual.sort;
  if (directory.empty() || !measured) return stream_rotation(checkpoint, recipe, ids, notes, work);
  const Json key = {{"model", model},
                    {"samples", samples},
                    {"seed", recipe.seed},
                    {"device", work.device().is_cpu() ? "cpu" : "cuda"},  // sums run in another order
                    {"residual", transform.residual},
                    {"residual_group", transform.residual_group},
                    {"pca", transform.pca},
                    {"grouping", transform.grouping},
                    {"rotation", transform.rotation},
                    {"sort", recipe.residual.sort}};
  const fs::path file = directory / ("rotation-" + sha256_hex(key.dump()).substr(0, 16));
  if (const auto kept = read_rotation(file, key, notes)) {
    log_info("residual rotation: measured already, {}", file.string());
    return *kept;
  }
  std::vector<std::string> own;
  const torch::Tensor rotation = stream_rotation(checkpoint, recipe, ids, own, work).contiguous();
  const std::string values = bytes_of(rotation);
  fs::create_directories(directory);
  const Json facts = {
      {"key", key}, {"width", rotation.size(0)}, {"notes", own}, {"sha256", sha256_hex(values)}};
  write_file(file, facts.dump() + "\n" + values);
  notes.insert(notes.end(), own.begin(), own.end());
  return rotation;
}

}  // namespace quatrain
