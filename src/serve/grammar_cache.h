// Grammars of recent requests, with the masks that were found so far.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "serve/grammar/token_masks.h"

namespace quatrain {

class GrammarCache {
 public:
  GrammarCache(const Tokenizer& tokenizer, int64_t vocabulary)
      : tokenizer_(tokenizer), vocabulary_(vocabulary) {}

  /// The grammar of `key`; made by `build` unless it is here. Thread-safe.
  std::shared_ptr<MaskedGrammar> get(const std::string& key, const std::function<Grammar()>& build);

 private:
  const Tokenizer& tokenizer_;
  int64_t vocabulary_;
  std::mutex mutex_;
  std::shared_ptr<const TokenTable> table_;
  std::list<std::pair<std::string, std::shared_ptr<MaskedGrammar>>> entries_;  // used last first
};

}  // namespace quatrain
