// A run that is killed at any moment continues from its journal and ends with the same bytes.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "quant/journal.h"
#include "quant/pipeline.h"
#include "support/shared.h"

extern char** environ;

namespace quatrain {
namespace {

constexpr const char* kChild = "QUATRAIN_RESUME_TEST_OUTPUT";
constexpr const char* kChildFields = "QUATRAIN_RESUME_TEST_FIELDS";  // of the recipe, spaces between

std::vector<std::vector<int32_t>> samples(uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::vector<int32_t>> all(5);
  for (std::vector<int32_t>& ids : all)
    for (int t = 0; t < 48; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  return all;
}

Json run(const fs::path& output, bool resume, int threads = 2, uint64_t seed = 9,
         std::vector<std::string> overrides = {}) {
  // Every stage that a run may have: a rotation that is measured, stored blocks, correction of the stream.
  for (const char* field :
       {"weights.stream=0.25", "transform.down=balanced-block", "transform.inputs=balanced-block",
        "transform.residual=top1-pca-offset", "refine.samples=0"})
    overrides.insert(overrides.begin(), field);
  QuantizeOptions options;
  options.threads = threads;
  options.resume = resume;
  options.samples = samples(seed);
  return quantize(*shared_dir() / "fixtures" / "tiny-models" / "llama-gqa",
                  load_recipe("quatrain", overrides), output, options);
}

std::map<std::string, std::string> hashes(const fs::path& directory) {
  std::map<std::string, std::string> all;
  for (const fs::directory_entry& file : fs::directory_iterator(directory))
    all[file.path().filename().string()] = sha256_hex(read_file(file.path()));
  return all;
}

// What the child process runs; alone it has nothing to do.
TEST(ResumeChild, Run) {
  const char* output = std::getenv(kChild);
  if (output == nullptr) GTEST_SKIP();
  const char* fields = std::getenv(kChildFields);
  std::istringstream text(fields == nullptr ? "" : fields);
  run(output, true, 2, 9, {std::istream_iterator<std::string>(text), {}});
}

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    if (!shared_dir()) GTEST_SKIP();
    directory_ =
        fs::path(testing::TempDir()) /
        (std::string("quatrain_resume_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path journal() const { return Journal::path_of(directory_ / "out"); }
  bool finished(int64_t layers) const {
    return layers == 0 || fs::exists(journal() / (Journal::layer_name(layers - 1) + ".entry"));
  }

  // Starts a run and kills it `pause` after the journal holds `layers` layers. False when it ended before.
  bool killed(int64_t layers, std::chrono::microseconds pause, const char* fields = nullptr) {
    ::setenv(kChild, (directory_ / "out").c_str(), 1);
    if (fields != nullptr) ::setenv(kChildFields, fields, 1);
    std::string program = fs::read_symlink("/proc/self/exe").string(),
                filter = "--gtest_filter=ResumeChild.Run";
    char* arguments[] = {program.data(), filter.data(), nullptr};
    pid_t child = 0;
    EXPECT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ), 0);
    ::unsetenv(kChild);
    ::unsetenv(kChildFields);
    int status = 0;
    while (!finished(layers)) {
      if (::waitpid(child, &status, WNOHANG) == child) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    std::this_thread::sleep_for(pause);
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status);
  }

  fs::path directory_;
};

// Kills before the first layer, right behind a layer, and at random moments around them.
TEST_F(Resume, EndsWithTheBytesOfAWholeRun) {
  run(directory_ / "whole", false);
  SplitMix64 random(11);
  int kills = 0;
  for (const int64_t layers : {0, 1, 1, 1}) {
    const auto pause = std::chrono::microseconds(kills < 2 ? 0 : random.below(20000));
    if (fs::exists(directory_ / "out") || !killed(layers, pause)) break;
    ++kills;
  }
  EXPECT_GE(kills, 2);
  if (!fs::exists(directory_ / "out")) run(directory_ / "out", true);
  EXPECT_EQ(hashes(directory_ / "out"), hashes(directory_ / "whole"));
  EXPECT_FALSE(fs::exists(journal()));
  EXPECT_FALSE(fs::exists(directory_ / "out.partial"));
}

// What a plan chose is not measured again.
TEST_F(Resume, GoesOnWithItsPlan) {
  const char* plan = "plan.max_slowdown=1.3";
  run(directory_ / "whole", false, 2, 9, {plan});
  ASSERT_TRUE(killed(1, std::chrono::microseconds(0), plan));
  EXPECT_THROW(run(directory_ / "out", true, 2, 9, {"plan.max_slowdown=1.2"}), Error);
  const Json report = run(directory_ / "out", true, 1, 9, {plan});
  EXPECT_GT(report["plan"]["bought"]["residual_blocks"].get<size_t>(), 0u);
  EXPECT_EQ(hashes(directory_ / "out"), hashes(directory_ / "whole"));
}

// So are the transforms that it chose, layer by layer.
TEST_F(Resume, GoesOnWithThePlansTransforms) {
  const std::vector<std::string> fields = {"plan.max_slowdown=1.3", "plan.transforms=true"};
  run(directory_ / "whole", false, 2, 9, fields);
  ASSERT_TRUE(killed(1, std::chrono::microseconds(0), "plan.max_slowdown=1.3 plan.transforms=true"));
  const Json report = run(directory_ / "out", true, 1, 9, fields);
  EXPECT_EQ(report["plan"]["sites"].size(), 9u);
  EXPECT_EQ(hashes(directory_ / "out"), hashes(directory_ / "whole"));
}

// As where writing the streams was put off: the run goes on behind the last layer that has them.
TEST_F(Resume, GoesOnFromTheStreamsThatAreThere) {
  run(directory_ / "whole", false);
  ASSERT_TRUE(killed(2, std::chrono::microseconds(0)));
  for (const char* streams : {"streams-00000.entry", "streams-00001.entry"}) fs::remove(journal() / streams);
  run(directory_ / "out", true);
  EXPECT_EQ(hashes(directory_ / "out"), hashes(directory_ / "whole"));
}

TEST_F(Resume, RefusesTheJournalOfAnotherRun) {
  ASSERT_TRUE(killed(1, std::chrono::microseconds(0)));
  const auto message = [&](auto body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const fs::path out = directory_ / "out";
  EXPECT_NE(message([&] { run(out, false); }).find("--resume"), std::string::npos);
  const std::string recipe = message([&] { run(out, true, 2, 9, {"weights.target=0.5"}); });
  EXPECT_NE(recipe.find("target = 0.25"), std::string::npos) << recipe;
  EXPECT_NE(recipe.find("target = 0.5"), std::string::npos) << recipe;
  EXPECT_NE(message([&] { run(out, true, 2, 10); }).find("samples"), std::string::npos);
  ASSERT_TRUE(fs::exists(journal() / "layer-00000.entry"));  // all refusals leave it as it was
  run(out, true, 1);
  EXPECT_TRUE(fs::exists(out / "config.json"));
}

TEST_F(Resume, RefinementGoesOnFromTheUnrefinedArtifact) {
  const std::vector<std::string> refined = {"refine.samples=3", "refine.length=24"};
  run(directory_ / "whole", false, 1, 9, refined);
  run(directory_ / "out.unrefined", false, 1, 9,
      {"refine.samples=0"});  // what a run leaves that is killed while it refines
  EXPECT_THROW(run(directory_ / "out", false, 1, 9, refined), Error);
  try {
    run(directory_ / "out", true, 1, 9, {"refine.samples=3", "weights.target=0.5"});
    ADD_FAILURE();
  } catch (const Error& error) {  // says what differs
    for (const char* part : {"out.unrefined", "target = 0.25", "target = 0.5"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  run(directory_ / "out", true, 1, 9, refined);
  EXPECT_EQ(hashes(directory_ / "out"), hashes(directory_ / "whole"));
  EXPECT_FALSE(fs::exists(directory_ / "out.unrefined"));
}

// Killed between the last rename and the removal of what the run worked in.
TEST_F(Resume, AFinishedArtifactOnlyLosesItsLeftovers) {
  const std::vector<std::string> refined = {"refine.samples=3", "refine.length=24"};
  const fs::path out = directory_ / "out";
  run(out, false, 1, 9, refined);
  const auto whole = hashes(out);
  run(directory_ / "out.unrefined", false, 1, 9, {"refine.samples=0"});
  for (const char* left : {"out.journal", "out.unrefined.journal"}) {
    fs::create_directories(directory_ / left);
    write_file(directory_ / left / "run.json", "{}");
  }
  EXPECT_THROW(run(out, false, 1, 9, refined), Error);  // as ever without --resume
  try {
    run(out, true, 1, 9, {"refine.samples=3", "refine.length=25"});
    ADD_FAILURE() << "the artifact of another recipe was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("length = 24"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("length = 25"), std::string::npos) << error.what();
  }
  const Json report = run(out, true, 1, 9, refined);
  EXPECT_TRUE(report.contains("refine"));
  EXPECT_EQ(hashes(out), whole);
  for (const char* left : {"out.journal", "out.unrefined.journal", "out.unrefined"})
    EXPECT_FALSE(fs::exists(directory_ / left)) << left;
  const fs::path shard = out / "model-00001-of-00001.safetensors";
  std::string flipped = read_file(shard);
  flipped.back() ^= 1;
  write_file(shard, flipped);
  EXPECT_THROW(run(out, true, 1, 9, refined), Error);
  fs::resize_file(shard, fs::file_size(shard) - 1);
  EXPECT_THROW(run(out, true, 1, 9, refined), Error);
  fs::remove(shard);
  EXPECT_THROW(run(out, true, 1, 9, refined), Error);
}

TEST_F(Resume, AFinishedArtifactWithoutOneOfItsFilesIsDamaged) {
  const fs::path out = directory_ / "out";
  const auto resume = [&] {
    QuantizeOptions options;
    options.resume = true;
    return quantize(*shared_dir() / "data" / "models" / "stories260K" / "stories260K.bin",
                    load_recipe("rtn-g64", {}), out, options);
  };
  resume();
  resume();
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "model.safetensors.index.json"}) {
    fs::rename(out / file, directory_ / "aside");
    try {
      resume();
      ADD_FAILURE() << file;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
    }
    fs::rename(directory_ / "aside", out / file);
  }
  resume();
}

TEST_F(Resume, ThreadsDoNotChangeTheBytes) {
  run(directory_ / "one", false, 1);
  run(directory_ / "three", false, 3);
  EXPECT_EQ(hashes(directory_ / "one"), hashes(directory_ / "three"));
}

TEST_F(Resume, JournalKeepsEntriesAndRefusesDamage) {
  const fs::path output = directory_ / "out/";
  EXPECT_EQ(Journal::path_of(output), directory_ / "out.journal");
  const std::vector<float> values{1, 2.5f, -3};
  {
    Journal journal(output, {{"model", "a"}}, false);
    journal.write(Journal::layer_name(0), {{"loss", 0.1}},
                  {{"x", std::as_bytes(std::span(values))}, {"empty", {}}});
    EXPECT_EQ(journal.layers(), 1);
  }
  const Journal again(output, {{"model", "a"}}, true);
  const std::optional<JournalEntry> entry = again.find(Journal::layer_name(0));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->facts()["loss"], 0.1);
  EXPECT_EQ(entry->values<float>("x"), values);
  EXPECT_TRUE(entry->values<float>("empty").empty());
  EXPECT_THROW(entry->values<float>("y"), Error);
  EXPECT_THROW(Journal(output, {{"model", "b"}}, true), Error);
  const fs::path file = directory_ / "out.journal" / (Journal::layer_name(0) + ".entry");
  const std::string bytes = read_file(file);
  for (const size_t size : {size_t{0}, size_t{10}, size_t{40}, bytes.size() - 1}) {
    write_file(file, bytes.substr(0, size));
    EXPECT_THROW(again.find(Journal::layer_name(0)), Error) << size;
  }
  for (const size_t at : {bytes.find("0.1"), bytes.size() - 9, bytes.size() - 1}) {
    std::string flipped = bytes;
    flipped[at] ^= 1;
    write_file(file, flipped);
    EXPECT_THROW(again.find(Journal::layer_name(0)), Error) << at;
  }
}

TEST_F(Resume, CalibrationStaysWithinTheContext) {
  const fs::path out = directory_ / "out";
  QuantizeOptions options;
  quantize(*shared_dir() / "data" / "models" / "stories260K" / "stories260K.bin",
           load_recipe("gptq", {"calibration.samples=1"}), out, options);
  EXPECT_EQ(load_recipe((out / "recipe.toml").string(), {}).calibration.length, 512);
}

TEST_F(Resume, ADirectoryOfTheJournalsNameIsNotEmptied) {
  fs::create_directories(directory_ / "out.journal");
  write_file(directory_ / "out.journal" / "diary.txt", "dear");
  EXPECT_THROW(run(directory_ / "out", false), Error);
  EXPECT_EQ(read_file(directory_ / "out.journal" / "diary.txt"), "dear");
}

}  // namespace
}  // namespace quatrain
