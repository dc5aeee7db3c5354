// Recipes of one comparison share the rotation of the residual stream, and nothing else.
#include "quant/transforms/kept_rotation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/checkpoint.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

class KeptRotation : public TinyModels {
 protected:
  torch::Tensor rotation(const std::string& recipe, const std::string& samples = "s",
                         const std::vector<std::string>& overrides = {}) {
    const c10::InferenceMode inference;
    const std::shared_ptr<const Checkpoint> checkpoint = open_checkpoint(models_ / "llama-gqa");
    notes_.clear();
    return kept_stream_rotation(directory_ / "kept", "m", samples, checkpoint, load_recipe(recipe, overrides),
                                {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 8, 7, 6, 5, 4, 3, 2}}, notes_, SampleWork());
  }
  int64_t files() const {
    std::error_code error;
    return std::distance(fs::directory_iterator(directory_ / "kept", error), fs::directory_iterator());
  }
  std::vector<std::string> notes_;
};

TEST_F(KeptRotation, IsThatOfItsRecipeAndSamples) {
  const torch::Tensor first = rotation("offq");
  const std::vector<std::string> notes = notes_;
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(rotation("offq-rtn").equal(first));
  EXPECT_EQ(notes_, notes);
  EXPECT_EQ(files(), 1);
  EXPECT_FALSE(rotation("offq", "s", {"seed=1"}).equal(first));
  EXPECT_FALSE(rotation("offq", "s", {"transform.residual_group=16"}).equal(first));
  rotation("offq", "other samples");
  EXPECT_EQ(files(), 4);
  rotation("quarot");  // a Hadamard needs no pass over the model
  EXPECT_EQ(files(), 4);
}

TEST_F(KeptRotation, DamageIsMadeAgain) {
  const torch::Tensor first = rotation("offq");
  const fs::path file = fs::directory_iterator(directory_ / "kept")->path();
  const std::string whole = read_file(file);
  std::string changed = whole;
  changed.back() ^= 1;
  for (const std::string& text : {std::string(), whole.substr(0, 30), whole.substr(0, whole.size() - 8),
                                  changed, std::string("{}\n"), std::string("[1]\nx")}) {
    write_file(file, text);
    EXPECT_TRUE(rotation("offq").equal(first));
    EXPECT_EQ(read_file(file), whole);
  }
}

}  // namespace
}  // namespace quatrain
