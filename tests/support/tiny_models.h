// Tests over the tiny models of the shared fixtures: a scratch folder of the test's own, skipped without
// fixtures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "base/file.h"
#include "support/shared.h"

namespace quatrain {

class TinyModels : public testing::Test {
 protected:
  void SetUp() override {
    const auto shared = shared_dir();
    if (!shared) GTEST_SKIP() << "no shared fixtures";
    models_ = *shared / "fixtures" / "tiny-models";
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(testing::TempDir()) /
                 (std::string("quatrain_") + test->test_suite_name() + "_" + test->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path models_, directory_;
};

/// rms(a - b) / rms(b)
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, power = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    power += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / power);
}

}  // namespace quatrain
