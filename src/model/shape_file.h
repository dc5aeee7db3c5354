// Shapes of models without their weights: by a well-known name, or from a config in any of three styles.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace quatrain {

/// A file: config.json of the hub, params.json as Meta's and ExecuTorch's (dim, n_layers, ...), or MaxText's
/// .yml (base_emb_dim, decoder_block, ...). Throws with the file and the field.
ModelConfig read_shape_file(const fs::path& file);
ModelConfig parse_shape(std::string_view text, bool yaml, std::string_view where);

/// `name` of named_shapes(), or a file.
ModelConfig find_shape(const std::string& name_or_file);
std::vector<std::string> named_shapes();

}  // namespace quatrain
