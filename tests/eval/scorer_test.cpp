#include "eval/scorer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quatrain {
namespace {

TEST(Scorer, TheReferenceTakesNoUnquantisedTokens) {
  ScorerOptions options{.engine = "reference", .native = {}};
  options.native.kv_sink = 4;
  EXPECT_THROW(make_scorer("no model is looked at", options), UsageError);
  options.native.kv_sink = 0;
  options.native.kv_recent = 1;
  EXPECT_THROW(make_scorer("no model is looked at", options), UsageError);
}

}  // namespace
}  // namespace quatrain
