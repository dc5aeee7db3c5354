#include "verb.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>

namespace quatrain {

void add_common(CLI::App& verb, CommonOptions& options) {
  verb.add_option("--threads", options.threads, "threads (default: the cores this process may use)")
      ->check(CLI::Range(1, 1024));
  verb.add_flag("--json", options.json, "one JSON document on stdout, logs on stderr");
  verb.add_option("--device", options.device, "where to compute: cpu")->check([](const std::string& device) {
    return device == "cpu" ? std::string() : "this build computes on cpu only, not on \"" + device + "\"";
  });
}

uint64_t parse_bytes(const std::string& text, const std::string& flag) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(next, static_cast<size_t>(end - next));
  int shift = -1;
  if (unit.empty()) shift = 0;
  if (unit == "K" || unit == "k") shift = 10;
  if (unit == "M" || unit == "m") shift = 20;
  if (unit == "G" || unit == "g") shift = 30;
  if (unit == "T" || unit == "t") shift = 40;
  if (error != std::errc() || shift < 0 || value > (std::numeric_limits<uint64_t>::max() >> shift))
    fail_usage("{}: \"{}\" is no size; write 8G, 512M or a number of bytes", flag, text);
  return value << shift;
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& flag) {
  std::vector<int32_t> ids;
  const char* next = text.data();
  const char* end = text.data() + text.size();
  while (next < end) {
    int32_t id = 0;
    const auto [after, error] = std::from_chars(next, end, id);
    if (error != std::errc() || (after < end && *after != ',') || id < 0)
      fail_usage("{}: \"{}\" is no list of token ids; write 1,2,3", flag, text);
    ids.push_back(id);
    next = after < end ? after + 1 : after;
  }
  if (ids.empty()) fail_usage("{}: no token ids given", flag);
  return ids;
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace quatrain
