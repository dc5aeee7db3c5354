#include "text/tokenizer.h"

#include "text/utf8.h"

namespace quatrain {

std::vector<int32_t> Tokenizer::encode_sequence(std::string_view text, bool special) const {
  std::vector<int32_t> ids = prefix_;
  const std::vector<int32_t> inner = encode(text, special);
  ids.insert(ids.end(), inner.begin(), inner.end());
  ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool special) const {
  StreamDecoder decoder(*this, special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool special)
    : tokenizer_(tokenizer), special_(special) {}

std::string StreamDecoder::push(int32_t id) {
  if (!special_ && tokenizer_.is_special(id)) return {};
  pending_ += tokenizer_.token_bytes(id);
  if (first_ && !pending_.empty()) {
    first_ = false;
    if (tokenizer_.strips_leading_space() && pending_.front() == ' ') pending_.erase(0, 1);
  }
  const size_t whole = pending_.size() - incomplete_utf8_suffix(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace quatrain
