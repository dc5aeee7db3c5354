#include "quant/sample_work.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quatrain {
namespace {

TEST(SampleWork, SumsAreTakenInTheOrderOfTheSamples) {
  ThreadPool pool(4);
  const SampleWork work(pool, {});
  std::vector<size_t> order;
  work.each(200, [&](size_t s, const InOrder& in_order) {
    if (s % 7 != 3) in_order([&] { order.push_back(s); });  // a sample may have nothing to add
  });
  std::vector<size_t> expected;
  for (size_t s = 0; s < 200; ++s)
    if (s % 7 != 3) expected.push_back(s);
  EXPECT_EQ(order, expected);
}

TEST(SampleWork, AFailureEndsTheLoop) {
  ThreadPool pool(3);
  const SampleWork work(pool, {});
  EXPECT_THROW(work.each(50,
                         [&](size_t s, const InOrder& in_order) {
                           require(s != 5, "sample 5");
                           in_order([] {});
                         }),
               Error);
}

TEST(SampleWork, RowsKeepTheirValuesWhereverTheyLie) {
  ThreadPool pool(2);
  const fs::path folder = fs::path(testing::TempDir()) / "quatrain_sample_rows";
  fs::create_directories(folder);
  const SampleWork work(pool, folder);
  // 3 samples of 1001 tokens, 12 MiB together and then 47 MiB: in memory, and in a file.
  for (const int64_t width : {1024, 4096}) {
    const std::vector<torch::Tensor> like(3, torch::empty({1001, 0}));
    std::vector<torch::Tensor> rows = work.rows(like, width);
    ASSERT_EQ(rows.size(), 3u);
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(rows[s].sizes(), torch::IntArrayRef({1001, width}));
      rows[s].fill_(static_cast<double>(s + 1));
      SampleWork::rest(rows[s]);
    }
    for (size_t s = 0; s < 3; ++s) EXPECT_TRUE((rows[s] == static_cast<double>(s + 1)).all().item<bool>());
    EXPECT_TRUE(fs::is_empty(folder));  // the file has no name
  }
  EXPECT_THROW(SampleWork(pool, folder / "missing").rows({torch::empty({9000, 0})}, 1024), Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace quatrain
