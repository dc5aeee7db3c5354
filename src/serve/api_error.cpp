#include "serve/api_error.h"

#include <new>

#include "base/log.h"
#include "engine/scheduler.h"

namespace quatrain {

Json ApiError::to_json() const {
  return {{"error",
           {{"message", what()},
            {"type", type},
            {"param", param.empty() ? Json() : Json(param)},
            {"code", code.empty() ? Json() : Json(code)}}}};
}

ApiError describe_current_exception() {
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (const QueueFull& error) {
    ApiError busy(429, "rate_limit_error", "queue_full", error.what());
    busy.retry_after = 1;
    return busy;
  } catch (const Draining& error) {
    ApiError closing(503, "server_error", "shutting_down", error.what());
    closing.retry_after = 10;
    return closing;
  } catch (const Error& error) {
    return {400, "invalid_request_error", "invalid_value", error.what()};
  } catch (const std::bad_alloc&) {
    return {503, "server_error", "out_of_memory", "the server is out of memory"};
  } catch (const std::exception& error) {
    log_warn("internal error: {}", error.what());
    return {500, "server_error", "internal_error", "internal error"};
  }
}

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace quatrain
