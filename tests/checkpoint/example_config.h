// A quantization_config with an override of every kind.
#pragma once

#include "checkpoint/artifact.h"

namespace quatrain {

inline QuantizationConfig example_config() {
  QuantizationConfig config;
  config.recipe = "quatrain";
  config.defaults = {
      .activation = {4, 64, false}, .input_transform = {}, .weight_group = 64, .residual_block = 64};
  LinearPolicy down = config.defaults;
  down.activation = {8, 128, false};
  down.input_transform = {"grouped-offset-hadamard", 128, 3, ""};
  config.linears["model.layers.0.mlp.down_proj"] = down;
  config.kv.bits = 4;
  config.kv.group = 64;
  config.kv.key_transform = {"hadamard", 64, 5, ""};
  config.embedding_bits = 8;
  config.lm_head_bits = 8;
  config.unquantized = {"model.norm"};
  return config;
}

}  // namespace quatrain
