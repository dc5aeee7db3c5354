// Quantised weights in the layouts of other programs' safetensors.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/safetensors_writer.h"
#include "formats/convert.h"
#include "model/checkpoint.h"
#include "model/stored_layout.h"

namespace quatrain {

/// 4- or 8-bit symmetric GPTQ without activation order; of the version that options.to names. The format has
/// one width and one group for all matrices: groups are cut to the smallest; a matrix of another width, or
/// whose sizes do not divide by 32 and the group, is refused, or 16-bit with `fold`.
void export_gptq(const Checkpoint& model, const fs::path& output, const FormatOptions& options);

/// pack-quantized where only weights are quantised, int-quantized where inputs are 8-bit by token. Other
/// activation policies are left out with a warning.
void export_compressed_tensors(const Checkpoint& model, const fs::path& output, const FormatOptions& options);

/// How a tensor of the hub's layout is exported.
struct WeightScheme {
  int bits = 16;      // 4, 8, or 16: not packed
  int64_t group = 0;  // columns; 0: the row
  ActivationPolicy activation;
  bool operator==(const WeightScheme&) const = default;
};

/// A scheme for every tensor of `layout`. Embedding, head, norms and routers are 16-bit. Matrices that
/// readers fuse (q, k, v; gate and up) and the experts of a layer have one scheme: the widest of theirs.
/// Throws when the model has no integers at all.
std::vector<WeightScheme> plan_schemes(const Checkpoint& model, const std::vector<StoredTensor>& layout);

/// Everything but packed tensors: those as `dtype`, config.json with `quantization_config`, text files.
/// `write_packed` writes the tensors of one matrix.
void write_packed_hub(
    const Checkpoint& model, const fs::path& output, const std::string& dtype,
    const std::vector<StoredTensor>& layout, const std::vector<WeightScheme>& schemes,
    const Json& quantization_config,
    const std::function<void(SafetensorsWriter&, const std::string& name, StoredCodes)>& write_packed,
    const std::function<void(const fs::path&)>& write_more = {});

}  // namespace quatrain
