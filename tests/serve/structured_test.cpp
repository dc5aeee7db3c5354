// response_format and tools over HTTP.
#include <gtest/gtest.h>

#include "schema_checker.h"
#include "serve/tools.h"
#include "test_server.h"

namespace quatrain {
namespace {

TestServerOptions roomy() {
  TestServerOptions options;
  options.engine.context = 4096;
  return options;
}

Json chat(int64_t max_tokens) {
  return {{"messages", {{{"role", "user"}, {"content", "JSON, please."}}}},
          {"max_tokens", max_tokens},
          {"seed", 1}};
}

const Json kWeather = {
    {"type", "function"},
    {"function",
     {{"name", "get_weather"},
      {"parameters",
       {{"type", "object"},
        {"properties", {{"city", {{"type", "string"}, {"maxLength", 20}}}, {"days", {{"type", "integer"}}}}},
        {"required", {"city"}}}}}}};
const Json kTime = {{"type", "function"}, {"function", {{"name", "get_time"}}}};

TEST(Structured, JsonObjectsAndSchemas) {
  const TestServer server(roomy());
  Json body = chat(300);
  body["n"] = 4;
  body["response_format"] = {{"type", "json_object"}};
  const Json objects = server.answer("/v1/chat/completions", body);
  for (const Json& choice : objects["choices"]) {
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_TRUE(Json::parse(choice["message"]["content"].get<std::string>()).is_object());
  }
  const OrderedJson schema = OrderedJson::parse(
      R"({"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"array","items":{"type":"string"},"maxItems":3}},"required":["z","a"]})");
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "s"}, {"schema", schema}}}};
  body["max_tokens"] = 40;
  const Json typed = server.answer("/v1/chat/completions", body);
  for (const Json& choice : typed["choices"]) {
    const auto text = choice["message"]["content"].get<std::string>();
    EXPECT_TRUE(satisfies(OrderedJson::parse(text), schema, schema)) << text;
  }
  const Json plain = {{"prompt", "x"}, {"max_tokens", 40}, {"response_format", body["response_format"]}};
  const Json completion = server.answer("/v1/completions", plain);
  EXPECT_TRUE(
      satisfies(OrderedJson::parse(completion["choices"][0]["text"].get<std::string>()), schema, schema));
}

TEST(Structured, PropertiesKeepTheOrderOfTheRequest) {
  const TestServer server(roomy());
  const std::string body =
      R"({"prompt":"x","max_tokens":100,"response_format":{"type":"json_schema","json_schema":{"schema":)"
      R"({"type":"object","properties":{"zebra":{"type":"null"},"ape":{"type":"null"}},"required":["ape","zebra"]}}}})";
  const std::string text = Json::parse(server.post("/v1/completions", body)->body)["choices"][0]["text"];
  EXPECT_LT(text.find("zebra"), text.find("ape"));
}

TEST(Structured, RefusalsNameTheField) {
  const TestServer server;
  for (const auto& [format, word] : std::vector<std::pair<Json, std::string>>{
           {"json", "response_format"},
           {{{"type", "xml"}}, "response_format.type"},
           {{{"type", "json_schema"}}, "json_schema.schema"},
           {{{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", true}}}}}}, "\\\"not\\\""}}) {
    Json body = chat(10);
    body["response_format"] = format;
    const auto refused = server.post("/v1/chat/completions", body);
    EXPECT_EQ(refused->status, 400);
    EXPECT_NE(refused->body.find(word), std::string::npos) << refused->body;
  }
}

TEST(Structured, RequiredToolsAreCalled) {
  const TestServer server(roomy());
  Json body = chat(200);
  body["tools"] = {kWeather, kTime};
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  body["parallel_tool_calls"] = false;
  const Json answer = server.answer("/v1/chat/completions", body);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get_weather");
  const OrderedJson schema = OrderedJson::parse(kWeather["function"]["parameters"].dump());
  const auto arguments = call["function"]["arguments"].get<std::string>();
  EXPECT_TRUE(satisfies(OrderedJson::parse(arguments), schema, schema)) << arguments;

  body["stream"] = true;
  Json streamed;
  std::string finish;
  for (const Json& event : parse_events(server.post("/v1/chat/completions", body)->body)) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta.contains("tool_calls")) streamed = delta["tool_calls"][0];
    EXPECT_EQ(delta.value("content", ""), "");
    if (event["choices"][0]["finish_reason"].is_string()) finish = event["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(streamed["function"], call["function"]);
  EXPECT_EQ(finish, "tool_calls");

  // The result goes back to the model.
  body.erase("stream");
  body["messages"].push_back(choice["message"]);
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "sunny"}});
  body["tool_choice"] = "auto";
  EXPECT_EQ(server.answer("/v1/chat/completions", body)["choices"].size(), 1u);
}

TEST(Structured, ToolsAreLeftAloneWhereTheyMay) {
  const TestServer server(roomy());
  Json body = chat(30);
  body["tools"] = {kWeather};
  const Json answer = server.answer("/v1/chat/completions", body);  // auto: this model only babbles
  EXPECT_TRUE(answer["choices"][0]["message"]["content"].is_string());
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
  body["tool_choice"] = "none";
  const Json none = server.answer("/v1/chat/completions", body);
  EXPECT_LT(none["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
}

TEST(Structured, BadToolsAreRefused) {
  const TestServer server;
  const auto refused = [&](const Json& more) {
    Json body = chat(10);
    body.update(more);
    const auto result = server.post("/v1/chat/completions", body);
    EXPECT_EQ(result->status, 400) << more.dump();
  };
  refused({{"tools", 5}});
  refused({{"tools", {5}}});
  refused({{"tools", {{{"type", "retrieval"}}}}});
  refused({{"tools", {{{"type", 5}, {"function", {{"name", "f"}}}}}}});
  refused({{"tools", {{{"type", "function"}, {"function", {{"name", 3}}}}}}});
  refused({{"tools", {kWeather}}, {"tool_choice", "maybe"}});
  refused(
      {{"tools", {kWeather}}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}});
  refused({{"tool_choice", "required"}});
  refused({{"tools", {kWeather}}, {"response_format", {{"type", "json_object"}}}});
  Json bad = kWeather;
  bad["function"]["parameters"]["properties"]["city"]["not"] = true;
  refused({{"tools", {bad}}});
}

// The arguments of past calls are JSON within a string of the body: their nesting and size are checked like
// the body's.
TEST(Structured, HostileArgumentsOfPastCallsAreText) {
  const TestServer server(roomy());
  const auto prompt = [&](const std::string& arguments) {
    const Json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
    return server.post("/tokenize",
                       {{"messages",
                         {{{"role", "user"}, {"content", "x"}},
                          {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}}}}});
  };
  const auto count = [&](const std::string& arguments) {
    return Json::parse(prompt(arguments)->body)["count"].get<size_t>();
  };
  const size_t plain = count("{}");
  EXPECT_EQ(count(R"({"a":1})"), plain + 6);  // {"a": 1}: an object, printed by the template
  EXPECT_EQ(count(R"({"a":1)"), plain + 8);   // a text: quotes and backslashes come on top
  EXPECT_GT(count("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"), 200'000u);
  std::string keys = "{\"a\":0";
  for (int i = 0; i < 30'000; ++i) keys += fmt::format(",\"k{}\":1", i);
  EXPECT_GT(count(keys + "}"), keys.size());
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(Structured, TheTemplateTellsHowCallsAreWritten) {
  EXPECT_EQ(tool_style("{{ tools }} <tool_call>"), ToolStyle::Tagged);
  EXPECT_EQ(tool_style("{{ tools }} {\"name\": name, \"parameters\": dictionary}"), ToolStyle::Bare);
  EXPECT_EQ(tool_style("{{ messages }}"), std::nullopt);
  EXPECT_EQ(tool_style("{{ tools }} <tool_call><function=f>"), std::nullopt);
}

TEST(Structured, RepliesAreSplitHoweverTheyArrive) {
  const std::string reply =
      "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</x>\"}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  for (size_t piece = 1; piece < 30; ++piece) {
    ToolCallSplitter splitter(ToolStyle::Tagged);
    std::string text;
    std::vector<ToolCall> calls;
    const auto take = [&](ToolCallSplitter::Parts parts) {
      text += parts.text;
      calls.insert(calls.end(), parts.calls.begin(), parts.calls.end());
    };
    for (size_t at = 0; at < reply.size(); at += piece) take(splitter.push(reply.substr(at, piece)));
    take(splitter.finish());
    EXPECT_EQ(text, "Let me see.");
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0].name, "f");
    EXPECT_EQ(calls[0].arguments, R"({"a":"</x>"})");
    EXPECT_EQ(calls[1].name, "g");
  }
  ToolCallSplitter bare(ToolStyle::Bare);
  EXPECT_EQ(bare.push("{\"name\": \"f\", \"para").text, "");
  EXPECT_EQ(bare.push("meters\": {}}").text, "");
  EXPECT_EQ(bare.finish().calls.at(0).name, "f");
  ToolCallSplitter text(ToolStyle::Bare);
  EXPECT_EQ(text.push("Hello").text, "Hello");
  ToolCallSplitter cut(ToolStyle::Tagged);
  EXPECT_EQ(cut.push("a < b <tool").text, "a < b");
  EXPECT_EQ(cut.finish().text, " <tool");
  // A model can be led to write anything: what is nested beyond measure is a text, too.
  const std::string deep =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(200'000, '[') +
      std::string(200'000, ']') + "}}\n</tool_call>";
  ToolCallSplitter nested(ToolStyle::Tagged);
  const ToolCallSplitter::Parts parts = nested.push(deep);
  EXPECT_TRUE(parts.calls.empty());
  EXPECT_EQ(parts.text, deep);
}

}  // namespace
}  // namespace quatrain
