// SentencePiece's unigram model (Kudo 2018): Viterbi over all segmentations, the highest sum of log
// probabilities.
#include <algorithm>
#include <limits>

#include "text/byte_trie.h"
#include "text/token_model.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

constexpr float kUnknownPenalty = 10;  // sentencepiece: an unknown character scores the minimum less 10

class Unigram : public TokenModel {
 public:
  Unigram(const TokenizerDefinition& definition, const Vocabulary& vocabulary)
      : unknown_text_(definition, vocabulary), scores_(definition.scores) {
    float least = 0;
    for (size_t id = 0; id < definition.plain.size(); ++id) {
      if (!definition.plain[id]) continue;
      pieces_.add(vocabulary.text(static_cast<int32_t>(id)), static_cast<int32_t>(id));
      least = std::min(least, scores_[id]);
    }
    unknown_score_ = least - kUnknownPenalty;
  }

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    struct Node {
      double score = -std::numeric_limits<double>::infinity();
      size_t begin = 0;
      int32_t id = -1;
    };
    std::vector<Node> best(word.size() + 1);
    best[0].score = 0;
    for (size_t at = 0; at < word.size();) {
      const size_t character = utf8_at(word, at).size;
      bool single = false;
      pieces_.prefixes(word.substr(at), [&](size_t size, int32_t id) {
        const double score = best[at].score + scores_[static_cast<size_t>(id)];
        Node& node = best[at + size];
        if (score > node.score) node = {score, at, id};
        single |= size == character;
      });
      const double score = best[at].score + unknown_score_;
      Node& node = best[at + character];
      if (!single && score > node.score) node = {score, at, -1};
      at += character;
    }
    std::vector<std::pair<size_t, size_t>> cuts;
    for (size_t end = word.size(); end > 0; end = best[end].begin) cuts.emplace_back(best[end].begin, end);
    std::reverse(cuts.begin(), cuts.end());
    for (size_t i = 0; i < cuts.size(); ++i) {
      const auto [begin, end] = cuts[i];
      if (best[end].id >= 0) {
        out.push_back(best[end].id);
        continue;
      }
      size_t last = end;
      for (; i + 1 < cuts.size() && best[cuts[i + 1].second].id < 0; ++i) last = cuts[i + 1].second;
      unknown_text_.append(word.substr(begin, last - begin), out);
    }
  }

 private:
  UnknownText unknown_text_;
  std::vector<float> scores_;
  float unknown_score_;
  ByteTrie pieces_;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(const TokenizerDefinition& definition,
                                         const Vocabulary& vocabulary) {
  return std::make_unique<Unigram>(definition, vocabulary);
}

}  // namespace quatrain
