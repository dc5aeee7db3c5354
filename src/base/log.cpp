#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>

namespace quatrain {

void init_logging() {
  auto logger =
      std::make_shared<spdlog::logger>("quatrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  logger->flush_on(spdlog::level::info);  // the last line must survive a kill
  if (const char* level = std::getenv("QUATRAIN_LOG")) logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(logger);
}

}  // namespace quatrain
