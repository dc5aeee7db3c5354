// Tokenizers: text to ids and back, for every file format a model may bring.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace quatrain {

/// Raw vocabulary handed over by a GGUF file (text/ does not know checkpoint formats; model/ or the caller
/// fills it).
struct GgufVocabulary {
  std::string model;          // tokenizer.ggml.model: "gpt2", "llama", "gemma4", ...
  std::string pre_tokenizer;  // tokenizer.ggml.pre: "smollm", "qwen2", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;
  int64_t bos = -1, eos = -1, unknown = -1, pad = -1;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::string chat_template;
  std::string where;  // file name for messages
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of `text`. With `special`, the text of special tokens inside becomes their ids; otherwise such text
  /// is ordinary text. Added tokens that are not special (runs of spaces, SentencePiece's user-defined
  /// pieces) always match. No BOS or EOS is added. Invalid UTF-8 is encoded byte by byte where the vocabulary
  /// can.
  virtual std::vector<int32_t> encode(std::string_view text, bool special = true) const = 0;
  /// encode() with the BOS and EOS that the tokenizer's own rules add (post-processor, add_bos_token, GGUF
  /// keys).
  std::vector<int32_t> encode_sequence(std::string_view text, bool special = true) const;

  /// Text of ids. Special tokens are left out unless `special`.
  std::string decode(const std::vector<int32_t>& ids, bool special = false) const;
  /// The bytes of one token as they appear inside a text, whether or not they are whole UTF-8 characters.
  virtual std::string token_bytes(int32_t id) const = 0;
  /// The token as the vocabulary spells it.
  virtual std::string token_text(int32_t id) const = 0;
  virtual std::optional<int32_t> token_id(std::string_view token_text) const = 0;

  virtual int64_t size() const = 0;  // highest id + 1
  virtual bool is_special(int32_t id) const = 0;
  /// True where decoding drops the one leading space that encoding put before the text (SentencePiece).
  virtual bool strips_leading_space() const { return false; }

  int32_t bos() const { return bos_; }
  /// Ids that end a reply: eos, and eot where the vocabulary has one.
  const std::vector<int32_t>& eos() const { return eos_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  /// The model's chat template, from chat_template.jinja, tokenizer_config.json (string or list) or the GGUF
  /// key; empty when there is none.
  const std::string& chat_template() const { return chat_template_; }

 protected:
  int32_t bos_ = -1;
  std::vector<int32_t> eos_;
  bool add_bos_ = false, add_eos_ = false;
  std::vector<int32_t> prefix_,
      suffix_;  // what encode_sequence() puts around the ids: mostly BOS, EOS or nothing
  std::string chat_template_;
};

/// From a directory (tokenizer.json, tokenizer.model, or vocab.json + merges.txt; tokenizer_config.json,
/// special_tokens_map.json, added_tokens.json, generation_config.json and chat_template.jinja beside them),
/// from one of those files, or from a llama2.c tokenizer .bin. GGUF files go through
/// load_tokenizer(GgufVocabulary).
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path);
std::unique_ptr<Tokenizer> load_tokenizer(GgufVocabulary vocabulary);

/// Turns a stream of ids into text without ever emitting part of a UTF-8 character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool special = false);
  /// The text that became complete with this token; often empty inside a multi-token character.
  std::string push(int32_t id);
  /// What is left at the end; an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool special_;
  bool first_ = true;
  std::string pending_;
};

}  // namespace quatrain
