#include "engine/engine.h"

#include "base/error.h"
#include "base/error_context.h"
#include "checkpoint/artifact.h"
#include "engine/cpu_engine.h"
#ifdef QUATRAIN_HAVE_CUDA
#include "engine/cuda/cuda_engine.h"
#endif
#include "model/checkpoint.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace quatrain {
namespace {

// Back to the system goes what earlier parsing has freed: the tree of a tokenizer's JSON is a tenth of a
// small model.
void return_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace

std::unique_ptr<Engine> Engine::load(const fs::path& model, const EngineOptions& options) {
  return_free_memory();
  std::unique_ptr<WeightSource> source =
      is_artifact(model) ? artifact_source(model) : checkpoint_source(open_checkpoint(model));
  const std::string where = model.string();
  if (options.device == "cpu")
    return in_context(where, [&] { return make_cpu_engine(std::move(source), options); });
  require(options.kv_sink == 0 && options.kv_recent == 0,
          "--kv-sink, --kv-recent: only the CPU keeps unquantised tokens; use --device cpu");
  require(options.device == "cuda" || options.device.starts_with("cuda:"),
          "device: \"{}\" is neither cpu nor cuda nor cuda:N", options.device);
#ifdef QUATRAIN_HAVE_CUDA
  return in_context(where, [&] { return make_cuda_engine(std::move(source), options); });
#else
  fail("--device {}: this program was built without CUDA; build with -DQUATRAIN_CUDA=ON, or use --device cpu",
       options.device);
#endif
}

}  // namespace quatrain
