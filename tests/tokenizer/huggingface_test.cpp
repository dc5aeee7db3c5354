// Ids of Hugging Face's tokenizers (make_huggingface_cases.py) for small tokenizers of every kind and stored
// real ones.
#include <gtest/gtest.h>

#include "support/shared.h"
#include "text/tokenizer_files.h"
#include "tokenizer/fixtures.h"

namespace quatrain {
namespace {

using Ids = std::vector<int32_t>;

Json all_cases() {
  return read_json(fs::path(QUATRAIN_SOURCE_DIR) / "tests/tokenizer/huggingface_cases.json");
}

void expect_cases(const Tokenizer& tokenizer, const Json& cases) {
  ASSERT_FALSE(cases.empty());
  for (const Json& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    const auto ids = entry.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << entry.dump();
    EXPECT_EQ(tokenizer.encode_sequence(text), entry.value("sequence", ids)) << entry.dump();
    EXPECT_EQ(tokenizer.encode(text, false), entry.value("plain", ids)) << entry.dump();
    if (entry.contains("round_trip")) {
      EXPECT_EQ(tokenizer.decode(ids, true), text);
    }
  }
}

TEST(HuggingFace, BuiltTokenizers) {
  const Json all = all_cases();
  for (const Json& entry : all.at("built")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto tokenizer = load_json(entry.at("tokenizer"));
    expect_cases(*tokenizer, entry.at("cases"));
    const TemporaryDirectory directory;
    save_tokenizer_json(*tokenizer, directory.path());
    expect_cases(*load_tokenizer(directory.path()), entry.at("cases"));
  }
}

TEST(HuggingFace, StoredTokenizers) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "QUATRAIN_SHARED has no folder of fixtures";
  const Json all = all_cases();
  for (const Json& entry : all.at("stored")) {
    SCOPED_TRACE(entry.at("path").get<std::string>());
    // Without the tokenizer_config.json beside it, which the ids were made without.
    const TemporaryDirectory directory;
    const auto path =
        directory.file("tokenizer.json", read_file(*shared / entry.at("path").get<std::string>()));
    expect_cases(*load_tokenizer(path), entry.at("cases"));
  }
}

}  // namespace
}  // namespace quatrain
