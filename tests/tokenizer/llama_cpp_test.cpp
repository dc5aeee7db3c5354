// llama.cpp's vocabulary tests, whose expected ids come from each model's own tokenizer.
#include <gtest/gtest.h>

#include "support/shared.h"
#include "text/tokenizer_files.h"
#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

void expect_cases(const Tokenizer& tokenizer, const std::vector<TextAndIds>& cases) {
  ASSERT_GT(cases.size(), 40u);
  for (const TextAndIds& entry : cases) {
    EXPECT_EQ(tokenizer.encode(entry.text, false), entry.ids) << Json(entry.text).dump();
    EXPECT_EQ(tokenizer.decode(entry.ids), entry.text);
  }
}

class GgufCases : public testing::TestWithParam<std::pair<const char*, const char*>> {};

// The ids of `second` with the vocabulary file of `first`, and again after a round trip through
// tokenizer.json.
TEST_P(GgufCases, GivesTheExpectedIds) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto [vocabulary, expected] = GetParam();
  const auto path =
      *shared / "data/tokenizers/llama.cpp" / (std::string("ggml-vocab-") + vocabulary + ".gguf");
  const auto tokenizer = load_tokenizer(gguf_vocabulary(path));
  const auto cases = llama_cpp_cases(*shared, expected);
  expect_cases(*tokenizer, cases);

  const TemporaryDirectory directory;
  save_tokenizer_json(*tokenizer, directory.path());
  const auto again = load_tokenizer(directory.path());
  expect_cases(*again, cases);
  EXPECT_EQ(again->size(), tokenizer->size());
  EXPECT_EQ(again->bos(), tokenizer->bos());
  EXPECT_EQ(again->eos(), tokenizer->eos());
  EXPECT_EQ(again->adds_bos(), tokenizer->adds_bos());
  EXPECT_EQ(again->chat_template(), tokenizer->chat_template());
  for (const std::string& text : odd_texts(1, 300)) {
    EXPECT_EQ(again->encode(text), tokenizer->encode(text)) << Json(text).dump();
    EXPECT_EQ(again->encode_sequence(text, false), tokenizer->encode_sequence(text, false));
  }
}

// Phi-3's vocabulary is Llama-2's with other special tokens.
INSTANTIATE_TEST_SUITE_P(LlamaCpp, GgufCases,
                         testing::Values(std::pair("gpt-2", "gpt-2"), std::pair("falcon", "falcon"),
                                         std::pair("mpt", "mpt"), std::pair("phi-3", "phi-3"),
                                         std::pair("phi-3", "llama-spm")),
                         [](const auto& info) {
                           std::string name = info.param.second;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LlamaCpp, Qwen2FromVocabAndMerges) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(*shared / "data/tokenizers/qwen2");
  expect_cases(*tokenizer, llama_cpp_cases(*shared, "qwen2"));
  expect_cases(*tokenizer, llama_cpp_cases(*shared, "deepseek-r1-qwen"));
}

TEST(LlamaCpp, Phi3FromTokenizerJson) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(*shared / "data/tokenizers/phi-3");
  expect_cases(*tokenizer, llama_cpp_cases(*shared, "phi-3"));
  EXPECT_FALSE(tokenizer->adds_bos());  // add_bos_token is false in its tokenizer_config.json
}

TEST(LlamaCpp, Gpt2FromVocabAndMerges) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const TemporaryDirectory directory;
  directory.file("vocab.json", read_file(*shared / "data/tokenizers/gpt2/encoder.json.gz"));
  directory.file("merges.txt", read_file(*shared / "data/tokenizers/gpt2/vocab.bpe.gz"));
  expect_cases(*load_tokenizer(directory.path()), llama_cpp_cases(*shared, "gpt-2"));
}

TEST(LlamaCpp, WordPieceIsRefusedByName) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  auto vocabulary = gguf_vocabulary(*shared / "data/tokenizers/llama.cpp/ggml-vocab-bert-bge.gguf");
  try {
    load_tokenizer(std::move(vocabulary));
    FAIL() << "a WordPiece vocabulary was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("WordPiece"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quatrain
