// Byte-pair encoding (Sennrich et al. 2016): the best merge first, until none is left. A heap of candidate
// merges makes a word of n characters O(n log n), so that whole texts without word splits (SentencePiece) are
// words too.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include "text/score_merges.h"
#include "text/token_model.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

struct Merge {
  int32_t rank;  // lower first
  int32_t result;
};

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

struct PairHash {
  // splitmix64's finaliser: ids are small and dense, so their bits need mixing.
  size_t operator()(uint64_t key) const {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    return key ^ (key >> 31);
  }
};

class Bpe : public TokenModel {
 public:
  Bpe(const TokenizerDefinition& definition, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary),
        unknown_text_(definition, vocabulary),
        plain_(definition.plain),
        ignore_merges_(definition.ignore_merges) {
    for (size_t id = 0; id < plain_.size(); ++id) {
      const std::string& text = vocabulary.text(static_cast<int32_t>(id));
      if (plain_[id] && !text.empty() && utf8_at(text, 0).size == text.size())
        characters_.emplace(text, static_cast<int32_t>(id));
    }
    if (definition.model == TokenizerDefinition::Model::kMerges) {
      merges_.reserve(definition.merges.size());
      int32_t rank = 0;
      for (const auto& [left, right] : definition.merges) {
        const auto result = vocabulary.find(vocabulary.text(left) + vocabulary.text(right));
        require(result.has_value(), "{}: merge \"{} {}\" makes a token that the vocabulary does not have",
                definition.where, vocabulary.text(left), vocabulary.text(right));
        // Of two equal merges the later one counts, as in Hugging Face's tokenizers.
        merges_.insert_or_assign(pair_key(left, right), Merge{rank++, *result});
      }
    } else {
      for (const ScoreMerge& merge : score_merges(definition.scores, plain_, vocabulary))
        merges_.insert_or_assign(pair_key(merge.left, merge.right), Merge{merge.rank, merge.result});
    }
  }

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    if (ignore_merges_) {
      const auto whole = vocabulary_.find(word);
      if (whole && plain_[static_cast<size_t>(*whole)]) return out.push_back(*whole);
    }
    std::vector<Symbol> symbols = characters_of(word);
    merge(symbols);
    emit(word, symbols, out);
  }

 private:
  struct Symbol {
    size_t begin, end;       // bytes of the word; empty once merged into the symbol before
    int32_t id;              // -1: no token of the vocabulary
    int32_t previous, next;  // -1: none
  };

  struct Candidate {
    int32_t rank;
    int32_t left, right;  // symbols
    size_t end;           // of the merged symbol; tells a candidate that is out of date
    bool operator<(const Candidate& other) const {  // the top of the heap is the best
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  std::vector<Symbol> characters_of(std::string_view word) const {
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    for (size_t at = 0; at < word.size();) {
      const size_t size = utf8_at(word, at).size;
      const auto found = characters_.find(word.substr(at, size));
      const int32_t index = static_cast<int32_t>(symbols.size());
      symbols.push_back(
          {at, at + size, found == characters_.end() ? -1 : found->second, index - 1, index + 1});
      at += size;
    }
    if (!symbols.empty()) symbols.back().next = -1;
    return symbols;
  }

  void merge(std::vector<Symbol>& symbols) const {
    std::vector<Candidate> storage;
    storage.reserve(symbols.size());
    std::priority_queue<Candidate> candidates(std::less<Candidate>(), std::move(storage));
    const auto consider = [&](int32_t left, int32_t right) {
      if (left < 0 || right < 0) return;
      const Symbol &a = symbols[static_cast<size_t>(left)], &b = symbols[static_cast<size_t>(right)];
      if (a.id < 0 || b.id < 0) return;
      const auto found = merges_.find(pair_key(a.id, b.id));
      if (found != merges_.end()) candidates.push({found->second.rank, left, right, b.end});
    };
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      consider(static_cast<int32_t>(i), static_cast<int32_t>(i + 1));
    while (!candidates.empty()) {
      const Candidate best = candidates.top();
      candidates.pop();
      Symbol& left = symbols[static_cast<size_t>(best.left)];
      Symbol& right = symbols[static_cast<size_t>(best.right)];
      if (left.begin == left.end || left.next != best.right || right.end != best.end) continue;
      const auto found = merges_.find(pair_key(left.id, right.id));
      if (found == merges_.end() || found->second.rank != best.rank) continue;  // left has grown since
      left.id = found->second.result;
      left.end = right.end;
      left.next = right.next;
      right.begin = right.end;
      if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.left;
      consider(left.previous, best.left);
      consider(best.left, left.next);
    }
  }

  void emit(std::string_view word, const std::vector<Symbol>& symbols, std::vector<int32_t>& out) const {
    if (symbols.empty()) return;
    for (int32_t i = 0; i >= 0;) {
      const Symbol& symbol = symbols[static_cast<size_t>(i)];
      if (symbol.id >= 0) {
        out.push_back(symbol.id);
        i = symbol.next;
        continue;
      }
      size_t end = symbol.end;
      for (i = symbol.next; i >= 0 && symbols[static_cast<size_t>(i)].id < 0;
           i = symbols[static_cast<size_t>(i)].next)
        end = symbols[static_cast<size_t>(i)].end;
      unknown_text_.append(word.substr(symbol.begin, end - symbol.begin), out);
    }
  }

  const Vocabulary& vocabulary_;
  UnknownText unknown_text_;
  std::vector<bool> plain_;
  bool ignore_merges_;
  std::unordered_map<std::string_view, int32_t> characters_;
  std::unordered_map<uint64_t, Merge, PairHash> merges_;
};

}  // namespace

UnknownText::UnknownText(const TokenizerDefinition& definition, const Vocabulary& vocabulary)
    : fuse_(definition.fuse_unknown), unknown_(definition.unknown) {
  fallback_ = definition.byte_fallback;
  for (int byte = 0; byte < 256; ++byte)
    bytes_[static_cast<size_t>(byte)] =
        fallback_ ? vocabulary.find(byte_token_text(static_cast<uint8_t>(byte))).value_or(-1) : -1;
}

void UnknownText::append(std::string_view text, std::vector<int32_t>& out) const {
  bool fused = false;
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_at(text, at).size;
    const std::string_view character = text.substr(at, size);
    at += size;
    const bool has_bytes = fallback_ && std::all_of(character.begin(), character.end(), [&](char c) {
                             return bytes_[static_cast<uint8_t>(c)] >= 0;
                           });
    if (has_bytes) {
      for (const char c : character) out.push_back(bytes_[static_cast<uint8_t>(c)]);
      fused = false;
    } else if (unknown_ >= 0 && !(fuse_ && fused)) {
      out.push_back(unknown_);
      fused = true;
    }
  }
}

std::unique_ptr<TokenModel> make_bpe(const TokenizerDefinition& definition, const Vocabulary& vocabulary) {
  return std::make_unique<Bpe>(definition, vocabulary);
}

}  // namespace quatrain
