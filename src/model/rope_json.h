// The rotary part of config.json: old style (rope_theta, rope_scaling, rope_local_base_freq) and new
// (rope_parameters, flat or one object per layer type).
#pragma once

#include <string_view>

#include "base/json.h"
#include "model/architecture.h"
#include "model/config.h"

namespace quatrain {

/// Fills rope and local_rope. config.max_positions is set already. A rope_type that is not none, linear,
/// llama3 or yarn is refused by name.
void rope_from_json(const Json& json, const Architecture& architecture, ModelConfig& config,
                    std::string_view where);

/// Adds the fields that rope_from_json reads back; old style where it can say it, since every reader knows
/// it.
void rope_to_json(const ModelConfig& config, const Architecture& architecture, Json& json);

}  // namespace quatrain
