// Tokenizer files: an input that begins with a brace is a tokenizer.json, otherwise its first byte chooses a
// SentencePiece model or a llama2.c vocabulary. What loads must encode, decode, and survive being written.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/pipeline_tokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_json.h"
#include "text/vocabulary_files.h"

using namespace quatrain;

namespace {

TokenizerDefinition parse(std::string_view input) {
  if (input.starts_with('{')) return parse_tokenizer_json(input, "fuzz");
  const bool model = (input.front() & 1) != 0;
  input.remove_prefix(1);
  return model ? parse_sentencepiece_model(input, false, "fuzz") : parse_llama2c_vocabulary(input, "fuzz");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const PipelineTokenizer tokenizer(parse(input));
    // The end of the input is a text that resembles the vocabulary; it is seldom valid UTF-8.
    const std::string text =
        "Hello, world!  It's 12 \u00e9\u65e5\n" + std::string(input.substr(size - size / 4));
    const auto ids = tokenizer.encode_sequence(text);
    tokenizer.decode(ids, true);
    const PipelineTokenizer again(parse_tokenizer_json(write_tokenizer_json(tokenizer), "fuzz, written"));
    again.encode(text, false);
  } catch (const Error&) {
    // The promised way to refuse.
  }
  return 0;
}
