// Special tokens, BOS and EOS rules, chat templates and end-of-reply tokens from the files beside a
// vocabulary.
#include <gtest/gtest.h>

#include "support/shared.h"
#include "text/tokenizer_files.h"
#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

using Ids = std::vector<int32_t>;

// Letters a to e (ids 0 to 4), a space, "ab" (6), and the given added tokens.
Json letters(const Json& added = Json::array(), const Json& post_processor = Json()) {
  return {{"added_tokens", added},
          {"post_processor", post_processor},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}, {"e", 4}, {" ", 5}, {"ab", 6}}},
            {"merges", {"a b"}}}}};
}

Json token(int id, const char* content, bool special = true, const Json& more = Json::object()) {
  Json entry = {{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
  entry.update(more);
  return entry;
}

TEST(SpecialTokens, TheLongestMatchAtTheLeftmostPlace) {
  const auto tokenizer = load_json(letters({token(7, "ab"), token(8, "abc"), token(9, "cd")}));
  EXPECT_EQ(tokenizer->encode("abcd"), (Ids{8, 3}));
  EXPECT_EQ(tokenizer->encode("abd"), (Ids{7, 3}));
  EXPECT_EQ(tokenizer->encode("abab"), (Ids{7, 7}));
}

TEST(SpecialTokens, AreOrdinaryTextUnlessAskedFor) {
  const auto tokenizer = load_json(letters({token(7, "abc"), token(8, "de", false)}));
  EXPECT_EQ(tokenizer->encode("abcde", true), (Ids{7, 8}));
  EXPECT_EQ(tokenizer->encode("abcde", false), (Ids{6, 2, 8}));  // added but not special
  EXPECT_TRUE(tokenizer->is_special(7));
  EXPECT_FALSE(tokenizer->is_special(8));
  EXPECT_EQ(tokenizer->decode({0, 7, 8}), "ade");
  EXPECT_EQ(tokenizer->decode({0, 7, 8}, true), "aabcde");
  EXPECT_EQ(tokenizer->token_id("abc"), 7);
  EXPECT_EQ(tokenizer->token_id("zzz"), std::nullopt);
}

TEST(SpecialTokens, TakeWhiteSpaceAndRespectWords) {
  const auto strips =
      load_json(letters(Json::array({token(7, "cc", true, {{"lstrip", true}, {"rstrip", true}})})));
  EXPECT_EQ(strips->encode("a  cc \n b"), (Ids{0, 7, 1}));
  const auto word = load_json(letters(Json::array({token(7, "cc", true, {{"single_word", true}})})));
  EXPECT_EQ(word->encode("cc acc cc"), (Ids{7, 5, 0, 2, 2, 5, 7}));
}

TEST(SpecialTokens, PostProcessorsFrameASequence) {
  const Json added = {token(7, "<s>"), token(8, "</s>")};
  const auto frame = load_json(letters(
      added,
      {{"type", "TemplateProcessing"},
       {"single",
        {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
       {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {7}}, {"tokens", {"<s>"}}}}}}}));
  EXPECT_EQ(frame->encode_sequence("ab"), (Ids{7, 6}));
  EXPECT_EQ(frame->encode("ab"), (Ids{6}));
  EXPECT_TRUE(frame->adds_bos());
  EXPECT_EQ(frame->bos(), 7);
  EXPECT_FALSE(frame->adds_eos());
  const auto roberta =
      load_json(letters(added, {{"type", "RobertaProcessing"}, {"sep", {"</s>", 8}}, {"cls", {"<s>", 7}}}));
  EXPECT_EQ(roberta->encode_sequence("ab"), (Ids{7, 6, 8}));
  EXPECT_EQ(roberta->encode_sequence(""), (Ids{7, 8}));
}

class Directory : public testing::Test {
 protected:
  void SetUp() override {
    directory_.file("tokenizer.json",
                    letters({token(7, "<s>"), token(8, "</s>"), token(9, "<|eot_id|>")}).dump());
  }
  std::unique_ptr<Tokenizer> load() const { return load_tokenizer(directory_.path()); }
  TemporaryDirectory directory_;
};

TEST_F(Directory, ConfigurationNamesBosAndEos) {
  directory_.file(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "add_eos_token": true})");
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->bos(), 7);
  EXPECT_EQ(tokenizer->eos(), (Ids{8, 9}));  // eot beside it
  EXPECT_EQ(tokenizer->encode_sequence("ab"), (Ids{7, 6, 8}));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->adds_eos());
}

TEST_F(Directory, TheGenericFastClassFollowsItsPostProcessorAlone) {
  directory_.file(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "add_bos_token": true, "tokenizer_class": "PreTrainedTokenizerFast"})");
  EXPECT_EQ(load()->encode_sequence("ab"), (Ids{6}));
}

TEST_F(Directory, SpecialTokensMapFillsWhatTheConfigurationLeavesOut) {
  directory_.file("special_tokens_map.json",
                  R"({"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["ab"]})");
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->bos(), 7);
  EXPECT_EQ(tokenizer->eos().front(), 8);
  EXPECT_TRUE(tokenizer->is_special(6));
}

TEST_F(Directory, GenerationConfigAddsEndTokens) {
  directory_.file("tokenizer_config.json", R"({"eos_token": "</s>"})");
  directory_.file("config.json", R"({"eos_token_id": 4})");
  EXPECT_EQ(load()->eos(), (Ids{8, 4, 9}));
  directory_.file("generation_config.json", R"({"eos_token_id": [8, 2, 12345]})");
  EXPECT_EQ(load()->eos(), (Ids{8, 2, 9}));
}

TEST_F(Directory, AFieldOfAnotherTypeIsNamed) {
  const auto expect_named = [&](const char* file, const char* text, const char* field) {
    SCOPED_TRACE(text);
    directory_.file(file, text);
    try {
      load();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
    directory_.file(file, "{}");
  };
  for (const char* wrong :
       {R"({"eos_token_id": "2"})", R"({"eos_token_id": 2.5})", R"({"eos_token_id": [2, null]})"})
    expect_named("generation_config.json", wrong, "eos_token_id");
  expect_named("config.json", R"({"eos_token_id": true})", "eos_token_id");
  expect_named("special_tokens_map.json", R"({"bos_token": 7})", "bos_token must be a token's text, is 7");
  expect_named("tokenizer_config.json", R"({"eos_token": ["</s>"]})", "eos_token");
  expect_named("tokenizer_config.json", R"({"additional_special_tokens": "ab"})",
               "additional_special_tokens");
  expect_named("tokenizer_config.json", R"({"add_bos_token": "yes"})", "add_bos_token");
  expect_named("tokenizer_config.json", R"({"chat_template": 3})", "chat_template");
}

TEST_F(Directory, AddedTokensOfTheOtherFiles) {
  directory_.file(
      "tokenizer_config.json",
      R"({"added_tokens_decoder": {"10": {"content": "<x>", "special": true}, "7": {"content": "<s>"}}})");
  directory_.file("added_tokens.json", R"({"<y>": 11})");
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("a<x>b<y>"), (Ids{0, 10, 1, 11}));
  EXPECT_TRUE(tokenizer->is_special(10));
  EXPECT_FALSE(tokenizer->is_special(11));
  EXPECT_EQ(tokenizer->size(), 12);
}

TEST_F(Directory, ChatTemplates) {
  EXPECT_EQ(load()->chat_template(), "");
  directory_.file("tokenizer_config.json", R"({"chat_template": "from the configuration"})");
  EXPECT_EQ(load()->chat_template(), "from the configuration");
  directory_.file("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
                                              {"name": "default", "template": "the default of a list"}]})");
  EXPECT_EQ(load()->chat_template(), "the default of a list");
  directory_.file("chat_template.json", R"({"chat_template": "a processor's"})");
  EXPECT_EQ(load()->chat_template(), "a processor's");
  directory_.file("chat_template.jinja", "a file of its own");
  EXPECT_EQ(load()->chat_template(), "a file of its own");
}

TEST_F(Directory, FilesAreCopied) {
  directory_.file("tokenizer_config.json", R"({"eos_token": "</s>"})");
  directory_.file("chat_template.jinja", "hello");
  directory_.file("model.safetensors", "not a tokenizer file");
  const TemporaryDirectory other;
  copy_tokenizer_files(directory_.path(), other.path());
  EXPECT_FALSE(fs::exists(other.path() / "model.safetensors"));
  const auto tokenizer = load_tokenizer(other.path());
  EXPECT_EQ(tokenizer->chat_template(), "hello");
  EXPECT_EQ(tokenizer->eos().front(), 8);
  const TemporaryDirectory empty;
  EXPECT_THROW(copy_tokenizer_files(empty.path(), other.path()), Error);
}

TEST(Qwen2, ConfigurationOfTheFixture) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const auto tokenizer = load_tokenizer(*shared / "data/tokenizers/qwen2");
  EXPECT_EQ(tokenizer->size(), 151646);
  EXPECT_EQ(tokenizer->bos(), -1);
  EXPECT_EQ(tokenizer->eos(), (Ids{151645, 151643}));
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->encode("<|im_start|>user\n").front(), 151644);
  EXPECT_NE(tokenizer->encode("<|im_start|>user\n", false).front(), 151644);
  EXPECT_NE(tokenizer->chat_template().find("<|im_start|>"), std::string::npos);
}

// Newer configurations over the same vocabulary, and packed files unpacked by the copy.
TEST(Qwen3, ConfigurationOfTheFixture) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const TemporaryDirectory directory;
  copy_tokenizer_files(*shared / "data/tokenizers/qwen2", directory.path());
  EXPECT_TRUE(fs::exists(directory.path() / "vocab.json"));
  directory.file("tokenizer_config.json", read_file(*shared / "data/tokenizers/qwen3/tokenizer_config.json"));
  const auto tokenizer = load_tokenizer(directory.path());
  EXPECT_EQ(tokenizer->encode("<think></think>"), (Ids{151667, 151668}));
  EXPECT_EQ(tokenizer->encode("<think></think>", false), (Ids{151667, 151668}));  // added, not special
  EXPECT_EQ(tokenizer->encode("<|vision_start|>"), (Ids{151652}));
}

TEST(Phi3, SpecialTokensTakeTheWhiteSpaceAfterThem) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const std::string chat = "<|user|>\nHello<|end|>\n<|assistant|>\n Hi</s>  there<|endoftext|> !";
  const auto hub = load_tokenizer(*shared / "data/tokenizers/phi-3");
  const auto gguf =
      load_tokenizer(gguf_vocabulary(*shared / "data/tokenizers/llama.cpp/ggml-vocab-phi-3.gguf"));
  EXPECT_EQ(gguf->encode(chat), hub->encode(chat));
  EXPECT_EQ(hub->encode("<|user|>\nHello<|end|>\n"), (Ids{32010, 15043, 32007}));
}

}  // namespace
}  // namespace quatrain
