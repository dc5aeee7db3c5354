#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/progress.h"
#include "eval/wikitext.h"

namespace quatrain {
namespace {

struct ProtocolName {
  Protocol::Kind kind;
  std::string_view name;
  int64_t window;
};

constexpr ProtocolName kProtocols[] = {
    {Protocol::Kind::TokenPpl, "token-ppl", 2048},
    {Protocol::Kind::TokenPplJoined, "token-ppl-joined", 2048},
    {Protocol::Kind::WordPpl, "word-ppl", 2048},
    {Protocol::Kind::LlamaCppPpl, "llama.cpp-ppl", 512},
};

// The rows of the data set as hubs hold them (a line with its LF; a blank line is an empty row), joined by
// blank lines.
std::string join_rows(std::string_view text) {
  std::string joined;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size() - 1);
    const std::string_view row = text.substr(start, end - start + 1);
    if (start > 0) joined += "\n\n";
    if (row != " \n" && row != "\n") joined += row;
    start = end + 1;
  }
  return joined;
}

std::vector<ScoredWindow> whole_text_windows(const Protocol& protocol, const Tokenizer& tokenizer,
                                             std::string_view text, int64_t limit, int64_t* text_tokens) {
  const bool llama_cpp = protocol.kind == Protocol::Kind::LlamaCppPpl;
  std::vector<int32_t> ids = tokenizer.encode(text, false);
  if (tokenizer.adds_bos()) ids.insert(ids.begin(), tokenizer.bos());
  *text_tokens = static_cast<int64_t>(ids.size());
  const int64_t window = protocol.window;
  int64_t count = *text_tokens / window;
  if (limit > 0) count = std::min(count, limit);
  std::vector<ScoredWindow> windows;
  for (int64_t i = 0; i < count; ++i) {
    ScoredWindow item{{ids.begin() + i * window, ids.begin() + (i + 1) * window}, llama_cpp ? window / 2 : 0};
    if (llama_cpp && tokenizer.adds_bos()) item.ids[0] = tokenizer.bos();
    windows.push_back(std::move(item));
  }
  return windows;
}

// lm-eval's rolling windows: every token is scored once, the first one after BOS (or EOS) alone; a last
// window that would be short is filled with context from the left.
void add_rolling_windows(const std::vector<int32_t>& ids, int32_t prefix, int64_t window,
                         std::vector<ScoredWindow>& windows) {
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t head = std::min(count, window);
  ScoredWindow first{{prefix}, 0};
  first.ids.insert(first.ids.end(), ids.begin(), ids.begin() + head);
  windows.push_back(std::move(first));
  for (int64_t done = head; done < count;) {
    const int64_t scored = std::min(count - done, window);
    const int64_t end = done + scored;
    const int64_t begin = std::max<int64_t>(end - window - 1, 0);
    windows.push_back({{ids.begin() + begin, ids.begin() + end}, end - scored - 1 - begin});
    done = end;
  }
}

std::vector<ScoredWindow> page_windows(const Protocol& protocol, const Tokenizer& tokenizer,
                                       std::string_view text, int64_t limit, int64_t* text_tokens,
                                       int64_t* words) {
  const int32_t prefix =
      tokenizer.bos() >= 0 ? tokenizer.bos() : (tokenizer.eos().empty() ? -1 : tokenizer.eos().front());
  require(prefix >= 0, "word-ppl: the tokenizer has neither a BOS nor an EOS token to begin a page with");
  std::vector<ScoredWindow> windows;
  for (const std::string& page : wikitext_pages(text)) {
    const std::vector<int32_t> ids = tokenizer.encode(wikitext_detokenize(page), false);
    *text_tokens += static_cast<int64_t>(ids.size());
    // whole pages only: the loss of a page is divided by its words
    if (ids.empty() || (limit > 0 && static_cast<int64_t>(windows.size()) >= limit)) continue;
    add_rolling_windows(ids, prefix, protocol.window, windows);
    *words += count_words(page);
  }
  return windows;
}

struct Mean {
  double value, error;  // and its standard error
};

Mean mean_of(double sum, double sum_squares, double count) {
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, sum_squares / count - mean * mean) / std::max(1.0, count - 1))};
}

// Tokens a word, where the protocol counts words.
double tokens_per_unit(const PerplexityResult& result) {
  return result.words > 0 ? static_cast<double>(result.tokens) / static_cast<double>(result.words) : 1;
}

}  // namespace

Protocol Protocol::parse(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view name = text.substr(0, at);
  for (const ProtocolName& known : kProtocols) {
    if (known.name != name) continue;
    Protocol protocol{known.kind, known.window};
    if (at != std::string_view::npos) {
      const std::string_view digits = text.substr(at + 1);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), protocol.window);
      if (error != std::errc() || end != digits.data() + digits.size() || protocol.window < 4)
        fail_usage("protocol: \"{}\": the window after @ must be a number of tokens, 4 or more", text);
    }
    return protocol;
  }
  fail_usage("protocol: \"{}\" is none of token-ppl@2048, token-ppl-joined@2048, word-ppl, llama.cpp-ppl@512",
             text);
}

std::string Protocol::name() const {
  for (const ProtocolName& known : kProtocols)
    if (known.kind == kind) return fmt::format("{}@{}", known.name, window);
  return "";
}

std::vector<ScoredWindow> make_windows(const Protocol& protocol, const Tokenizer& tokenizer,
                                       const Corpus& corpus, int64_t limit, int64_t* text_tokens,
                                       int64_t* words) {
  *text_tokens = 0;
  *words = 0;
  switch (protocol.kind) {
    case Protocol::Kind::WordPpl:
      return page_windows(protocol, tokenizer, corpus.text, limit, text_tokens, words);
    case Protocol::Kind::TokenPplJoined:
      return whole_text_windows(protocol, tokenizer, join_rows(corpus.text), limit, text_tokens);
    case Protocol::Kind::TokenPpl:
    case Protocol::Kind::LlamaCppPpl:
      return whole_text_windows(protocol, tokenizer, corpus.text, limit, text_tokens);
  }
  return {};
}

PerplexityResult perplexity(Scorer& scorer, const Tokenizer& tokenizer, const Corpus& corpus,
                            const Protocol& protocol, int64_t limit) {
  const auto start = std::chrono::steady_clock::now();
  PerplexityResult result;
  result.protocol = protocol.name();
  result.window = protocol.window;
  result.text = corpus.name;
  result.text_sha256 = corpus.sha256;
  result.engine = scorer.engine();
  const int64_t context = scorer.config().max_positions;
  require(context <= 0 || protocol.window <= context,
          "{}: the window is longer than the model's context of {} tokens; use {}", result.protocol, context,
          Protocol{protocol.kind, context}.name());
  const auto windows = make_windows(protocol, tokenizer, corpus, limit, &result.text_tokens, &result.words);
  require(!windows.empty(), "{}: the text has {} tokens, {} needs at least {}", corpus.name,
          result.text_tokens, result.protocol, protocol.window);

  double sum = 0, sum_squares = 0;
  Progress progress(result.protocol, static_cast<int64_t>(windows.size()));
  for (const ScoredWindow& window : windows) {
    for (const int32_t id : window.ids)
      require(id >= 0 && id < scorer.config().vocabulary,
              "token {} of the text is outside the model's vocabulary of {}", id, scorer.config().vocabulary);
    const std::vector<float> scored = scorer.log_probabilities(window.ids, window.first);
    for (size_t i = 0; i < scored.size(); ++i) {
      const double loss = -double{scored[i]};
      require(std::isfinite(loss), "window {}, position {}: the loss is not finite", result.windows,
              window.first + static_cast<int64_t>(i));
      sum += loss;
      sum_squares += loss * loss;
      ++result.tokens;
      result.targets.push_back(window.ids[static_cast<size_t>(window.first) + i + 1]);
      result.losses.push_back(static_cast<float>(loss));
    }
    result.tokens_run += std::ssize(window.ids) - 1;
    ++result.windows;
    progress.update(result.windows,
                    fmt::format("{:.4f} so far", std::exp(sum / static_cast<double>(result.tokens))));
  }
  const Mean mean = mean_of(sum, sum_squares, static_cast<double>(result.tokens));
  const double per_unit = tokens_per_unit(result);
  result.value = std::exp(mean.value * per_unit);
  result.error = result.value * mean.error * per_unit;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::optional<PerplexityRatio> perplexity_ratio(const PerplexityResult& result,
                                                const PerplexityResult& base) {
  if (result.protocol != base.protocol || result.targets != base.targets || result.targets.empty()) return {};
  double sum = 0, sum_squares = 0;
  for (size_t i = 0; i < result.losses.size(); ++i) {
    const double difference = double{result.losses[i]} - double{base.losses[i]};
    sum += difference;
    sum_squares += difference * difference;
  }
  const Mean mean = mean_of(sum, sum_squares, static_cast<double>(result.tokens));
  const double per_unit = tokens_per_unit(result);
  const double value = std::exp(mean.value * per_unit);
  return PerplexityRatio{value, value * mean.error * per_unit};
}

Json PerplexityResult::to_json() const {
  Json json = {{"model", model},   {"protocol", protocol},       {"value", value},     {"stderr", error},
               {"tokens", tokens}, {"text_tokens", text_tokens}, {"windows", windows}, {"window", window},
               {"text", text},     {"text_sha256", text_sha256}, {"engine", engine},   {"seconds", seconds}};
  if (words > 0) json["words"] = words;
  return json;
}

}  // namespace quatrain
