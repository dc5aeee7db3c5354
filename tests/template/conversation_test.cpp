#include "text/conversation.h"

#include <gtest/gtest.h>

#include "support.h"

namespace quatrain {
namespace {

// Three tokens, of which 1 begins and 2 ends a text.
class SmallTokenizer : public Tokenizer {
 public:
  explicit SmallTokenizer(bool with_ends = true) {
    if (!with_ends) return;
    bos_ = 1;
    eos_ = {2, 0};
  }
  std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
  std::string token_bytes(int32_t id) const override { return token_text(id); }
  std::string token_text(int32_t id) const override {
    return std::vector<std::string>{"a", "<s>", "</s>"}.at(id);
  }
  std::optional<int32_t> token_id(std::string_view) const override { return std::nullopt; }
  int64_t size() const override { return 3; }
  bool is_special(int32_t id) const override { return id > 0; }
};

OrderedJson parse(const char* text) {
  return parse_ordered_json(text, "test");
}

std::string error_for(const char* messages, const char* tools = "null") {
  try {
    chat_context(SmallTokenizer(), parse(messages), parse(tools), true);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Conversation, FillsTheVariables) {
  const OrderedJson messages = parse(R"([{"role": "user", "content": "Hi"}])");
  const OrderedJson context = chat_context(SmallTokenizer(), messages, nullptr, true);
  EXPECT_EQ(context,
            parse(R"({"messages": [{"role": "user", "content": "Hi"}], "tools": null, "documents": null,
                               "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})"));
  EXPECT_EQ(render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ tools is none }}", context),
            "<s>Hi</s>True");
  EXPECT_FALSE(chat_context(SmallTokenizer(false), messages, nullptr, true).contains("bos_token"));
  EXPECT_TRUE(chat_context(SmallTokenizer(), messages, OrderedJson::array(), false)["tools"].is_null());
  EXPECT_EQ(
      chat_context(SmallTokenizer(), messages, parse(R"([{"type": "function"}])"), false)["tools"].size(),
      1u);
}

TEST(Conversation, TakesWhatChatsHold) {
  EXPECT_EQ(error_for("[]"), "none");
  EXPECT_EQ(error_for(R"([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]},
                          {"role": "assistant", "content": null},
                          {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
                          {"role": "tool", "content": "", "name": "f"}])"),
            "none");
}

TEST(Conversation, NamesWhatIsWrong) {
  EXPECT_EQ(error_for(R"({"role": "user"})"), "messages must be an array, not object");
  EXPECT_EQ(error_for(R"(["x"])"), "messages[0] must be an object, not string");
  EXPECT_EQ(error_for(R"([{"content": "x"}])"), "messages[0].role must be a string such as \"user\"");
  EXPECT_EQ(error_for(R"([{"role": 1, "content": "x"}])"),
            "messages[0].role must be a string such as \"user\"");
  EXPECT_EQ(error_for(R"([{"role": "user", "content": "x"}, {"role": "user"}])"),
            "messages[1].content is missing");
  EXPECT_EQ(error_for(R"([{"role": "user", "content": 5}])"),
            "messages[0].content must be a string, null or an array of parts, not number");
  EXPECT_EQ(error_for(R"([{"role": "user", "content": ["x"]}])"),
            "messages[0].content[0] must be an object, not string");
  EXPECT_EQ(error_for(R"([{"role": "user", "content": [{"text": "x"}]}])"),
            "messages[0].content[0].type must be a string such as \"text\"");
  EXPECT_EQ(error_for(R"([{"role": "user", "content": [{"type": "text"}]}])"),
            "messages[0].content[0].text must be a string");
  EXPECT_EQ(error_for(R"([{"role": "assistant", "tool_calls": [1]}])"),
            "messages[0].tool_calls[0] must be an object, not number");
  EXPECT_EQ(error_for("[]", "{}"), "tools must be an array, not object");
  EXPECT_EQ(error_for("[]", "[1]"), "tools[0] must be an object, not number");
}

}  // namespace
}  // namespace quatrain
