// Renderings compared byte for byte with jinja2's (make_expected.py).
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "support.h"
#include "support/shared.h"

namespace quatrain {
namespace {

OrderedJson fixture(const char* name) {
  const fs::path path = fs::path(QUATRAIN_SOURCE_DIR) / "tests" / "template" / name;
  return parse_ordered_json(read_file(path), name);
}

// A .jinja file, or the template in a tokenizer_config.json.
std::string template_text(const fs::path& path) {
  if (path.extension() == ".jinja") return read_file(path);
  return json_get<std::string>(read_json(path), "chat_template", path.string());
}

// Compares one case with {"output"} or {"error", "raised"}.
void check(const OrderedJson& expected, std::string_view source, const OrderedJson& context) {
  std::string output, error;
  try {
    output = render(source, context);
  } catch (const Error& failure) {
    error = failure.what();
  }
  if (expected.contains("output")) {
    EXPECT_EQ(error, "");
    EXPECT_EQ(output, expected["output"].get<std::string>());
    return;
  }
  const auto jinja_error = expected["error"].get<std::string>();
  EXPECT_NE(error, "") << "rendered " << output << " where jinja2 fails with " << jinja_error;
  EXPECT_TRUE(error.starts_with("t:")) << error;
  if (expected["raised"].get<bool>()) {
    EXPECT_NE(error.find(jinja_error), std::string::npos) << error << " lacks " << jinja_error;
  }
}

TEST(Expected, Language) {
  const OrderedJson cases = fixture("language.json.gz");
  ASSERT_GT(cases.size(), 700u);
  for (const auto& expected : cases) {
    const auto source = expected["template"].get<std::string>();
    SCOPED_TRACE(source);
    check(expected, source, expected["context"]);
  }
}

TEST(Expected, ModelTemplates) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "the folder of large fixtures is not here";
  const OrderedJson data = fixture("templates.json.gz");
  std::map<std::string, std::string> sources;
  ASSERT_GT(data["cases"].size(), 700u);
  for (const auto& expected : data["cases"]) {
    const auto name = expected["template"].get<std::string>();
    const auto conversation = expected["conversation"].get<std::string>();
    SCOPED_TRACE(name + " on " + conversation);
    if (!sources.contains(name)) sources[name] = template_text(*shared / "data" / name);
    check(expected, sources[name], data["conversations"][conversation]);
  }
}

}  // namespace
}  // namespace quatrain
