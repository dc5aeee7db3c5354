#include "engine/engine.h"

#include "checkpoint/artifact.h"
#include "engine/cpu_engine.h"
#include "model/checkpoint.h"

namespace quatrain {

std::unique_ptr<Engine> Engine::load(const fs::path& model, const EngineOptions& options) {
  return make_cpu_engine(
      is_artifact(model) ? artifact_source(model) : checkpoint_source(open_checkpoint(model)), options);
}

}  // namespace quatrain
