// Wrong flags end with 2, wrong files with 1, both with a text that names what was wrong; odd input and odd
// surroundings are no reason to crash.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/json.h"
#include "program.h"
#include "support/shared.h"

namespace quatrain {
namespace {

struct Case {
  std::vector<std::string> arguments;
  std::string said;
};

void expect_ends(const std::vector<Case>& cases, int code) {
  for (const Case& item : cases) {
    const ProgramEnd end = run_program(item.arguments);
    std::string line;
    for (const std::string& argument : item.arguments) line += argument + " ";
    EXPECT_EQ(end.code, code) << line << "\n" << end.err;
    EXPECT_NE((end.err + end.out).find(item.said), std::string::npos) << line << "\n" << end.err << end.out;
  }
}

TEST(Usage, WrongFlagsEndWithTwo) {
  expect_ends(
      {
          {{}, "subcommand"},
          {{"frobnicate"}, "frobnicate"},
          {{"run"}, "model"},
          {{"run", "m", "--threads", "0"}, "--threads"},
          {{"run", "m", "-p", "x", "--max-tokens", "99999999999999999999"}, "--max-tokens"},
          {{"run", "m", "-p", "x", "--temperature", "nan"}, "temperature"},
          {{"run", "m", "-p", "x", "--top-p", "1.5"}, "top_p"},
          {{"run", "m", "-p", "x", "--seed", "-1"}, "--seed"},
          {{"run", "m", "--context", "0"}, "--context"},
          {{"run", "m", "--json"}, "-p"},
          {{"run", "m", "--device", "tpu"}, "tpu"},
          {{"quantize", "m", "--device", "tpu", "-o", "x"}, "tpu"},
          {{"compare", "m", "--device", "cuda:x", "--recipes", "rtn", "-o", "x"}, "cuda:x"},
          {{"eval", "m", "--windows", "-1"}, "--windows"},
          {{"eval", "m", "--windows", "1e3"}, "--windows"},
          {{"eval", "m", "--protocol", "ppl"}, "token-ppl@2048"},
          {{"eval", "m", "--protocol", "token-ppl@1e9"}, "token-ppl@1e9"},
          {{"eval", "m", "--engine", "magic"}, "magic"},
          {{"logits", "m", "--ids", "1,", "-o", "x"}, "--ids"},
          {{"logits", "m", "--ids", "1", "--engine", "reference", "--kv-sink", "1", "-o", "x"}, "--kv-sink"},
          {{"logits", "m", "--ids", "", "-o", "x"}, "--ids"},
          {{"logits", "m", "--ids", "1,,2", "-o", "x"}, "--ids"},
          {{"detokenize", "m", "--ids", "-1"}, "--ids"},
          {{"detokenize", "m", "--ids", "99999999999"}, "--ids"},
          {{"tokenize", "m", "--text", "a", "--file", "b"}, "--file"},
          {{"convert", "m", "--to", "onnx", "-o", "x"}, "onnx"},
          {{"run", "m", "-p", "x", "--stop", ""}, "--stop"},
          {{"synth", "--shape", "llama3-8b"}, "--dry-run"},
          {{"synth", "--shape", "llama3-8b", "--dry-run", "-o", "x"}, "--dry-run"},
          {{"synth", "--shape", "llama3-8b", "--dry-run", "--recipe", "rtn"}, "--dry-run"},
      },
      2);
}

TEST(Usage, FilesThatAreNoModelsEndWithOne) {
  const fs::path folder = fresh_test_folder();
  write_file(folder / "empty", "");
  write_file(folder / "text", "no model\n");
  fs::create_directory(folder / "directory");
  const auto path = [&](const char* name) { return (folder / name).string(); };
  std::vector<Case> cases;
  for (const char* verb : {"inspect", "run", "tokenize"})
    for (const char* name : {"empty", "text", "directory", "missing"}) {
      Case item{{verb, path(name)}, path(name)};
      if (std::string(verb) == "run") item.arguments.insert(item.arguments.end(), {"-p", "x"});
      if (std::string(verb) == "tokenize") item.arguments.insert(item.arguments.end(), {"--text", "x"});
      cases.push_back(item);
    }
  cases.push_back({{"synth", "--shape", path("directory"), "-o", path("out")}, path("directory")});
  cases.push_back({{"synth", "--shape", path("text"), "-o", path("out")}, path("text")});
  expect_ends(cases, 1);
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Usage, LinksInACircleAndControlBytesAreTold) {
  const fs::path folder = fresh_test_folder();
  fs::create_directory_symlink(folder / "b", folder / "a");
  fs::create_directory_symlink(folder / "a", folder / "b");
  const ProgramEnd circle = run_program({"inspect", (folder / "a").string()});
  EXPECT_EQ(circle.code, 1);
  EXPECT_TRUE(circle.err.starts_with("error: " + (folder / "a").string())) << circle.err;
  const ProgramEnd named = run_program({"inspect", (folder / "x\x1b[31m").string()});
  EXPECT_EQ(named.code, 1);
  EXPECT_NE(named.err.find("x\\x1b[31m"), std::string::npos) << named.err;
}

// A published shape is told without writing it.
TEST(Usage, ADryRunPrintsTheShape) {
  const ProgramEnd told = run_program({"synth", "--shape", "llama3-8b", "--dry-run", "--json"});
  EXPECT_EQ(told.code, 0) << told.err;
  const Json report = Json::parse(told.out);
  EXPECT_EQ(report["parameters"], 8'030'261'248);
  EXPECT_EQ(report["bytes"], 16'060'522'496);
  EXPECT_EQ(report["layers"].size(), 32u);
}

class TinyModel : public testing::Test {
 protected:
  void SetUp() override {
    const auto shared = shared_dir();
    if (!shared) GTEST_SKIP() << "no shared fixtures";
    model_ = (*shared / "data/models/stories260K/stories260K.bin").string();
  }
  std::string model_;
};

TEST_F(TinyModel, ChatEndsWithTheInput) {
  for (const char* input : {"", "\n\n", "/help\n/clear\n/nosuch\n/quit\n", "/help"}) {
    const ProgramEnd end = run_program({"run", model_, "--max-tokens", "4"}, {.input = input});
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_EQ(end.out, "");
  }
  const ProgramEnd told = run_program({"run", model_, "--max-tokens", "4"}, {.input = "Once\nTwo"});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(std::count(told.out.begin(), told.out.end(), '\n'), 2) << told.out;
}

TEST_F(TinyModel, AnyBytesAreText) {
  const std::string bytes = "\xff\xfe\x80 \xc3(";
  EXPECT_EQ(run_program({"run", model_, "-p", bytes, "--max-tokens", "4"}).code, 0);
  EXPECT_EQ(run_program({"run", model_, "--max-tokens", "4"}, {.input = bytes + "\n"}).code, 0);
  // JSON is UTF-8 whatever the model says.
  const ProgramEnd json = run_program({"run", model_, "-p", bytes, "--max-tokens", "4", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_TRUE(parse_json(json.out, "stdout").contains("text"));
}

TEST_F(TinyModel, AnswersThatCannotBePrintedAreErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"inspect", model_},
                                             {"inspect", model_, "--json"},
                                             {"tokenize", model_, "--text", "x"},
                                             {"run", model_, "-p", "x", "--max-tokens", "4"}}) {
    const ProgramEnd end = run_program(arguments, {.output = "/dev/full"});
    EXPECT_EQ(end.code, 1) << arguments[0];
    EXPECT_NE(end.err.find("stdout"), std::string::npos) << end.err;
  }
}

// A pipe whose writer never comes, and a device that never ends, wherever a file belongs.
TEST_F(TinyModel, PipesAndDevicesAreRefusedAtOnce) {
  const fs::path folder = fresh_test_folder();
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  for (const char* name : {"config", "weights", "tokenizer"}) fs::create_directory(folder / name);
  for (const char* name : {"pipe", "pipe.gguf", "pipe.toml", "config/config.json",
                           "weights/model.safetensors", "tokenizer/tokenizer.json"})
    ASSERT_EQ(mkfifo(path(name).c_str(), 0600), 0);
  write_file(folder / "weights/config.json", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 32})");
  std::vector<Case> cases = {
      {{"inspect", path("pipe")}, path("pipe")},
      {{"inspect", path("pipe.gguf")}, path("pipe.gguf")},
      {{"inspect", "/dev/zero"}, "/dev/zero"},
      {{"inspect", path("config")}, path("config/config.json")},
      {{"inspect", path("weights")}, path("weights/model.safetensors")},
      {{"tokenize", path("tokenizer"), "--text", "x"}, "tokenizer.json"},
      {{"tokenize", path("pipe"), "--text", "x"}, path("pipe")},
      {{"tokenize", model_, "--file", path("pipe")}, path("pipe")},
      {{"synth", "--shape", path("pipe"), "-o", path("out")}, path("pipe")},
      {{"eval", model_, "--protocol", "token-ppl@128", "--text", path("pipe")}, path("pipe")},
      {{"eval", model_, "--protocol", "token-ppl@128", "--text", "/dev/zero"}, "/dev/zero"}};
#ifdef QUATRAIN_HAVE_TORCH
  cases.push_back(
      {{"quantize", model_, "--recipe", path("pipe.toml"), "-o", path("out")}, path("pipe.toml")});
#endif
  expect_ends(cases, 1);
}

// Whatever fails once a model runs: of several models, the text says which.
TEST_F(TinyModel, ErrorsAtRunTimeNameTheModel) {
  const fs::path folder = fresh_test_folder();
  std::string bytes = read_file(model_);
  const float huge = 3e38f;
  // Behind 7 words of header the embedding, 64 values a token; 1 is BOS.
  for (size_t i = 0; i < 64; ++i) std::memcpy(bytes.data() + 4 * (7 + 64 + i), &huge, sizeof huge);
  const std::string broken = (folder / "stories260K.bin").string(), npy = (folder / "x.npy").string();
  write_file(broken, bytes);
  fs::copy(fs::path(model_).replace_filename("tok512.bin"), folder / "tok512.bin");
  std::string many = "0", words;
  for (int i = 0; i < 600; ++i) many += ",5", words += "sea ";
  expect_ends({{{"logits", broken, "--ids", "1,2", "-o", npy}, broken + ": embedding: the hidden state"},
               {{"run", broken, "-p", "Once"}, broken + ": embedding: the hidden state"},
               {{"bench", broken, "--rounds", "1"}, broken},
               {{"eval", model_, broken, "--protocol", "token-ppl@128", "--windows", "1"},
                broken + ": embedding: the hidden state"},
               {{"eval", model_, "--protocol", "token-ppl@2048"}, model_ + ": token-ppl@2048"},
               {{"logits", model_, "--ids", many, "-o", npy}, model_ + ": sequence"},
               {{"logits", model_, "--ids", "512", "-o", npy}, model_ + ": --ids: 512"},
               {{"detokenize", model_, "--ids", "512"}, model_ + ": --ids: 512"},
               {{"run", model_, "-p", words}, model_ + ": the conversation has"},
               {{"run", model_, "-p", "x", "--context", "513"}, model_}},
              1);
}

TEST_F(TinyModel, TextsThatAreTooShortAreErrors) {
  const fs::path folder = fresh_test_folder();
  write_file(folder / "empty", "");
  write_file(folder / "short", "Once upon a time.\n");
  const auto eval = [&](const std::string& protocol, const std::string& text) {
    return std::vector<std::string>{"eval",   model_,   "--protocol",
                                    protocol, "--text", (folder / text).string()};
  };
  expect_ends({{eval("token-ppl@128", "empty"), "empty"},
               {eval("token-ppl@128", "short"), "128"},
               {eval("word-ppl@128", "empty"), "empty"},
               {eval("token-ppl@2048", "short"), "context of 512"},
               {eval("token-ppl@128", "missing"), "missing"}},
              1);
}

}  // namespace
}  // namespace quatrain
