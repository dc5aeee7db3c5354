// Grammars of JSON and JSON Schema: whatever a model prefers, the text parses and validates.
#include <gtest/gtest.h>

#include <cmath>

#include "byte_tokenizer.h"
#include "engine/sampler.h"
#include "model/checkpoint.h"
#include "schema_checker.h"
#include "serve/grammar/json_schema.h"
#include "serve/grammar/token_masks.h"
#include "serve/grammar_cache.h"
#include "support/models.h"

namespace quatrain {
namespace {

bool matches(const Grammar& grammar, std::string_view text) {
  GrammarAutomaton automaton(grammar);
  auto state = automaton.start();
  for (const char byte : text) {
    state = automaton.next(state, static_cast<uint8_t>(byte));
    if (state == GrammarAutomaton::kDead) return false;
  }
  return automaton.accepts(state);
}

Grammar compile(const char* schema) {
  return schema_grammar(parse_ordered_json(schema, "test"), "schema");
}

struct Generated {
  std::string text;
  bool complete = false;
};

// What a model with random wishes writes under the grammar.
Generated generate(const std::shared_ptr<MaskedGrammar>& grammar, const Tokenizer& tokenizer, uint64_t seed,
                   int64_t most) {
  const int32_t eos = tokenizer.eos().front();
  GrammarConstraint constraint(grammar, {eos});
  Sampler sampler({.temperature = 1, .logit_bias = {}, .seed = seed});
  SplitMix64 random(seed);
  std::vector<float> logits(static_cast<size_t>(tokenizer.size()));
  Generated result;
  for (int64_t left = most; left > 0; --left) {
    for (float& logit : logits) logit = static_cast<float>(random.uniform() * 6);
    constraint.mask(logits, left);
    const int32_t token = sampler.sample(logits);
    if (token == eos) {
      result.complete = true;
      break;
    }
    result.text += tokenizer.token_bytes(token);
    if (constraint.accept(token)) {
      result.complete = true;
      break;
    }
  }
  return result;
}

class SchemaMaker {
 public:
  explicit SchemaMaker(uint64_t seed) : random_(seed) {}

  OrderedJson object(int depth) {
    OrderedJson schema = {{"type", "object"}, {"properties", OrderedJson::object()}};
    OrderedJson required = OrderedJson::array();
    const uint64_t count = 1 + random_.below(4);
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name =
          kNames[random_.below(kNames.size())] + (random_.below(3) == 0 ? std::to_string(i) : "");
      schema["properties"][name] = any(depth - 1);
      if (random_.below(2) == 0 && std::ranges::find(required, OrderedJson(name)) == required.end())
        required.push_back(name);
    }
    if (random_.below(4) > 0) schema["required"] = required;
    if (random_.below(2) == 0) schema["additionalProperties"] = false;
    return schema;
  }

 private:
  inline static const std::vector<std::string> kNames = {"name", "age",   "täg",    "a \"quoted\" key",
                                                         "x",    "items", "\\slash"};

  OrderedJson any(int depth) {
    switch (random_.below(depth > 0 ? 14 : 10)) {
      case 0:
        return {{"type", "string"}};
      case 1: {
        const uint64_t low = random_.below(4);
        return {{"type", "string"}, {"minLength", low}, {"maxLength", low + random_.below(5)}};
      }
      case 2:
        return {{"type", "integer"}};
      case 3: {
        const auto low = static_cast<int64_t>(random_.below(3000)) - 1500;
        return {{"type", "integer"},
                {"minimum", low},
                {"maximum", low + static_cast<int64_t>(random_.below(2000))}};
      }
      case 4: {
        const double low =
            (static_cast<double>(random_.below(3000)) - 1500) / 8;  // exact, so that low + 1.5 is too
        return {{"type", "number"},
                {random_.below(2) == 0 ? "minimum" : "exclusiveMinimum", low},
                {"maximum", low + 1.5}};
      }
      case 5:
        return {{"type", "number"}};
      case 6:
        return {{"enum", {"red", "grün", 3, nullptr, true, {{"k", 1}}}}};
      case 7:
        return {{"type", {"boolean", "null"}}};
      case 8:
        return {{"type", "string"}, {"pattern", "^[A-Z][a-z]{1,5}(-[0-9]+)?$"}};
      case 9:
        return {{"const", "fixed value"}};
      case 10: {
        const uint64_t low = random_.below(3);
        return {{"type", "array"},
                {"items", any(depth - 1)},
                {"minItems", low},
                {"maxItems", low + random_.below(3)}};
      }
      case 11:
        return {{"anyOf", {any(depth - 1), any(depth - 1)}}, {"description", "either"}};
      case 12:
        return {{"type", "object"}, {"additionalProperties", any(depth - 1)}};
      default:
        return object(depth);
    }
  }

  SplitMix64 random_;
};

// 200 schemas, each with budgets from too small for anything but the shortest text to comfortable.
void expect_valid_outputs(const Tokenizer& tokenizer, int schemas) {
  const auto table = std::make_shared<TokenTable>(tokenizer, tokenizer.size());
  for (int i = 0; i < schemas; ++i) {
    const OrderedJson schema = SchemaMaker(static_cast<uint64_t>(i)).object(3);
    SCOPED_TRACE(schema.dump());
    const auto grammar = std::make_shared<MaskedGrammar>(schema_grammar(schema, "schema"), table);
    const int64_t shortest = grammar->automaton().shortest(grammar->automaton().start());
    for (const int64_t more : {0, 20, 150}) {
      const Generated generated =
          generate(grammar, tokenizer, static_cast<uint64_t>(i * 7 + more), shortest + more);
      ASSERT_TRUE(generated.complete) << generated.text;
      const OrderedJson value = OrderedJson::parse(generated.text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << generated.text;
      ASSERT_TRUE(satisfies(value, schema, schema)) << generated.text;
    }
  }
}

TEST(Grammar, TwoHundredSchemasOverBytes) {
  expect_valid_outputs(*byte_tokenizer(), 200);
}

TEST(Grammar, SchemasOverARealVocabulary) {
  const auto model = smollm2();
  if (!model) GTEST_SKIP() << "run scripts/fetch-model first";
  expect_valid_outputs(*load_model_tokenizer(*model), 25);
}

TEST(Grammar, AnyObject) {
  const auto tokenizer = byte_tokenizer();
  const auto table = std::make_shared<TokenTable>(*tokenizer, tokenizer->size());
  const auto grammar = std::make_shared<MaskedGrammar>(object_grammar(), table);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Generated generated = generate(grammar, *tokenizer, seed, 2 + static_cast<int64_t>(seed) * 10);
    EXPECT_TRUE(generated.complete);
    EXPECT_TRUE(OrderedJson::parse(generated.text, nullptr, false).is_object()) << generated.text;
  }
  const Grammar plain = object_grammar();
  for (const char* text : {"{}", "{ }", R"({"a": 1})", R"({"a":[1,2,{"b":null}],"c":"\u00e9\n"})",
                           "{\"a\": -1.5e-3}", "{\n  \"a\": true,\n  \"b\": false\n}"})
    EXPECT_TRUE(matches(plain, text)) << text;
  for (const char* text : {"", "{", "[]", "1", "{\"a\"}", "{\"a\":01}", "{\"a\":1,}", "{'a':1}",
                           "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\xFF\"}",
                           "{\"a\":\"\xED\xA0\x80\"}", "{\"a\":\"\xC0\x80\"}", "{} "})
    EXPECT_FALSE(matches(plain, text)) << text;
}

TEST(Grammar, IntegersOfEveryRange) {
  for (const auto& [low, high] :
       {std::pair<int, int>{0, 0}, {0, 9}, {5, 17}, {-3, 3}, {-120, -7}, {98, 1003}, {-1, 0}, {100, 100}}) {
    const Grammar grammar =
        compile(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", low, high).c_str());
    for (int value = -1300; value <= 1300; ++value)
      ASSERT_EQ(matches(grammar, std::to_string(value)), low <= value && value <= high)
          << value << " " << low << " " << high;
    EXPECT_FALSE(matches(grammar, "007"));
    EXPECT_FALSE(matches(grammar, ""));
  }
  const Grammar positive = compile(R"({"type":"integer","exclusiveMinimum":0})");
  EXPECT_FALSE(matches(positive, "0"));
  EXPECT_TRUE(matches(positive, "1"));
  EXPECT_TRUE(matches(positive, "999999999999999"));
  EXPECT_FALSE(matches(positive, "-1"));
}

TEST(Grammar, NumbersOfARange) {
  const Grammar unit = compile(R"({"type":"number","minimum":0,"maximum":1})");
  for (const char* text : {"0", "1", "0.5", "0.999999"}) EXPECT_TRUE(matches(unit, text)) << text;
  for (const char* text : {"1.0001", "-0.1", "2", "1e5", "0."}) EXPECT_FALSE(matches(unit, text)) << text;
  const Grammar narrow = compile(R"({"type":"number","minimum":-0.25,"exclusiveMaximum":0.1})");
  for (const char* text : {"-0.2500", "0.0999", "0.0500", "-0.1234567"})
    EXPECT_TRUE(matches(narrow, text)) << text;
  for (const char* text : {"-0.2501", "-0.25001", "0.1000", "0.10001"})
    EXPECT_FALSE(matches(narrow, text)) << text;
}

TEST(Grammar, Strings) {
  const Grammar three = compile(R"({"type":"string","minLength":3,"maxLength":3})");
  for (const char* text : {R"("abc")", R"("äöü")", R"("a\n\"")", "\"\xF0\x9F\x98\x80xy\""})
    EXPECT_TRUE(matches(three, text)) << text;
  for (const char* text : {R"("ab")", R"("abcd")", "\"\xF0\x9F\x98\x80\"", "\"ab\xC3\""})
    EXPECT_FALSE(matches(three, text)) << text;
  const Grammar plate = compile(R"({"type":"string","pattern":"^[A-Z]{1,3}-(\\d{2}|x+)$"})");
  EXPECT_TRUE(matches(plate, R"("AB-12")"));
  EXPECT_TRUE(matches(plate, R"("A-xxx")"));
  EXPECT_FALSE(matches(plate, R"("ABCD-12")"));
  EXPECT_FALSE(matches(plate, R"("A-1")"));
  const Grammar inside = compile(R"({"type":"string","pattern":"\"b+|\\\\"})");
  EXPECT_TRUE(matches(inside, R"("say \"bbb now")"));
  EXPECT_TRUE(matches(inside, R"("back\\slash")"));
  EXPECT_FALSE(matches(inside, R"("bbb")"));
  const Grammar date = compile(R"({"type":"string","format":"date-time"})");
  EXPECT_TRUE(matches(date, R"("2024-02-28T23:59:59Z")"));
  EXPECT_FALSE(matches(date, R"("2024-02-30T23:59:59Z")"));
}

TEST(Grammar, RecursiveSchemas) {
  const Grammar tree = compile(
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},)"
      R"("children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["v","children"]}}})");
  EXPECT_TRUE(matches(
      tree,
      R"({"v": 1, "children": [{"v": 2, "children": []}, {"v": 3, "children": [{"v": 4, "children": []}]}]})"));
  EXPECT_FALSE(matches(tree, R"({"v": 1, "children": [{"v": 2}]})"));
  std::string deep, close;
  for (int i = 0; i < 2000; ++i) deep += R"({"v":1,"children":[)", close += "]}";
  EXPECT_TRUE(matches(tree, deep + close));
}

TEST(Grammar, OneOfNeedsAlternativesThatExcludeEachOther) {
  EXPECT_TRUE(matches(compile(R"({"oneOf":[{"type":"string"},{"type":"integer"}]})"), "5"));
  const Grammar shapes = compile(
      R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},"r":{"type":"number"}},"required":["kind","r"]},)"
      R"({"type":"object","properties":{"kind":{"const":"square"},"a":{"type":"number"}},"required":["kind","a"]}]})");
  EXPECT_TRUE(matches(shapes, R"({"kind": "square", "a": 2})"));
  EXPECT_FALSE(matches(shapes, R"({"kind": "square", "r": 2})"));
  EXPECT_THROW(compile(R"({"oneOf":[{"type":"number"},{"type":"integer"}]})"), Error);
}

TEST(Grammar, WhatIsNotSupportedIsRefusedByName) {
  const auto refused = [](const char* schema, const char* word) {
    try {
      compile(schema);
      ADD_FAILURE() << "accepted: " << schema;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_TRUE(std::string(error.what()).starts_with("schema")) << error.what();
    }
  };
  refused(R"({"not":{"type":"string"}})", "\"not\"");
  refused(R"({"type":"array","uniqueItems":true})", "\"uniqueItems\"");
  refused(R"({"type":"integer","multipleOf":3})", "\"multipleOf\"");
  refused(R"({"type":"object","patternProperties":{"a":{}}})", "\"patternProperties\"");
  refused(R"({"type":"object","properties":{"a":{"type":"array","contains":{}}}})", "/properties/a");
  refused(R"({"if":{},"then":{}})", "\"if\"");
  refused(R"({"allOf":[{"type":"object"},{"type":"object"}]})", "\"allOf\"");
  refused(R"({"type":"string","anyOf":[{"minLength":1}]})", "\"type\" beside \"anyOf\"");
  refused(R"({"type":"string","format":"iri"})", "iri");
  refused(R"({"type":"string","pattern":"(?=a)b"})", "look-ahead");
  refused(R"({"type":"string","pattern":"a\\b"})", "escape");
  refused(R"({"type":"string","pattern":"(a"})", "without )");
  refused(R"({"type":"string","pattern":"[a"})", "without ]");
  refused(R"({"type":"spring"})", "spring");
  refused(R"({"type":7})", "type");
  refused(R"({"$ref":"http://example.com"})", "example.com");
  refused(R"({"$ref":"#/nowhere"})", "nowhere");
  refused(R"({"type":"integer","minimum":5,"maximum":4})", "between");
  refused(R"({"type":"string","minLength":3,"maxLength":2})", "no string");
  refused(R"({"type":"array","minItems":1e9})", "minItems");
  refused(R"({"type":"array","minItems":-1})", "minItems");
  refused(R"({"enum":[]})", "enum");
  refused(R"({"type":"string","enum":[1,2]})", "enum");
  refused(R"({"type":"object","properties":{"a":false}})", "false");
  refused(R"({"type":"object","required":["a"],"additionalProperties":false})", "\"a\"");
}

// Determinising this pattern takes 2^15 states: what has grown so large does not stay when its request ends.
TEST(Grammar, TheCacheLetsGoOfWhatHasGrown) {
  const auto tokenizer = byte_tokenizer();
  GrammarCache cache(*tokenizer, tokenizer->size());
  const auto small = cache.get("small", [] { return compile(R"({"type":"boolean"})"); });
  auto grown =
      cache.get("grown", [] { return compile(R"({"type":"string","pattern":"^[ab]*a[ab]{14}$"})"); });
  GrammarAutomaton& automaton = grown->automaton();
  for (int word = 0; word < 1 << 14; ++word) {
    auto state = automaton.next(automaton.start(), '"');
    for (int bit = 0; bit < 14; ++bit) state = automaton.next(state, (word >> bit & 1) != 0 ? 'a' : 'b');
  }
  grown->allowed(automaton.start(), 100);  // counts the states
  EXPECT_GT(grown->states(), 10'000);
  const std::weak_ptr<MaskedGrammar> watch = std::exchange(grown, nullptr);
  EXPECT_FALSE(watch.expired());
  const auto other = cache.get("other", object_grammar);
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(cache.get("small", object_grammar), small);
  EXPECT_EQ(cache.get("other", object_grammar), other);
}

TEST(Grammar, SchemasThatNothingFiniteSatisfies) {
  EXPECT_THROW(compile(R"({"$ref":"#"})"), Error);
  EXPECT_THROW(compile(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"), Error);
  EXPECT_THROW(
      GrammarAutomaton(compile(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})")),
      Error);
  EXPECT_THROW(compile(R"({"type":"string","pattern":"((a{1000}){1000}){1000}"})"), Error);
}

}  // namespace
}  // namespace quatrain
