#include <bit>
#include <cmath>
#include <cstring>

#include "text/sentencepiece_model.h"
#include "text/sentencepiece_scheme.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

// One field of a protobuf message (wire format: varints, 4 and 8 byte values, length-delimited bytes).
struct Field {
  uint32_t number = 0;
  uint64_t value = 0;      // varint and fixed widths
  std::string_view bytes;  // length-delimited
};

class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    field = {static_cast<uint32_t>(tag >> 3), 0, {}};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        fail("{}: not a SentencePiece model: protobuf wire type {}", where_, tag & 7);
    }
    return true;
  }

 private:
  std::string_view take(uint64_t size) {
    require(size <= bytes_.size(), "{}: truncated: a field of {} bytes where {} are left", where_, size,
            bytes_.size());
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = static_cast<uint8_t>(take(1)[0]);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("{}: not a SentencePiece model: a number of more than 10 bytes", where_);
  }
  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);
    return value;
  }

  std::string_view bytes_;
  const std::string& where_;
};

enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Trainer {
  uint64_t model_type = 1;
  bool byte_fallback = false, whitespace_suffix = false;
  int32_t bos = 1, eos = 2;
};

void read_piece(TokenizerDefinition& definition, std::string_view bytes) {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
  Message message(bytes, definition.where);
  for (Field field; message.next(field);) {
    if (field.number == 1) text = field.bytes;
    if (field.number == 2) score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) type = field.value;
  }
  const auto id = static_cast<int32_t>(definition.tokens.size());
  require(!text.empty() && valid_utf8_prefix(text) == text.size(), "{}: piece {} is empty or not UTF-8",
          definition.where, id);
  require(!std::isnan(score), "{}: the score of piece {} is not a number", definition.where, id);
  require(type >= kNormal && type <= kByte, "{}: piece {} has the unknown type {}", definition.where, id,
          type);
  if (type == kUnknown) definition.unknown = id;
  if (type == kUnknown || type == kControl || type == kUserDefined) {
    AddedToken token;
    token.id = id;
    // Found in the text before spaces become marks.
    if (type == kUserDefined) text = unmark_spaces(text);
    token.content = text;
    token.special = type != kUserDefined;
    definition.added.push_back(std::move(token));
  }
  definition.tokens.push_back(std::move(text));
  definition.scores.push_back(score);
  definition.plain.push_back(type == kNormal);
}

Trainer read_trainer(std::string_view bytes, const std::string& where) {
  Trainer trainer;
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    if (field.number == 3) trainer.model_type = field.value;
    if (field.number == 24) trainer.whitespace_suffix = field.value != 0;
    if (field.number == 35) trainer.byte_fallback = field.value != 0;
    if (field.number == 41) trainer.bos = static_cast<int32_t>(field.value);
    if (field.number == 42) trainer.eos = static_cast<int32_t>(field.value);
  }
  return trainer;
}

SentencePieceScheme read_normalizer(std::string_view bytes, const std::string& where) {
  SentencePieceScheme scheme;
  scheme.collapse_whitespace = true;
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    if (field.number == 2) scheme.charsmap = field.bytes;
    if (field.number == 3) scheme.dummy_prefix = field.value != 0;
    if (field.number == 4) scheme.collapse_whitespace = field.value != 0;
    if (field.number == 5)
      require(field.value != 0, "{}: a SentencePiece model without escape_whitespaces is not supported",
              where);
  }
  return scheme;
}

}  // namespace

TokenizerDefinition parse_sentencepiece_model(std::string_view bytes, bool only_first,
                                              const std::string& where) {
  TokenizerDefinition definition;
  definition.where = where;
  Trainer trainer;
  SentencePieceScheme scheme = read_normalizer({}, where);
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    if (field.number == 1) read_piece(definition, field.bytes);
    if (field.number == 2) trainer = read_trainer(field.bytes, where);
    if (field.number == 3) scheme = read_normalizer(field.bytes, where);
  }
  require(!definition.tokens.empty(), "{}: not a SentencePiece model: it has no pieces", where);
  require(trainer.model_type == 1 || trainer.model_type == 2,
          "{}: SentencePiece model type {} is not supported (1 unigram and 2 BPE are)", where,
          trainer.model_type);
  require(!trainer.whitespace_suffix,
          "{}: a SentencePiece model with treat_whitespace_as_suffix is not supported", where);
  definition.model =
      trainer.model_type == 1 ? TokenizerDefinition::Model::kUnigram : TokenizerDefinition::Model::kScores;
  definition.byte_fallback = trainer.byte_fallback;
  definition.fuse_unknown = true;
  scheme.only_first = only_first;
  apply_sentencepiece_scheme(scheme, definition);
  if (trainer.bos >= 0) {
    definition.require_id(trainer.bos, "trainer_spec.bos_id");
    definition.bos = trainer.bos;
    definition.prefix = {trainer.bos};
  }
  if (trainer.eos >= 0) {
    definition.require_id(trainer.eos, "trainer_spec.eos_id");
    definition.eos = {trainer.eos};
  }
  return definition;
}

}  // namespace quatrain
