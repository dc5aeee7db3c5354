#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace quatrain {
namespace {

std::string error_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(Json, DepthIsLimited) {
  EXPECT_NO_THROW(parse_json(nested(256), "f"));
  EXPECT_NE(error_of([] { parse_json(nested(257), "deep.json"); }).find("deep.json"), std::string::npos);
  EXPECT_NE(error_of([] { parse_json(std::string(5000000, '['), "f"); }), "");
  EXPECT_NE(error_of([] { parse_ordered_json(std::string(5000000, '['), "f"); }), "");
}

TEST(Json, BracketsInStringsAreText) {
  const std::string text = "\"" + std::string(300, '[') + "\\\"" + std::string(300, '{') + "\"";
  EXPECT_EQ(parse_json(text, "f").get<std::string>().size(), 601u);
}

TEST(Json, BrokenTextNamesTheFile) {
  for (const char* text : {"", "{", "{\"a\":}", "[1,]", "nul", "\"\\", "{\"a\":1}}", "\"\xff\""})
    EXPECT_NE(error_of([&] { parse_json(text, "config.json"); }).find("config.json"), std::string::npos)
        << text;
}

TEST(Json, FieldsByTypeWithTheirName) {
  const Json object = parse_json(R"({"n": 3, "s": "x", "null": null})", "f");
  EXPECT_EQ(json_get<int>(object, "n", "f"), 3);
  EXPECT_EQ(json_get_or<int>(object, "absent", 7, "f"), 7);
  EXPECT_EQ(json_get_or<int>(object, "null", 7, "f"), 7);
  EXPECT_NE(error_of([&] { json_get<int>(object, "absent", "c.json"); }).find("c.json: field \"absent\""),
            std::string::npos);
  EXPECT_NE(error_of([&] { json_get<int>(object, "s", "c.json"); }).find("field \"s\""), std::string::npos);
  EXPECT_NE(error_of([&] { json_get_or<int>(object, "s", 1, "c.json"); }).find("field \"s\""),
            std::string::npos);
  EXPECT_NE(error_of([] { json_get<int>(Json::array(), "s", "c.json"); }), "");
}

TEST(Json, WholeNumbersAreNeverCutOrWrapped) {
  const Json object = parse_json(
      R"({"whole": 7.0, "half": 7.5, "huge": 7.44e106, "wide": 4294967297, "negative": -1,
          "last": 9223372036854775807, "beyond": 9223372036854775808, "edge": 9.2233720368547758e18, "true": true})",
      "f");
  EXPECT_EQ(json_get<int>(object, "whole", "f"), 7);
  EXPECT_EQ(json_get<int64_t>(object, "wide", "f"), 4294967297);
  EXPECT_EQ(json_get<int64_t>(object, "last", "f"), INT64_MAX);
  EXPECT_EQ(json_get<uint64_t>(object, "beyond", "f"), uint64_t{1} << 63);
  EXPECT_EQ(json_get<int>(object, "negative", "f"), -1);
  for (const char* field : {"half", "huge", "beyond", "edge", "true"})
    EXPECT_NE(
        error_of([&] { json_get<int64_t>(object, field, "c.json"); }).find("must be a whole number from"),
        std::string::npos)
        << field;
  EXPECT_NE(error_of([&] { json_get<int>(object, "wide", "c.json"); }), "");
  EXPECT_NE(error_of([&] { json_get<uint64_t>(object, "negative", "c.json"); }), "");
}

TEST(Json, OrderedKeepsTheTextsOrder) {
  EXPECT_EQ(parse_ordered_json(R"({"b":1,"a":2})", "f").dump(), R"({"b":1,"a":2})");
}

TEST(Json, ErrorsAreFreeOfTheParsersLabels) {
  try {
    parse_json("{\"a\": }", "config.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("json.exception"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("config.json: not valid JSON: parse error at line 1"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace quatrain
