// Engine and reference on a real trained model, for every shipped recipe that needs no calibration: the
// perplexities of a long text agree within half a per cent.
#include "eval/agreement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/perplexity.h"
#include "model/checkpoint.h"
#include "support/shared.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/pipeline.h"
#endif

namespace quatrain {
namespace {

TEST(Agreement, PassesNoiseAndFailsAShift) {
  Agreement agreement;
  agreement.native_loss = 3.1;
  agreement.reference_loss = 3.0;
  agreement.noise = 0.05;
  EXPECT_TRUE(agreement.passes());
  agreement.noise = 0.01;
  EXPECT_FALSE(agreement.passes());
  agreement.noise = NAN;
  EXPECT_FALSE(agreement.passes());
}

#ifdef QUATRAIN_HAVE_TORCH
class RecipeAgreement : public testing::TestWithParam<const char*> {};

TEST_P(RecipeAgreement, PerplexityOfEngineAndReference) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const fs::path model = *shared / "data/models/stories260K/stories260K.bin";
  const fs::path artifact = fs::path(testing::TempDir()) / (std::string("agreement-") + GetParam());
  fs::remove_all(artifact);
  quantize(model, load_recipe(GetParam()), artifact, {});
  const Corpus corpus = load_corpus((*shared / "data/text/tinystories/tinystories_val.txt.gz").string());
  const auto tokenizer = load_model_tokenizer(artifact);
  const Protocol protocol = Protocol::parse("token-ppl@512");
  constexpr int64_t kWindows = 384;
  const auto native = make_scorer(artifact, {"native", {.threads = 2}});
  const auto reference = make_scorer(artifact, {"reference", {.threads = 1}});
  // Code flips move a window's perplexity by some per cent; over this many they cancel to about 0.2 %
  const PerplexityResult ours = perplexity(*native, *tokenizer, corpus, protocol, kWindows);
  const PerplexityResult theirs = perplexity(*reference, *tokenizer, corpus, protocol, kWindows);
  EXPECT_NEAR(ours.value / theirs.value, 1.0, 0.005) << ours.value << " against " << theirs.value;
  fs::remove_all(artifact);
}

INSTANTIATE_TEST_SUITE_P(Recipes, RecipeAgreement, testing::Values("rtn", "rtn-g64", "w4a8kv4-rtn", "w8a8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });
#endif

}  // namespace
}  // namespace quatrain
