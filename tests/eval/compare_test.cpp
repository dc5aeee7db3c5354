// Comparisons over a tiny trained model: rows that are kept, and rows that are made again.
#include "eval/compare.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "support/shared.h"

namespace quatrain {
namespace {

class Compare : public testing::Test {
 protected:
  void SetUp() override {
    const auto shared = shared_dir();
    if (!shared) GTEST_SKIP() << "no shared fixtures";
    folder_ = fs::temp_directory_path() / fmt::format("quatrain-compare-{}", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "qa");
    const std::string tale = "Once upon a time there was a little dog. He liked to play in the park. ";
    std::string text;
    for (int i = 0; i < 20; ++i) text += tale;
    write_file(folder_ / "tale.txt", text);
    write_file(folder_ / "qa/arc_easy.jsonl.gz",
               R"({"query": "Question: Who played?", "choices": ["the dog", "a stone"], "gold": 0})"
               "\n");
    options_.model = *shared / "data/models/stories260K/stories260K.bin";
    options_.protocols = {Protocol::parse("token-ppl@64")};
    options_.texts = {(folder_ / "tale.txt").string()};
    options_.windows = 2;
    options_.task_options.data = folder_ / "qa";
    options_.jump_ratio = false;
    options_.program = "test";
  }
  void TearDown() override { fs::remove_all(folder_); }

  Comparison run() { return compare(options_, folder_ / "out"); }
  /// Puts a figure that nobody measured into a kept row.
  void mark(const std::string& row) {
    const fs::path file = folder_ / "out/rows" / (row + ".json");
    Json kept = read_json(file);
    kept["perplexities"][0]["value"] = 4242;
    write_file(file, kept.dump());
  }

  fs::path folder_;
  CompareOptions options_;
};

TEST_F(Compare, KeepsARowWhileNothingChanged) {
  const double measured = run().rows[0].perplexities[0].value;
  EXPECT_GT(measured, 1);
  mark("16-bit");
  EXPECT_EQ(run().rows[0].perplexities[0].value, 4242);
  options_.windows = 1;
  EXPECT_NE(run().rows[0].perplexities[0].value, 4242);
  mark("16-bit");
  write_file(folder_ / "tale.txt", std::string(3000, 'a') + ".");
  EXPECT_NE(run().rows[0].perplexities[0].value, 4242);
  mark("16-bit");
  options_.program = "another";
  EXPECT_NE(run().rows[0].perplexities[0].value, 4242);
  write_file(folder_ / "out/rows/16-bit.json", "{\"key\"");
  EXPECT_GT(run().rows[0].perplexities[0].value, 1);
}

TEST_F(Compare, TasksAreFiguresOfTheirOwn) {
  options_.tasks = {"arc_easy"};
  const Comparison comparison = run();
  ASSERT_EQ(comparison.rows[0].tasks.size(), 1u);
  EXPECT_EQ(comparison.rows[0].tasks[0].name, "arc_easy acc");
  write_comparison(comparison, folder_ / "out");
  EXPECT_EQ(read_json(folder_ / "out/comparison.json")["rows"].size(), 1u);
  EXPECT_NE(read_file(folder_ / "out/report.html").find("arc_easy"), std::string::npos);
  options_.tasks = {"arc"};
  EXPECT_THROW(run(), UsageError);
}

#ifdef QUATRAIN_HAVE_TORCH
TEST_F(Compare, ARefusalLeavesNoFolder) {
  options_.recipes = {"no-such-recipe"};
  EXPECT_THROW(compare(options_, folder_ / "refused"), Error);
  EXPECT_FALSE(fs::exists(folder_ / "refused"));
}

TEST_F(Compare, RecipesAreQuantisedOnce) {
  options_.recipes = {"rtn", "w8a8"};
  const Comparison first = run();
  ASSERT_EQ(first.rows.size(), 3u);
  EXPECT_LT(first.rows[1].bits_per_weight, first.rows[2].bits_per_weight);
  EXPECT_EQ(first.rows[1].weight_errors.size(), 5u);
  const fs::path config = folder_ / "out/artifacts/rtn/config.json";
  const auto made = fs::last_write_time(config);
  options_.windows = 1;  // measured again, not quantised again
  run();
  EXPECT_EQ(fs::last_write_time(config), made);
  // A run that died between artifact and row: the row is made again.
  fs::remove(folder_ / "out/rows/rtn.json");
  fs::remove(folder_ / "out/artifacts/rtn.json");
  EXPECT_EQ(run().rows[1].name, "rtn");
  EXPECT_NE(fs::last_write_time(config), made);
  // So is an artifact that lost a part.
  fs::remove(folder_ / "out/rows/rtn.json");
  fs::resize_file(folder_ / "out/artifacts/rtn/model-00001-of-00001.safetensors", 100);
  EXPECT_EQ(run().rows[1].name, "rtn");
  // And one whose data are not what was written.
  fs::remove(folder_ / "out/rows/rtn.json");
  const fs::path shard = folder_ / "out/artifacts/rtn/model-00001-of-00001.safetensors";
  const std::string whole = read_file(shard);
  std::string flipped = whole;
  flipped.back() ^= 1;
  write_file(shard, flipped);
  EXPECT_EQ(run().rows[1].name, "rtn");
  EXPECT_EQ(read_file(shard), whole);

  options_.windows = 2;
  const std::string artifact = (folder_ / "out/artifacts/w8a8").string();
  options_.recipes = {artifact};
  EXPECT_EQ(run().rows[1].perplexities[0].value, first.rows[2].perplexities[0].value);
  options_.recipes = {"rtn", "rtn"};
  EXPECT_THROW(run(), UsageError);
  options_.recipes = {"no-such-recipe"};
  EXPECT_THROW(run(), Error);
  // Not enough memory for one recipe: the other has its row.
  options_.recipes = {"rtn", "rtn-g64"};
  options_.max_ram = 1;
  const Comparison partial = run();
  ASSERT_EQ(partial.failures.size(), 1u);  // rtn is there already
  EXPECT_EQ(partial.failures[0].first, "rtn-g64");
  EXPECT_EQ(partial.rows.size(), 2u);
}
#else
TEST_F(Compare, RecipesNeedLibtorch) {
  options_.recipes = {"rtn"};
  EXPECT_THROW(run(), Error);
}
#endif

}  // namespace
}  // namespace quatrain
