#include "formats/convert.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/artifact.h"
#include "formats/artifact_checkpoint.h"
#include "formats/export.h"
#include "formats/import.h"
#include "model/convert.h"
#include "model/inspect.h"

namespace quatrain {

void convert_format(const fs::path& model, const fs::path& output, const FormatOptions& options) {
  const bool plain = options.to == "safetensors" || options.to == "gguf";
  const bool packed = options.to == "gptq" || options.to == "gptq-v2" || options.to == "compressed-tensors";
  if (!plain && !packed && options.to != "artifact")
    fail_usage("--to \"{}\" is not one of safetensors, gguf, gptq, gptq-v2, compressed-tensors, artifact",
               options.to);
  const bool from_artifact = is_artifact(model);
  require(!from_artifact || options.to != "artifact", "{}: is an artifact already", model.string());
  const auto checkpoint = from_artifact ? open_artifact(model, options.fold) : open_checkpoint(model);
  if (plain) {
    convert_model(*checkpoint, output, {.format = options.to, .dtype = options.dtype});
  } else if (options.to == "artifact") {
    import_artifact(*checkpoint, output);
  } else if (options.to == "compressed-tensors") {
    export_compressed_tensors(*checkpoint, output, options);
  } else {
    export_gptq(*checkpoint, output, options);
  }
  // Read back: a tensor that is missing or misshapen is found now, and the bits are those of the file.
  const Json written = inspect_model(output);
  log_info("{}: {:.2f} bits per weight in linear layers, {:.2f} with embedding and head", output.string(),
           written["effective_bits"]["weights"].get<double>(), written["bits_per_weight"].get<double>());
}

}  // namespace quatrain
