// .model files against SentencePiece's own library.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include "support/shared.h"
#include "text/tokenizer_files.h"
#include "text/utf8.h"
#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

class SentencePiece : public testing::TestWithParam<const char*> {};

std::vector<std::string> texts(const fs::path& shared) {
  std::vector<std::string> all = odd_texts(8, 1000);
  for (const TextAndIds& entry : llama_cpp_cases(shared, "llama-spm")) all.push_back(entry.text);
  const std::string wikitext = read_file(shared / "data/text/wikitext-2-raw/wiki.valid.raw.gz");
  for (size_t at = 0; at + 2000 < wikitext.size() && at < 100'000; at += 2000) {
    size_t begin = at;  // not within a character
    while ((static_cast<unsigned char>(wikitext[begin]) & 0xC0) == 0x80) ++begin;
    const std::string part = wikitext.substr(begin, 1990);
    all.push_back(part.substr(0, valid_utf8_prefix(part)));
  }
  return all;
}

TEST_P(SentencePiece, AgreesWithTheLibrary) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const fs::path path = *shared / "data" / GetParam();
  sentencepiece::SentencePieceProcessor reference;
  ASSERT_TRUE(reference.Load(path.string()).ok());
  const auto tokenizer = load_tokenizer(path);
  ASSERT_EQ(tokenizer->size(), reference.GetPieceSize());
  EXPECT_EQ(tokenizer->bos(), reference.bos_id());
  EXPECT_EQ(tokenizer->eos().front(), reference.eos_id());
  EXPECT_TRUE(tokenizer->adds_bos());

  const TemporaryDirectory directory;
  save_tokenizer_json(*tokenizer, directory.path());
  const auto saved = load_tokenizer(directory.path());
  for (const std::string& text : texts(*shared)) {
    std::vector<int> expected;
    ASSERT_TRUE(reference.Encode(text, &expected).ok());
    const auto ids = tokenizer->encode(text, false);
    ASSERT_EQ(ids, expected) << Json(text).dump();
    EXPECT_EQ(saved->encode(text, false), ids) << Json(text).dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePiece,
                         testing::Values("tokenizers/mistral/tokenizer.model.v1",
                                         "tokenizers/mistral/mistral_instruct_tokenizer_240323.model.v3",
                                         "tokenizers/torchtune/m.model",  // unigram, nmt_nfkc
                                         "models/babyllama-105/tok105.model"),
                         [](const auto& info) { return "Model" + std::to_string(info.index); });

TEST(SentencePieceModel, SpaceBeforeTheTextOnlyAtItsBeginning) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const TemporaryDirectory directory;
  directory.file("tokenizer.model", read_file(*shared / "data/tokenizers/mistral/tokenizer.model.v1"));
  const auto legacy = load_tokenizer(directory.path());
  directory.file("tokenizer_config.json", R"({"legacy": false, "add_bos_token": false})");
  const auto modern = load_tokenizer(directory.path());
  EXPECT_EQ(legacy->encode("hello</s>hello"), (std::vector<int32_t>{6312, 28709, 2, 6312, 28709}));
  EXPECT_EQ(modern->encode("hello</s>hello"), (std::vector<int32_t>{6312, 28709, 2, 21558}));
  EXPECT_TRUE(legacy->adds_bos());
  EXPECT_FALSE(modern->adds_bos());
}

}  // namespace
}  // namespace quatrain
