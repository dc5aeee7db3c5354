// A tokenizer as data: what every file format is read into, and what a tokenizer.json is written from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace quatrain {

/// A token that is found in the text before the model sees it (fields of a tokenizer.json's "added_tokens").
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;  // not inside a longer word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in the normalized text
};

struct TokenizerDefinition {
  enum class Model {
    kMerges,   // BPE: the merge that comes first in the list is done first
    kScores,   // SentencePiece BPE: the merge whose result scores highest is done first, the leftmost of
               // equals
    kUnigram,  // SentencePiece unigram: the segmentation with the highest sum of scores
  };

  std::string where;  // file name for messages
  Model model = Model::kMerges;
  std::vector<std::string> tokens;  // by id; an empty string is a hole
  std::vector<bool> plain;          // by id: the model may choose it (not a control, byte or unused token)
  std::vector<float> scores;        // kScores, kUnigram
  std::vector<std::pair<int32_t, int32_t>> merges;  // kMerges: ids of left and right
  bool byte_fallback = false;                       // characters outside the vocabulary become <0xNN> tokens
  bool fuse_unknown = false;   // unknown characters that follow one another become one token
  bool ignore_merges = false;  // a word that is a token needs no merges
  int32_t unknown = -1;

  std::vector<AddedToken> added;
  Json normalizer, pre_tokenizer, decoder;  // as in tokenizer.json
  std::vector<int32_t> prefix, suffix;      // what encode_sequence() puts around a text

  int32_t bos = -1;
  std::vector<int32_t> eos;  // the first is the one that encode_sequence() may add
  std::string chat_template;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  /// Throws when `id` is none of this vocabulary; `what` names the field.
  void require_id(int64_t id, std::string_view what) const {
    require(id >= 0 && id < size(), "{}: {} is id {}, but the vocabulary has {} tokens", where, what, id,
            size());
  }
};

}  // namespace quatrain
