// The rotation of the residual stream, kept for the next recipe that would measure the same one.
#pragma once

#include "base/json.h"
#include "quant/transforms/stream_rotation.h"

namespace quatrain {

/// stream_rotation(), kept as a file of `directory` under what decides it: `model` and `samples` (hashes),
/// the seed, the kind of device, and the fields of the recipe that it reads. A file that is damaged or of
/// something else is made again. An empty `directory` keeps nothing; nor does a rotation that takes no pass
/// over the model.
torch::Tensor kept_stream_rotation(const fs::path& directory, const std::string& model,
                                   const std::string& samples,
                                   const std::shared_ptr<const Checkpoint>& checkpoint, const Recipe& recipe,
                                   const std::vector<std::vector<int32_t>>& ids,
                                   std::vector<std::string>& notes, const SampleWork& work);

}  // namespace quatrain
