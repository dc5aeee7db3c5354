// Hostile and broken files: each is an error that says what is wrong and where.
#include <gtest/gtest.h>

#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

Json good() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
}

template <typename Load>
void expect_error(Load&& load, const std::string& part) {
  try {
    load();
    FAIL() << "no error; expected one with \"" << part << "\"";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// Patches a good document and expects an error.
void expect_refused(const char* patch, const std::string& part) {
  Json document = good();
  document.merge_patch(Json::parse(patch));
  SCOPED_TRACE(patch);
  expect_error([&] { load_json(document); }, part);
}

TEST(BadTokenizerJson, IsRefusedWithTheField) {
  expect_refused(R"({"model": null})", "\"model\" is missing");
  expect_refused(R"({"model": {"type": "WordPiece"}})", "\"WordPiece\" is not supported");
  expect_refused(R"({"model": {"type": "WordLevel"}})", "\"WordLevel\" is not supported");
  expect_refused(R"({"model": {"type": 3}})", "\"type\"");
  expect_refused(R"({"model": {"vocab": null}})", "vocab is missing");
  expect_refused(R"({"model": {"vocab": ["a"]}})", "vocab is missing or not an object");
  expect_refused(R"({"model": {"vocab": {"c": -1}}})", "the id -1");
  expect_refused(R"({"model": {"vocab": {"c": 4000000000}}})", "far outside the vocabulary");
  expect_refused(R"({"model": {"vocab": {"c": 9223372036854775807}}})", "far outside the vocabulary");
  expect_refused(R"({"model": {"vocab": {"c": 1.5}}})", "no whole number");
  expect_refused(R"({"model": {"vocab": {"c": 0}}})", "gives id 0 to both");
  expect_refused(R"({"model": {"merges": null}})", "merges is missing");
  expect_refused(R"({"model": {"merges": ["a x"]}})", "merges[0] names \"x\"");
  expect_refused(R"({"model": {"merges": ["ab"]}})", "not two tokens");
  expect_refused(R"({"model": {"merges": ["a b c"]}})", "not two tokens");
  expect_refused(R"({"model": {"merges": [["a", "b", "c"]]}})", "neither a string nor a pair");
  expect_refused(R"({"model": {"merges": [7]}})", "neither a string nor a pair");
  expect_refused(R"({"model": {"merges": ["b a"]}})", "makes a token that the vocabulary does not have");
  expect_refused(R"({"model": {"continuing_subword_prefix": "##"}})",
                 "continuing_subword_prefix is not supported");
  expect_refused(R"({"model": {"end_of_word_suffix": "</w>"}})", "end_of_word_suffix is not supported");
  expect_refused(R"({"model": {"type": "Unigram", "vocab": null}})", "vocab is missing");
  expect_refused(R"({"model": {"type": "Unigram", "vocab": [["a", "b"]]}})", "vocab[0] is not a pair");
  expect_refused(R"({"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 9}})", "unk_id is id 9");
  expect_refused(R"({"added_tokens": {}})", "added_tokens is not an array");
  expect_refused(R"({"added_tokens": [{"id": 3}]})", "\"content\" is missing");
  expect_refused(R"({"added_tokens": [{"id": 3, "content": ""}]})", "has no content");
  expect_refused(R"({"added_tokens": [{"id": 0, "content": "x"}]})", "gives id 0 to both");
  expect_refused(R"({"added_tokens": [{"id": 99999999, "content": "x"}]})", "far outside the vocabulary");
  expect_refused(R"({"normalizer": {"type": "BertNormalizer"}})",
                 "normalizer \"BertNormalizer\" is not supported");
  expect_refused(R"({"normalizer": {"type": "Sequence", "normalizers": 1}})",
                 "\"normalizers\" is not an array");
  expect_refused(R"({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": ""}})",
                 "an empty string");
  expect_refused(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}})",
                 "precompiled_charsmap");
  expect_refused(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}})",
                 "precompiled_charsmap");
  expect_refused(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "\u00e9"}})",
                 "not base64");
  expect_refused(
      R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}})",
      "regular expression \"(a\"");
  expect_refused(R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"}})",
                 "\"Sideways\"");
  expect_refused(R"({"pre_tokenizer": {"type": "UnicodeScripts"}})", "\"UnicodeScripts\" is not supported");
  expect_refused(R"({"pre_tokenizer": 5})", "\"type\" is missing");
  expect_refused(R"({"post_processor": {"type": "Nonesuch"}})",
                 "post_processor \"Nonesuch\" is not supported");
  expect_refused(
      R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}})",
      "names the token \"<s>\"");
  expect_refused(R"({"post_processor": {"type": "RobertaProcessing", "cls": ["a", 77], "sep": ["b", 1]}})",
                 "id 77");
  expect_refused(R"({"decoder": {"type": "CTC"}})", "decoder \"CTC\" is not supported");
  expect_refused(R"({"decoder": {"type": "Strip", "content": "x", "start": 1, "stop": 0}})", "decoder Strip");
}

TEST(BadTokenizerJson, DocumentsThatAreNone) {
  const TemporaryDirectory directory;
  expect_error([&] { load_tokenizer(directory.file("a.json", "")); }, "not valid JSON");
  expect_error([&] { load_tokenizer(directory.file("a.json", "[]")); }, "no tokenizer.json");
  expect_error([&] { load_tokenizer(directory.file("a.json", "{\"model\": \"\xFF\"}")); }, "not valid JSON");
  expect_error([&] { load_tokenizer(directory.file("a.json", std::string(100'000, '['))); }, "nested deeper");
  expect_error([&] { load_tokenizer(directory.path() / "absent.json"); }, "no such file");
  const TemporaryDirectory empty;
  expect_error([&] { load_tokenizer(empty.path()); }, "no tokenizer here");
  empty.file("vocab.txt", "[PAD]\n");
  expect_error([&] { load_tokenizer(empty.path()); }, "WordPiece");
}

TEST(BadTokenizerJson, ExpressionsThatPcre2ReadsOtherwise) {
  for (const char* pattern : {"[a-z&&[^b]]", "[a[bc]]", "[[:alpha:"}) {
    Json document = good();
    document["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    SCOPED_TRACE(pattern);
    expect_error([&] { load_json(document); }, "regular expression");
  }
  Json document = good();
  document["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", R"([[:alpha:]]|[^]\[&])"}}}, {"behavior", "Isolated"}};
  EXPECT_EQ(load_json(document)->encode("ab"), (std::vector<int32_t>{0, 1}));
}

TEST(BadTokenizerJson, ARegularExpressionThatExplodes) {
  Json document = good();
  document["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "^(?:a|aa)+$"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = load_json(document);
  expect_error([&] { tokenizer->encode(std::string(200, 'a') + "b"); }, "gave up");
}

TEST(BadSentencePieceModel, IsRefused) {
  const TemporaryDirectory directory;
  const auto load = [&](std::string_view bytes) { return load_tokenizer(directory.file("x.model", bytes)); };
  expect_error([&] { load(""); }, "no pieces");
  expect_error([&] { load("\x0A\x7F\x01"); }, "truncated");
  expect_error([&] { load("\x0F"); }, "wire type 7");
  expect_error([&] { load(std::string_view("\x0A\x00", 2)); }, "piece 0 is empty");
  expect_error([&] { load("\x0A\x03\x0A\x01\xFF"); }, "not UTF-8");
  expect_error(
      [&] {
        load(
            "\x0A\x05\x0A\x01"
            "a\x18\x09");
      },
      "unknown type 9");
  expect_error(
      [&] {
        load(
            "\x0A\x03\x0A\x01"
            "a\x12\x02\x18\x03");
      },
      "model type 3");
  expect_error(
      [&] {
        load(
            "\x0A\x03\x0A\x01"
            "a");
      },
      "bos_id");
  expect_error([&] { load(std::string("\x0A") + std::string(10, '\xFF')); }, "more than 10 bytes");
  expect_error([&] { load("IQ== 0\nIg== 1\n"); }, "tiktoken");
}

TEST(BadLlama2c, IsRefused) {
  const TemporaryDirectory directory;
  const auto load = [&](std::string_view bytes) { return load_tokenizer(directory.file("x.bin", bytes)); };
  expect_error([&] { load("ab"); }, "truncated");
  expect_error([&] { load(std::string_view("\4\0\0\0\0\0\0\0\377\377\377\177a", 13)); },
               "no llama2.c tokenizer");
  expect_error([&] { load(std::string_view("\4\0\0\0\0\0\0\0\1\0\0\0a", 13)); }, "only 1 tokens");
}

GgufVocabulary vocabulary() {
  GgufVocabulary good;
  good.model = "gpt2";
  good.pre_tokenizer = "gpt-2";
  good.tokens = {"a", "b", "ab"};
  good.types = {1, 1, 1};
  good.merges = {"a b"};
  good.where = "model.gguf";
  return good;
}

TEST(BadGgufVocabulary, IsRefusedWithTheKey) {
  const auto expect = [](const std::string& part, auto change) {
    GgufVocabulary bad = vocabulary();
    change(bad);
    expect_error([&] { load_tokenizer(std::move(bad)); }, part);
  };
  EXPECT_EQ(load_tokenizer(vocabulary())->encode("ab"), std::vector<int32_t>{2});
  expect("pre-tokenizer \"nonesuch\" is not known", [](auto& v) { v.pre_tokenizer = "nonesuch"; });
  expect("tokenizer.ggml.model \"bert\"", [](auto& v) { v.model = "bert"; });
  expect("tokenizer.ggml.model \"t5\"", [](auto& v) { v.model = "t5"; });
  expect("token_type has 2 entries for 3 tokens", [](auto& v) { v.types.pop_back(); });
  expect("token_type[1] is 7", [](auto& v) { v.types[1] = 7; });
  expect("tokens[1] is not UTF-8", [](auto& v) { v.tokens[1] = "\xFF"; });
  expect("merges is missing", [](auto& v) { v.merges.clear(); });
  expect("merges[0] has no space", [](auto& v) { v.merges[0] = "ab"; });
  expect("merges[0] names a token", [](auto& v) { v.merges[0] = "a c"; });
  expect("scores has 0 entries", [](auto& v) { v.model = "llama"; });
  expect("bos_token_id is id 3", [](auto& v) { v.bos = 3; });
  expect("eos_token_id is id -2", [](auto& v) { v.eos = -2; });
  expect("vocabulary is empty", [](auto& v) {
    v.model = "llama";
    v.tokens.clear();
    v.types.clear();
  });
}

}  // namespace
}  // namespace quatrain
