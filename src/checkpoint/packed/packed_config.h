// What the config of a checkpoint by GPTQ, AWQ or compressed-tensors says of its packed weights.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/number_format.h"

namespace quatrain {

/// How one set of matrices was quantised.
struct PackedScheme {
  int bits = 4;
  int64_t group = 0;  // columns that share a scale; 0: the whole row
  bool symmetric = true;
  ActivationPolicy activation;       // of the matrices' inputs; 16 bits where only weights are quantised
  std::vector<std::string> targets;  // "Linear", a name, or "re:" and a pattern (compressed-tensors)
};

struct PackedConfig {
  enum class Method { Gptq, Awq, CompressedTensors };
  Method method = Method::Gptq;
  std::vector<PackedScheme> schemes;  // compressed-tensors may have several
  bool stored_zero_minus_one = true;  // GPTQ: checkpoint_format "gptq" (v1); false: "gptq_v2"
  std::string file;                   // where it was read, for messages

  /// The scheme of a matrix: the first whose targets name it, else the one for "Linear". Throws when none is.
  const PackedScheme& scheme_of(std::string_view linear) const;
};

/// From `config`'s quantization_config, or from quantize_config.json beside it; nullopt where neither is.
/// A method, bit width or layout that is not read here is refused by name; two files that disagree are too.
std::optional<PackedConfig> read_packed_config(const fs::path& directory, const Json& config);

}  // namespace quatrain
