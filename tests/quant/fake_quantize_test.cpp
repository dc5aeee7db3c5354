// The reference's own arithmetic (torch) against the definitions of base/number_format.h, value by value.
#include "quant/reference/fake_quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"
#include "checkpoint/artifact.h"
#include "quant/reference/weight_source.h"
#include "quant/weights/planes.h"

namespace quatrain {
namespace {

torch::Tensor random_tensor(std::vector<int64_t> shape, uint64_t seed, double offset, double outlier) {
  torch::Tensor tensor = torch::empty(shape, torch::kFloat);
  SplitMix64 rng(seed);
  float* data = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i)
    data[i] = static_cast<float>(offset + rng.normal() * (rng.below(40) == 0 ? outlier : 1));
  return tensor;
}

void expect_activation(const torch::Tensor& x, const ActivationPolicy& policy) {
  const torch::Tensor result = fake_quantize(x, policy, "site");
  const int64_t tokens = x.size(0), width = x.size(1);
  const int64_t group = policy.group == 0 ? width : std::min(policy.group, width);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t begin = 0; begin < width; begin += group) {
      const int64_t count = std::min(group, width - begin);
      const float* values = x.data_ptr<float>() + t * width + begin;
      const QuantizedGroup g = quantize_group(values, count, policy.bits, policy.symmetric, group);
      for (int64_t i = 0; i < count; ++i) {
        const float expected =
            g.scale * static_cast<float>(quantize_value(values[i], g, policy.bits) - g.zero);
        ASSERT_EQ(result[t][begin + i].item<float>(), expected) << "token " << t << " channel " << begin + i;
      }
    }
}

TEST(FakeQuantize, EqualsTheDefinitionBitForBit) {
  for (const int bits : {4, 8})
    for (const bool symmetric : {false, true})
      for (const auto& [width, group] : std::vector<std::pair<int64_t, int64_t>>{
               {64, 0}, {96, 32}, {100, 64}, {576, 0}, {576, 64}, {512, 512}})
        for (const double offset : {0.0, 50.0, -1e4}) {
          expect_activation(random_tensor({3, width}, static_cast<uint64_t>(width + bits), offset, 30),
                            {bits, group, symmetric});
        }
}

TEST(FakeQuantize, ZeroConstantAndTinyGroups) {
  torch::Tensor x = torch::zeros({4, 64});
  x[1].fill_(3.75f);
  x[2].fill_(-1e-40f);
  x[3][5] = 1e-38f;
  for (const bool symmetric : {false, true}) expect_activation(x, {4, 32, symmetric});
  const torch::Tensor result = fake_quantize(x, {4, 0, false}, "site");
  EXPECT_EQ(result[0].abs().max().item<float>(), 0);
  // A pure offset has s = max / 32767 and is right to s / 2.
  EXPECT_NEAR(result[1][0].item<float>(), 3.75, 3.75 / 32767 / 2 * 1.001);
}

TEST(FakeQuantize, NamesTokenAndChannelOfNaN) {
  torch::Tensor x = torch::zeros({3, 8});
  x[2][5] = std::numeric_limits<float>::quiet_NaN();
  try {
    fake_quantize(x, {16, 0, false}, "model.layers.3.mlp.down_proj");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("model.layers.3.mlp.down_proj"), std::string::npos) << text;
    EXPECT_NE(text.find("token 2"), std::string::npos) << text;
    EXPECT_NE(text.find("channel 5"), std::string::npos) << text;
  }
}

// KV scales are FP16 before codes form; recomputed here from the formulas of docs/format.md.
TEST(FakeQuantize, KvScalesAreHalf) {
  for (const int64_t group : {0, 16})
    for (const double offset : {0.0, 20.0, 3000.0}) {
      const torch::Tensor x = random_tensor({5, 2, 32}, 9, offset, 10);
      KvPolicy policy;
      policy.bits = 4;
      policy.group = group;
      const torch::Tensor result = fake_quantize_kv(x, policy, "keys");
      const int64_t width = group == 0 ? 32 : group;
      for (int64_t row = 0; row < 10; ++row)
        for (int64_t begin = 0; begin < 32; begin += width) {
          const float* values = x.data_ptr<float>() + row * 32 + begin;
          float low = values[0], high = values[0];
          for (int64_t i = 0; i < width; ++i)
            low = std::min(low, values[i]), high = std::max(high, values[i]);
          const float least = std::max(std::fabs(low), std::fabs(high)) / 32767.0f;
          const float scale = fp16_to_float(float_to_fp16(std::max((high - low) / 15.0f, least)));
          const float zero = std::nearbyint(-low / scale);
          for (int64_t i = 0; i < width; ++i) {
            const float code = std::clamp(std::nearbyint(values[i] / scale) + zero, 0.0f, 15.0f);
            ASSERT_EQ(result.reshape({10, 32})[row][begin + i].item<float>(), scale * (code - zero));
          }
        }
    }
}

TEST(FakeQuantize, KvPureOffsetKeepsItsZeroInInt16) {
  // 1.0 / 32767 rounds down to FP16 and would need the zero 32768 or more; the next FP16 number is taken.
  const torch::Tensor x = torch::full({1, 1, 16}, -1.0);
  KvPolicy policy;
  policy.bits = 4;
  const float scale = fp16_to_float(float_to_fp16(1.0f / 32767.0f));
  EXPECT_NEAR(fake_quantize_kv(x, policy, "keys")[0][0][0].item<float>(), -1.0, scale);
  EXPECT_THROW(fake_quantize_kv(x * 3e9, policy, "keys"), Error);
}

TEST(Unpack, EqualsThePlanes) {
  const fs::path directory = fs::path(testing::TempDir()) / "quatrain_unpack_test";
  fs::remove_all(directory);
  SplitMix64 rng(4);
  std::vector<NibblePlanes> written;
  {
    ArtifactWriter writer(directory);
    for (const auto& [rows, columns, group, block, step] : std::vector<std::array<int64_t, 5>>{
             {33, 96, 0, 64, 2}, {16, 64, 16, 32, 1}, {48, 576, 64, 128, 3}, {7, 22, 0, 16, 9}}) {
      std::vector<int32_t> selected;
      const std::vector<int32_t> all = all_blocks(rows, columns, block);
      for (size_t b = 0; b < all.size(); b += static_cast<size_t>(step)) selected.push_back(all[b]);
      if (step == 9) selected.clear();
      NibblePlanes planes = make_planes(rows, columns, group, block, selected);
      for (float& scale : planes.scale)
        scale = fp16_to_float(float_to_fp16(static_cast<float>(0.01 + rng.uniform())));
      std::vector<float> weights(static_cast<size_t>(columns));
      for (int64_t row = 0; row < rows; ++row) {
        for (float& weight : weights) weight = static_cast<float>(rng.normal());
        store_row(planes, row, weights);
      }
      writer.add_planes("m" + std::to_string(written.size()), planes);
      written.push_back(std::move(planes));
    }
    writer.finish(Json::object(), {}, "", Json::object());
  }
  const ArtifactReader reader(directory);
  for (size_t m = 0; m < written.size(); ++m) {
    const std::string name = "m" + std::to_string(m);
    const torch::Tensor weights =
        unpack_planes(reader.tensors(), name, reader.quantization().linear(name), written[m].columns);
    std::vector<float> row(static_cast<size_t>(written[m].columns));
    for (int64_t r = 0; r < written[m].rows; ++r) {
      written[m].dequantize_row(r, row.data());
      // Two products in another order: equal to one unit in the last place.
      for (int64_t c = 0; c < written[m].columns; ++c)
        ASSERT_NEAR(weights[r][c].item<float>(), row[static_cast<size_t>(c)],
                    std::fabs(row[static_cast<size_t>(c)]) * 0x1p-22);
    }
  }
  fs::remove_all(directory);
}

}  // namespace
}  // namespace quatrain
