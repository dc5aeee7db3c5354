// Ids that the tokenizers of real models gave.
#include "support/models.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "support/shared.h"
#include "text/byte_level.h"
#include "text/precompiled_map.h"
#include "text/tokenizer_files.h"
#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

using Ids = std::vector<int32_t>;

void expect_golden(const Tokenizer& tokenizer, const Json& cases, bool sequence) {
  ASSERT_FALSE(cases.empty());
  for (const Json& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    const auto ids = entry.at("ids").get<Ids>();
    EXPECT_EQ(sequence ? tokenizer.encode_sequence(text) : tokenizer.encode(text), ids) << entry.dump();
    EXPECT_EQ(tokenizer.decode(ids, !sequence), text);
  }
}

// Both through a tokenizer.json of its own and back.
std::unique_ptr<Tokenizer> saved_and_loaded(const Tokenizer& tokenizer) {
  const TemporaryDirectory directory;
  save_tokenizer_json(tokenizer, directory.path());
  return load_tokenizer(directory.path());
}

void expect_same(const Tokenizer& a, const Tokenizer& b, uint64_t seed) {
  EXPECT_EQ(a.size(), b.size());
  EXPECT_EQ(a.bos(), b.bos());
  EXPECT_EQ(a.eos(), b.eos());
  EXPECT_EQ(a.adds_bos(), b.adds_bos());
  EXPECT_EQ(a.adds_eos(), b.adds_eos());
  EXPECT_EQ(a.strips_leading_space(), b.strips_leading_space());
  EXPECT_EQ(a.chat_template(), b.chat_template());
  for (const std::string& text : odd_texts(seed, 500)) {
    const Ids ids = a.encode_sequence(text);
    EXPECT_EQ(b.encode_sequence(text), ids) << Json(text).dump();
    EXPECT_EQ(b.encode(text, false), a.encode(text, false)) << Json(text).dump();
    EXPECT_EQ(b.decode(ids), a.decode(ids));
  }
}

TEST(SmolLM2, TokenizerJson) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(*shared / "fixtures/smollm2/tokenizer.json");
  expect_golden(*tokenizer, read_json(*shared / "fixtures/smollm2/golden.json").at("tokenizer_cases"), false);
  expect_same(*tokenizer, *saved_and_loaded(*tokenizer), 2);
  const std::string wikitext = read_file(*shared / "data/text/wikitext-2-raw/wiki.test.raw.gz");
  const Ids ids = tokenizer->encode(wikitext);
  EXPECT_EQ(ids.size(), 303415u);
  EXPECT_EQ(tokenizer->decode(ids), wikitext);
}

TEST(SmolLM2, Gguf) {
  const auto shared = shared_dir();
  const auto model = smollm2();
  if (!shared || !model) GTEST_SKIP() << "no folder of fixtures, or scripts/fetch-model has not run";
  const auto tokenizer = load_tokenizer(gguf_vocabulary(*model));
  expect_golden(*tokenizer, read_json(*shared / "fixtures/smollm2/golden.json").at("tokenizer_cases"), false);
  expect_same(*tokenizer, *saved_and_loaded(*tokenizer), 3);
  EXPECT_EQ(tokenizer->encode(read_file(*shared / "data/text/wikitext-2-raw/wiki.test.raw.gz")).size(),
            303415u);
  EXPECT_EQ(tokenizer->token_text(tokenizer->eos().front()), "<|im_end|>");
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_NE(tokenizer->chat_template().find("<|im_start|>"), std::string::npos);

  const auto hub = load_tokenizer(*shared / "fixtures/smollm2/tokenizer.json");
  for (const std::string& text : odd_texts(4, 1000))
    EXPECT_EQ(tokenizer->encode(text), hub->encode(text)) << Json(text).dump();
}

class Gemma3 : public testing::Test {
 protected:
  void SetUp() override {
    shared_ = shared_dir();
    const auto other = smollm2();
    const fs::path model = other ? other->parent_path() / "gemma-3-270m-q4_k_m.gguf" : fs::path();
    std::error_code error;
    if (!shared_ || !fs::exists(model, error))
      GTEST_SKIP() << "no folder of fixtures, or no gemma-3-270m-q4_k_m.gguf beside SmolLM2";
    tokenizer_ = load_tokenizer(gguf_vocabulary(model));
  }
  std::optional<fs::path> shared_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(Gemma3, Golden) {
  expect_golden(*tokenizer_, read_json(*shared_ / "fixtures/gemma3-270m/golden.json").at("tokenizer_cases"),
                true);
  EXPECT_TRUE(tokenizer_->adds_bos());
  EXPECT_FALSE(tokenizer_->strips_leading_space());
}

TEST_F(Gemma3, SavedAndLoaded) {
  expect_same(*tokenizer_, *saved_and_loaded(*tokenizer_), 5);
}

// Gemma 4 kept the vocabulary of Gemma 3.
TEST_F(Gemma3, LlamaCppCases) {
  const auto cases = llama_cpp_cases(*shared_, "gemma-4");
  ASSERT_GT(cases.size(), 40u);
  for (const TextAndIds& entry : cases)
    EXPECT_EQ(tokenizer_->encode(entry.text), entry.ids) << Json(entry.text).dump();
}

// The tests of swift-transformers: ids of short texts and of one long text, by model.
void expect_swift(const Tokenizer& tokenizer, const fs::path& shared, const std::string& model,
                  const std::string& file) {
  const fs::path folder = shared / "data/tokenizers/swift-transformers";
  const Json cases = read_json(folder / "tokenizer_tests.json").at(model);
  for (const Json& entry : cases) {
    const auto text = entry.at("input").get<std::string>();
    const auto ids = entry.at("encoded").at("input_ids").get<Ids>();
    EXPECT_EQ(tokenizer.encode_sequence(text), ids) << entry.dump();
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  const Json encoded = read_json(folder / file);
  EXPECT_EQ(tokenizer.encode_sequence(encoded.at("text").get<std::string>()),
            encoded.at("token_ids").get<Ids>());
}

TEST(SwiftTransformers, Gpt2) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer =
      load_tokenizer(gguf_vocabulary(*shared / "data/tokenizers/llama.cpp/ggml-vocab-gpt-2.gguf"));
  expect_swift(*tokenizer, *shared, "distilgpt2", "gpt2_encoded_tokens.json");
}

TEST(SwiftTransformers, Falcon) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer =
      load_tokenizer(gguf_vocabulary(*shared / "data/tokenizers/llama.cpp/ggml-vocab-falcon.gguf"));
  expect_swift(*tokenizer, *shared, "tiiuae/falcon-7b", "falcon_encoded.json");
}

TEST(SwiftTransformers, Llama2) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer =
      load_tokenizer(gguf_vocabulary(*shared / "data/tokenizers/llama.cpp/ggml-vocab-phi-3.gguf"));
  expect_swift(*tokenizer, *shared, "coreml-projects/Llama-2-7b-chat-coreml", "llama_encoded.json");
}

// The first 100,256 tokens of Llama 3 are those of cl100k_base, whose ranks are at hand: a text whose ids all
// lie there is cut and merged alike, since every token of it merges before any later one.
GgufVocabulary cl100k(const fs::path& shared) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "llama-bpe";
  std::istringstream lines(read_file(shared / "data/tokenizers/tiktoken/cl100k_base.tiktoken.gz"));
  std::map<std::string, int32_t> ranks;
  std::vector<std::string> tokens;
  std::string base64;
  for (int32_t rank; lines >> base64 >> rank;) {
    tokens.push_back(base64_decode(base64, "cl100k_base"));
    ranks.emplace(tokens.back(), rank);
  }
  for (const std::string& token : tokens) {
    vocabulary.tokens.push_back(byte_level_encode(token));
    if (token.size() < 2) continue;
    // The merge that makes a token is the last one when its bytes are merged by rank.
    std::vector<std::string> parts;
    for (const char byte : token) parts.emplace_back(1, byte);
    while (parts.size() > 2) {
      size_t best = parts.size();
      int32_t best_rank = ranks.at(token);
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks.find(parts[i] + parts[i + 1]);
        if (found != ranks.end() && found->second < best_rank) {
          best = i;
          best_rank = found->second;
        }
      }
      if (best == parts.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    if (parts.size() == 2)
      vocabulary.merges.push_back(byte_level_encode(parts[0]) + " " + byte_level_encode(parts[1]));
  }
  return vocabulary;
}

TEST(Llama3, ByRanksOfCl100k) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(cl100k(*shared));
  int compared = 0;
  const auto compare = [&](const std::string& text, const Ids& ids) {
    if (std::any_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 100256; })) return;
    EXPECT_EQ(tokenizer->encode(text), ids) << Json(text).dump();
    ++compared;
  };
  for (const TextAndIds& entry : llama_cpp_cases(*shared, "llama-bpe")) compare(entry.text, entry.ids);
  const auto folder = *shared / "data/tokenizers/swift-transformers";
  const Json tests = read_json(folder / "tokenizer_tests.json");
  for (const Json& entry : tests.at("pcuenq/Llama-3.2-1B-Instruct-tokenizer")) {
    auto ids = entry.at("encoded").at("input_ids").get<Ids>();
    ids.erase(ids.begin());  // BOS, which the ranks do not have
    compare(entry.at("input").get<std::string>(), ids);
  }
  EXPECT_GT(compared, 50);
}

// RoBERTa numbers GPT-2's tokens anew: with the same cuts, ids map one to one.
TEST(Roberta, CutsAsGpt2) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  auto vocabulary = gguf_vocabulary(*shared / "data/tokenizers/llama.cpp/ggml-vocab-gpt-2.gguf");
  vocabulary.pre_tokenizer = "roberta-bpe";
  const auto tokenizer = load_tokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->adds_eos());
  std::map<int32_t, int32_t> to_roberta, to_gpt2;
  for (const TextAndIds& entry : llama_cpp_cases(*shared, "roberta-bpe")) {
    const Ids ids = tokenizer->encode(entry.text);
    ASSERT_EQ(ids.size(), entry.ids.size()) << Json(entry.text).dump();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(to_roberta.emplace(ids[i], entry.ids[i]).first->second, entry.ids[i]);
      EXPECT_EQ(to_gpt2.emplace(entry.ids[i], ids[i]).first->second, ids[i]);
    }
  }
  EXPECT_GT(to_roberta.size(), 100u);
}

TEST(Llama2c, Stories260K) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(*shared / "data/models/stories260K/tok512.bin");
  EXPECT_EQ(tokenizer->size(), 512);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), std::vector<int32_t>{2});
  EXPECT_TRUE(tokenizer->adds_bos());
  // run.c: BOS, a space before the text, then the best merges.
  EXPECT_EQ(tokenizer->encode_sequence("Once upon a time"), (Ids{1, 403, 407, 261, 378}));
  for (const std::string text : {"Lily's mom said, \"Let's go!\"\n", " two  spaces", "é 日本 🦙", ""}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode_sequence(text)), text);
    EXPECT_EQ(tokenizer->encode_sequence(text).front(), 1);
  }
  expect_same(*tokenizer, *saved_and_loaded(*tokenizer), 6);
}

TEST(Torchtune, VocabAndMergesAgreeWithTokenizerJson) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto folder = *shared / "data/tokenizers/torchtune";
  const auto json = load_tokenizer(folder / "tiny_bpe_tokenizer.json");
  const TemporaryDirectory directory;
  directory.file("vocab.json", read_file(folder / "tiny_bpe_vocab.json"));
  directory.file("merges.txt", read_file(folder / "tiny_bpe_merges.txt"));
  directory.file("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  const auto files = load_tokenizer(directory.path());
  for (const std::string& text : odd_texts(7, 1000))
    EXPECT_EQ(files->encode(text), json->encode(text, false));
}

}  // namespace
}  // namespace quatrain
