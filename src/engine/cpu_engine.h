// The engine on the CPU, from any source of weights.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/weight_source.h"

namespace quatrain {

std::unique_ptr<Engine> make_cpu_engine(std::unique_ptr<WeightSource> source, const EngineOptions& options);

}  // namespace quatrain
