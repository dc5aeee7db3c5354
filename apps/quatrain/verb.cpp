#include "verb.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>

#include "base/affinity.h"

namespace quatrain {

namespace {

void add_threads_and_json(CLI::App& verb, CommonOptions& options) {
  verb.add_option("--threads", options.threads, "threads (default: the physical cores this process may use)")
      ->check(CLI::Range(1, 1024));
  verb.add_flag("--json", options.json, "one JSON document on stdout, logs on stderr");
}

// Empty, or what is wrong with the name of a device.
std::string check_device(const std::string& device) {
  if (device == "cpu") return {};
  const bool numbered = device.starts_with("cuda:") && device.size() > 5 &&
                        device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "cuda" && !numbered) return "\"" + device + "\" is neither cpu nor cuda nor cuda:N";
  return {};
}

// The same for verbs that run a model.
std::string check_engine_device(const std::string& device) {
  const std::string wrong = check_device(device);
  if (device == "cpu" || !wrong.empty()) return wrong;
#ifdef QUATRAIN_HAVE_CUDA
  return {};
#else
  return "this program was built without CUDA (-DQUATRAIN_CUDA=ON) and computes on cpu only, not on \"" +
         device + "\"";
#endif
}

}  // namespace

void CommonOptions::apply_to(EngineOptions& engine) const {
  if (pin) pin_workers();
  engine.threads = threads;
  engine.device = device;
  engine.kv_sink = kv_sink;
  engine.kv_recent = kv_recent;
  engine.batch_invariant = batch_invariant;
  if (!gpu_memory.empty()) engine.gpu_memory = parse_bytes(gpu_memory, "--gpu-memory");
}

void add_common(CLI::App& verb, CommonOptions& options) {
  add_threads_and_json(verb, options);
  verb.add_option("--device", options.device, "where to compute: cpu")->check([](const std::string& device) {
    return device == "cpu" ? std::string() : "this verb computes on cpu only, not on \"" + device + "\"";
  });
}

void add_quantizer_common(CLI::App& verb, CommonOptions& options) {
  add_threads_and_json(verb, options);
  verb.add_option("--device", options.device,
                  "where to compute: cpu, or cuda or cuda:N where libtorch has a GPU")
      ->check(check_device);
}

void add_engine_common(CLI::App& verb, CommonOptions& options) {
  add_threads_and_json(verb, options);
  verb.add_option("--device", options.device, "where to compute: cpu, cuda or cuda:N")
      ->check(check_engine_device);
  verb.add_flag("--pin", options.pin, "every thread but the first stays on a core of its own");
  verb.add_option("--gpu-memory", options.gpu_memory,
                  "GPU memory for weights, buffers and KV cache, as 40G (default: what is free)");
  verb.add_flag(
      "--batch-invariant", options.batch_invariant,
      "on a GPU, a sequence's tokens do not depend on what runs beside it; slower (the CPU's never do)");
  verb.add_option("--kv-sink", options.kv_sink,
                  "first tokens whose keys and values stay unquantised (default 0)")
      ->check(whole_number<int64_t>(0));
  verb.add_option("--kv-recent", options.kv_recent,
                  "last tokens that attention reads unquantised (default 0)")
      ->check(whole_number<int64_t>(0));
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
  for (bool more = true; more;) {
    int32_t id = 0;
    const auto [after, error] = std::from_chars(next, end, id);
    more = after < end && *after == ',';
    if (error != std::errc() || id < 0 || (after < end && !more))
      fail_usage("{}: \"{}\" is no list of token ids; write 1,2,3", flag, text);
    ids.push_back(id);
    next = after + 1;
  }
  return ids;
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace quatrain
