// The model that an artifact holds, checked against its tensors.
#pragma once

#include "checkpoint/artifact.h"
#include "model/config.h"

namespace quatrain {

/// The model of config.json. Throws when the artifact's tensors are not the model's (one error lists what is
/// missing, unexpected and misshapen), or when quantization_config tells something else than they do: about
/// tied embeddings, the bits of embedding and head, KV groups and layers.
ModelConfig artifact_config(const ArtifactReader& artifact);

}  // namespace quatrain
