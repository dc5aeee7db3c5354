#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/stop_matcher.h"

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Generation generate(Engine& engine, const Tokenizer& tokenizer, int64_t sequence,
                    std::span<const int32_t> prompt, const GenerateOptions& options,
                    const std::function<bool(std::string_view)>& on_text) {
  require(!prompt.empty(), "the prompt has no tokens");
  require(options.max_tokens >= 0, "max_tokens: {} is negative", options.max_tokens);
  Sampler sampler(options.sampling);
  StopMatcher stop(options.stop);
  StreamDecoder decoder(tokenizer);
  Generation result;
  result.prompt_tokens = std::ssize(prompt);

  // False when the receiver wants no more.
  const auto emit = [&](std::string_view text) {
    result.text += text;
    return text.empty() || !on_text || on_text(text);
  };

  const auto start = Clock::now();
  for (const int32_t token : prompt) sampler.accept(token);
  std::vector<float> logits;
  const auto keep = [&](int64_t, int64_t, std::span<const float> row) {
    logits.assign(row.begin(), row.end());
  };
  const BatchItem prefill{sequence, prompt, BatchItem::Logits::Last};
  engine.forward({&prefill, 1}, keep);
  result.prefill_seconds = seconds_since(start);

  const auto decode_start = Clock::now();
  while (std::ssize(result.tokens) < options.max_tokens) {
    const int32_t token = sampler.sample(logits);
    if (std::ranges::find(options.stop_ids, token) != options.stop_ids.end()) {
      result.finish = Generation::Finish::Stop;
      break;
    }
    sampler.accept(token);
    result.tokens.push_back(token);
    if (!emit(stop.push(decoder.push(token)))) {
      result.finish = Generation::Finish::Cancelled;
      break;
    }
    if (stop.matched()) {
      result.finish = Generation::Finish::Stop;
      break;
    }
    if (std::ssize(result.tokens) == options.max_tokens) break;
    if (engine.length(sequence) >= engine.context()) {
      result.finish = Generation::Finish::Context;
      break;
    }
    const BatchItem step{sequence, {&token, 1}, BatchItem::Logits::Last};
    engine.forward({&step, 1}, keep);
  }
  if (result.finish != Generation::Finish::Cancelled) emit(stop.push(decoder.finish()) + stop.finish());
  if (stop.matched()) result.finish = Generation::Finish::Stop;
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace quatrain
