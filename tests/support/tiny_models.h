// Tests over the tiny models of the shared fixtures: a scratch folder of the test's own, skipped without
// fixtures.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "support/logits.h"
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

}  // namespace quatrain
