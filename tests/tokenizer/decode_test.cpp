// Ids back to text, streams, and texts that are no valid UTF-8.
#include <gtest/gtest.h>

#include "support/shared.h"
#include "text/utf8.h"
#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

using Ids = std::vector<int32_t>;

// Byte-level with single bytes only: id = byte.
std::unique_ptr<Tokenizer> bytes_only() {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  vocabulary.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    vocabulary.types.push_back(6);
  }
  vocabulary.tokens.push_back("\u2581");
  vocabulary.types.push_back(1);
  vocabulary.scores.assign(vocabulary.tokens.size(), 0);
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  return load_tokenizer(std::move(vocabulary));
}

TEST(StreamDecoder, NeverEmitsPartOfACharacter) {
  const auto tokenizer = bytes_only();
  const std::string text = "aé日🦙\n👩‍👩‍👧‍👦";
  StreamDecoder decoder(*tokenizer);
  std::string joined;
  for (const int32_t id : tokenizer->encode(text)) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(valid_utf8_prefix(part), part.size());
    joined += part;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, ReplacesWhatIsNoCharacter) {
  const auto tokenizer = bytes_only();
  const auto byte = [](int value) { return value + 3; };
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(byte(0xF0)), "");
  EXPECT_EQ(decoder.push(byte(0x9F)), "");
  EXPECT_EQ(decoder.push(byte('a')), "\uFFFDa");  // the two bytes are one maximal subpart
  EXPECT_EQ(decoder.push(byte(0xFF)), "\uFFFD");
  EXPECT_EQ(decoder.push(byte(0xE6)), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(tokenizer->decode({byte(0xE6), byte(0x97), byte('!')}), "\uFFFD!");
}

TEST(StreamDecoder, DropsOneLeadingSpaceOfSentencePiece) {
  const auto tokenizer = bytes_only();
  EXPECT_TRUE(tokenizer->strips_leading_space());
  EXPECT_EQ(tokenizer->encode("a"), (Ids{259, 'a' + 3}));
  EXPECT_EQ(tokenizer->decode({1, 259, 259, 'a' + 3}), " a");
  EXPECT_EQ(tokenizer->decode({1, 259, 'a' + 3}, true), "<s> a");
  EXPECT_EQ(tokenizer->decode({'a' + 3, 259}), "a ");
}

TEST(InvalidUtf8, IsEncodedByteByByte) {
  const auto tokenizer = bytes_only();
  EXPECT_EQ(tokenizer->encode("a\xFF\xC3"), (Ids{259, 'a' + 3, 0xFF + 3, 0xC3 + 3}));
  EXPECT_EQ(tokenizer->encode("\xE6\x97 b"),
            (Ids{0xE6 + 3, 0x97 + 3, 259, 'b' + 3}));  // no second leading space
  std::string bytes;
  for (const int32_t id : tokenizer->encode("x\x80y\xF5")) bytes += tokenizer->token_bytes(id);
  EXPECT_EQ(bytes, " x\x80y\xF5");
}

TEST(InvalidUtf8, InAByteLevelVocabulary) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(*shared / "data/tokenizers/phi-2");
  const std::string text = "Hello \xFF\xFE world\xE6\x97<|endoftext|>\xED\xA0\x80 \xF4\x90\x80\x80.";
  std::string bytes;
  for (const int32_t id : tokenizer->encode(text)) bytes += tokenizer->token_bytes(id);
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text), true), replace_invalid_utf8(text));
}

TEST(Utf8, MaximalSubparts) {
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\xA6"), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\xA6\x99"), "\U0001F999");
  EXPECT_EQ(replace_invalid_utf8("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past U+10FFFF
  EXPECT_EQ(incomplete_utf8_suffix("a\xF0\x9F\xA6"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xE6"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xE6\x97\xA5"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xFF"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80"), 0u);
}

TEST(Decode, IdsOutsideTheVocabularyAreErrors) {
  const auto tokenizer = bytes_only();
  EXPECT_THROW(tokenizer->decode({260}), Error);
  EXPECT_THROW(tokenizer->decode({-1}), Error);
  EXPECT_THROW(tokenizer->token_text(1 << 30), Error);
}

TEST(Encode, LongRunsStayFast) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  // One word of 2^17 bytes each: quadratic work would run into the test's time limit.
  const auto bpe = load_tokenizer(*shared / "fixtures/smollm2/tokenizer.json");
  const auto sentencepiece = load_tokenizer(*shared / "data/tokenizers/phi-3");
  for (const char* part : {" ", "a", "ab", "\n", "é", "1", "!", "日"}) {
    std::string text;
    while (text.size() < (size_t{1} << 17)) text += part;
    EXPECT_EQ(bpe->decode(bpe->encode(text)), text);
    EXPECT_EQ(sentencepiece->decode(sentencepiece->encode(text)), text);
  }
}

}  // namespace
}  // namespace quatrain
