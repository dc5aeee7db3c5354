// What a killed, interrupted or full-disk run leaves: nothing under the final name, and a rerun works.
#include <gtest/gtest.h>

#include <csignal>

#include "base/json.h"
#include "program.h"

namespace quatrain {
namespace {

using Names = std::vector<std::string>;

// About 50 MB in BF16, or 2 MB.
void write_shape(const fs::path& file, bool large) {
  const int layers = large ? 10 : 2;
  const int hidden = large ? 512 : 256;
  write_file(file, Json({{"model_type", "llama"},
                         {"vocab_size", 512},
                         {"hidden_size", hidden},
                         {"intermediate_size", 2 * hidden},
                         {"num_hidden_layers", layers},
                         {"num_attention_heads", 8},
                         {"num_key_value_heads", 4}})
                       .dump());
}

class Writing : public testing::Test {
 protected:
  void SetUp() override {
    write_shape(folder_ / "shape.json", false);
    const ProgramEnd made = run_program({"synth", "--shape", path("shape.json"), "-o", path("model")});
    ASSERT_EQ(made.code, 0) << made.err;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Every verb that writes, and the name that it writes.
  std::vector<std::pair<std::string, Names>> writers() const {
    std::vector<std::pair<std::string, Names>> list = {
        {"s", {"synth", "--shape", path("shape.json"), "-o", path("s")}},
        {"c.gguf", {"convert", path("model"), "--to", "gguf", "-o", path("c.gguf")}},
        {"c", {"convert", path("model"), "--to", "safetensors", "-o", path("c")}},
        {"l.npy", {"logits", path("model"), "--ids", "1,2,3,4,5", "-o", path("l.npy")}},
    };
#ifdef QUATRAIN_HAVE_TORCH
    list.push_back({"q", {"quantize", path("model"), "--recipe", "rtn-g64", "-o", path("q"), "--no-check"}});
#endif
    return list;
  }

  fs::path folder_ = fresh_test_folder();
};

// A file that took the number of a closed stderr would hold the log.
TEST_F(Writing, ClosedStandardFilesAddNothingToWhatIsWritten) {
  const Names before = names_in(folder_);
  for (const auto& [name, arguments] : writers()) {
    if (name == "q") continue;  // its report holds seconds
    SCOPED_TRACE(name);
    ASSERT_EQ(run_program(arguments).code, 0);
    const uint64_t bytes = bytes_below(folder_ / name);
    fs::remove_all(folder_ / name);
    EXPECT_EQ(run_program(arguments, {.closed = {0, 2}}).code, 0);
    EXPECT_EQ(bytes_below(folder_ / name), bytes);
    fs::remove_all(folder_ / name);
    run_program(arguments,
                {.closed = {0, 1, 2}});  // what goes to stdout cannot be written: an error, or nothing did
    EXPECT_EQ(bytes_below(folder_ / name), bytes);
    fs::remove_all(folder_ / name);
  }
  EXPECT_EQ(names_in(folder_), before);
}

#ifdef QUATRAIN_HAVE_TORCH
TEST_F(Writing, WithoutTheQuantizerBesideItTheProgramSaysSo) {
  const fs::path alone = folder_ / "alone";
  fs::create_directory(alone);
  fs::copy_file(QUATRAIN_BINARY_DIR "/bin/quatrain", alone / "quatrain");
  const ProgramOptions options{.program = (alone / "quatrain").string()};
  const Names quantize = {"quantize", path("model"), "--recipe", "rtn-g64", "-o", path("q")};
  EXPECT_EQ(run_program({"inspect", path("model")}, options).code, 0);
  const auto refused = [&](const std::string& reason) {
    const ProgramEnd end = run_program(quantize, options);
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.err.find((alone / "quatrain-quantizer").string()), std::string::npos) << end.err;
    EXPECT_NE(end.err.find(reason), std::string::npos) << end.err;
    fs::remove_all(alone / "quatrain-quantizer");
  };
  refused("No such file");
  fs::create_directory(alone / "quatrain-quantizer");
  refused("Permission denied");
  fs::create_hard_link(alone / "quatrain", alone / "quatrain-quantizer");
  refused("is this program");

  ::setenv("QUATRAIN_QUANTIZER_STARTED", "0.0.0", 1);  // as a quatrain of another version leaves it
  const ProgramEnd end = run_program(quantize, {.program = QUATRAIN_BINARY_DIR "/bin/quatrain-quantizer"});
  ::unsetenv("QUATRAIN_QUANTIZER_STARTED");
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("of version 0.0.0"), std::string::npos) << end.err;
  EXPECT_FALSE(fs::exists(path("q")));
}
#endif

TEST_F(Writing, AFullDiskIsAnErrorAndLeavesNothing) {
  const Names before = names_in(folder_);
  for (const auto& [name, arguments] : writers())
    for (const int64_t limit : {int64_t{0}, int64_t{100}, int64_t{9'000}}) {
      SCOPED_TRACE(name + " at " + std::to_string(limit));
      const ProgramEnd end = run_program(arguments, {.file_limit = limit});
      EXPECT_EQ(end.code, 1) << end.signal;
      EXPECT_EQ(names_in(folder_), before) << end.err;
    }
  // stderr is a file here too, so the text is seen where the limit lets it through.
  const ProgramEnd end = run_program(writers().front().second, {.file_limit = 9'000});
  EXPECT_NE(end.err.find("File too large"), std::string::npos) << end.err;
}

TEST_F(Writing, AKilledRunLeavesNothingUnderTheFinalName) {
  write_shape(folder_ / "shape.json", true);
  const Names synth = {"synth", "--shape", path("shape.json"), "-o", path("s")};
  for (const int signal : {SIGKILL, SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    Program program(synth);
    ASSERT_TRUE(program.interrupt(signal, [&] { return bytes_below(folder_ / "s.partial") > 1'000'000; }));
    EXPECT_EQ(program.wait().signal, signal);
    EXPECT_FALSE(fs::exists(folder_ / "s"));
  }
  const ProgramEnd again = run_program(synth);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_FALSE(fs::exists(folder_ / "s.partial"));
  EXPECT_EQ(run_program({"inspect", path("s")}).code, 0);

  const Names convert = {"convert", path("s"), "--to", "gguf", "-o", path("c.gguf")};
  Program program(convert);
  ASSERT_TRUE(program.interrupt(SIGKILL, [&] { return bytes_below(folder_ / "c.gguf.tmp") > 100'000; }));
  program.wait();
  EXPECT_FALSE(fs::exists(folder_ / "c.gguf"));
  EXPECT_EQ(run_program(convert).code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "c.gguf.tmp"));
  EXPECT_EQ(run_program({"inspect", path("c.gguf")}).code, 0);
}

TEST_F(Writing, OfTwoRunsOneWritesAndTheOtherSaysSo) {
  write_shape(folder_ / "shape.json", true);
  const Names synth = {"synth", "--shape", path("shape.json"), "-o", path("s")};
  Program first(synth);
  while (!fs::exists(folder_ / "s.partial")) ASSERT_FALSE(fs::exists(folder_ / "s"));
  const ProgramEnd second = run_program(synth);
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find(path("s")), std::string::npos) << second.err;
  EXPECT_EQ(first.wait().code, 0);
  EXPECT_EQ(run_program({"inspect", path("s")}).code, 0);
}

TEST_F(Writing, WhatIsThereIsNotWrittenOver) {
  for (const auto& [name, arguments] : writers()) {
    if (name == "l.npy") continue;  // an array is replaced, as by any program that prints into a file
    SCOPED_TRACE(name);
    ASSERT_EQ(run_program(arguments).code, 0);
    const uint64_t bytes = bytes_below(folder_ / name);
    const ProgramEnd again = run_program(arguments);
    EXPECT_EQ(again.code, 1);
    EXPECT_NE(again.err.find("exists"), std::string::npos) << again.err;
    EXPECT_EQ(bytes_below(folder_ / name), bytes);
  }
}

}  // namespace
}  // namespace quatrain
