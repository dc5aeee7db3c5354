// Perplexity under named protocols; a bare "PPL" is never printed (docs/evaluation.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "eval/scorer.h"
#include "text/corpus.h"
#include "text/tokenizer.h"

namespace quatrain {

struct Protocol {
  enum class Kind {
    TokenPpl,  // token-ppl@N: one tokenisation, windows of N that do not overlap, the first token not scored
    TokenPplJoined,  // token-ppl-joined@N: the same over the data set's rows joined by blank lines
    WordPpl,      // word-ppl@N: lm-eval's wikitext: rolling windows a page, loss a word of the original text
    LlamaCppPpl,  // llama.cpp-ppl@N: the second half of each window of N, BOS at each window's start
  };
  Kind kind = Kind::TokenPpl;
  int64_t window = 2048;

  /// "token-ppl@2048"; the window may be left out (2048; 512 for llama.cpp-ppl). An unknown name is a
  /// UsageError.
  static Protocol parse(std::string_view text);
  std::string name() const;
};

struct PerplexityResult {
  std::string model;
  std::string protocol;
  double value = 0;         // exp(mean negative log-likelihood)
  double error = 0;         // standard error of `value`, from the spread of the scored tokens
  int64_t tokens = 0;       // scored
  int64_t tokens_run = 0;   // that went through the model, scored or not
  int64_t text_tokens = 0;  // of the whole text
  int64_t windows = 0;
  int64_t window = 0;
  int64_t words = 0;  // word-ppl only
  std::string text, text_sha256, engine;
  double seconds = 0;
  std::vector<int32_t> targets;  // of every scored token
  std::vector<float> losses;     // its negative log-likelihood

  Json to_json() const;
};

/// How two models, or two engines, differ on the same tokens. What makes a text hard or easy is common to
/// both and cancels, so that the error is far below that of either perplexity.
struct PerplexityRatio {
  double value = 1;  // exp(mean difference of the losses)
  double error = 0;  // standard error of `value`, from the spread of the tokens' differences
};

/// `result` over `base`; nothing where protocol or scored tokens differ.
std::optional<PerplexityRatio> perplexity_ratio(const PerplexityResult& result, const PerplexityResult& base);

/// One stretch of ids that is run from an empty context; logits at [first, ids.size() - 1) are scored against
/// the ids that follow them.
struct ScoredWindow {
  std::vector<int32_t> ids;
  int64_t first = 0;
};

/// The windows of a protocol over a text, at most `limit` of them (0: all). `text_tokens` receives the length
/// of the whole text in tokens; `words` the words behind the windows (word-ppl).
std::vector<ScoredWindow> make_windows(const Protocol& protocol, const Tokenizer& tokenizer,
                                       const Corpus& corpus, int64_t limit, int64_t* text_tokens,
                                       int64_t* words);

/// Runs a protocol. Throws when the text is shorter than one window or the model's context shorter than a
/// window.
PerplexityResult perplexity(Scorer& scorer, const Tokenizer& tokenizer, const Corpus& corpus,
                            const Protocol& protocol, int64_t limit);

}  // namespace quatrain
