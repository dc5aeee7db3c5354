#include "eval/tasks/greedy_text.h"

#include <algorithm>

#include "base/error.h"
#include "eval/tasks/lanes.h"

namespace quatrain {
namespace {

/// One prompt and what follows it.
struct Reply {
  size_t prompt = 0;
  StreamDecoder decoder;
  std::string text = {};
  int64_t tokens = 0;
  int32_t next = -1;  // chosen, not yet in the lane
  bool ended = false;

  /// Takes the next token; ends at EOS and at a stop.
  void take(int32_t token, const Tokenizer& tokenizer, std::span<const std::string> stops) {
    if (std::ranges::count(tokenizer.eos(), token) > 0) {
      end(stops);
      return;
    }
    next = token;
    ++tokens;
    text += decoder.push(token);
    cut(stops);
  }
  void end(std::span<const std::string> stops) {
    text += decoder.finish();
    cut(stops);
    ended = true;
  }
  void cut(std::span<const std::string> stops) {
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      text.resize(at);
      ended = true;
    }
  }
};

}  // namespace

std::vector<std::string> continue_greedily(Engine& engine, const Tokenizer& tokenizer,
                                           std::span<const std::vector<int32_t>> prompts, int64_t max_tokens,
                                           std::span<const std::string> stops, int64_t batch,
                                           const std::function<void(int64_t done)>& on_done) {
  int64_t longest = 1;
  for (const auto& prompt : prompts) {
    require(!prompt.empty(), "a prompt without tokens cannot be continued");
    longest = std::max(longest, std::ssize(prompt) + max_tokens);
  }
  Lanes lanes(engine, longest, batch);
  std::vector<std::string> texts(prompts.size());
  std::vector<std::optional<Reply>> replies(static_cast<size_t>(lanes.count()));
  size_t started = 0;
  int64_t done = 0;
  while (done < std::ssize(prompts)) {
    std::vector<Lanes::Part> parts;
    for (size_t i = 0; i < replies.size(); ++i) {
      const auto lane = static_cast<int64_t>(i);
      if (!replies[i] && started < prompts.size()) {
        const std::span<const int32_t> prompt = prompts[started];
        replies[i].emplace(started++, StreamDecoder(tokenizer));
        const int64_t kept = lanes.keep_prefix(lane, prompt, std::ssize(prompt) - 1);
        parts.push_back({lane, prompt.subspan(static_cast<size_t>(kept)), BatchItem::Logits::Last});
      } else if (replies[i]) {
        parts.push_back({lane, std::span(&replies[i]->next, 1), BatchItem::Logits::Last});
      }
    }
    std::vector<int32_t> chosen(replies.size(), -1);
    lanes.feed(parts, [&](int64_t lane, int64_t, std::span<const float> logits) {
      chosen[static_cast<size_t>(lane)] =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    });
    for (const Lanes::Part& part : parts) {
      std::optional<Reply>& reply = replies[static_cast<size_t>(part.lane)];
      reply->take(chosen[static_cast<size_t>(part.lane)], tokenizer, stops);
      if (!reply->ended && (reply->tokens >= max_tokens || lanes.length(part.lane) >= engine.context()))
        reply->end(stops);
      if (!reply->ended) continue;
      texts[reply->prompt] = std::move(reply->text);
      reply.reset();
      ++done;
    }
    on_done(done);
  }
  return texts;
}

}  // namespace quatrain
