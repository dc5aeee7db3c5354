// The quantiser and the reference on a GPU, against the CPU. What needs a GPU is skipped where libtorch has
// none.
#include "quant/reference/device.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/artifact.h"
#include "quant/pipeline.h"
#include "quant/reference.h"
#include "quant/reference/fake_quantize.h"
#include "quant/reference/operations.h"
#include "quant/weights/gptq.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

bool has_gpu() {
  return torch::cuda::is_available();
}

torch::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  torch::Tensor tensor = torch::empty({rows, columns}, torch::kFloat);
  SplitMix64 rng(seed);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<float>()[i] = static_cast<float>(rng.normal());
  return tensor;
}

std::vector<int32_t> tokens(int64_t count, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  while (std::ssize(ids) < count) ids.push_back(static_cast<int32_t>(random.below(300)));
  return ids;
}

std::string error_of(const std::string& device) {
  try {
    torch_device(device);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Device, NamesWhatIsWrong) {
  EXPECT_TRUE(torch_device("cpu").is_cpu());
  for (const char* wrong :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda0", "cuda:99999999999999999999"})
    EXPECT_NE(error_of(wrong).find("neither cpu nor cuda nor cuda:N"), std::string::npos) << wrong;
  if (has_gpu())
    EXPECT_NE(error_of("cuda:99").find("numbered from 0"), std::string::npos);
  else
    EXPECT_NE(error_of("cuda").find("use --device cpu"), std::string::npos);
}

// The formulas of fake quantisation as torch operations give the loops' bits, groups that do not divide the
// width, constant and vanishing groups too.
void expect_same_rows(torch::Device device) {
  torch::Tensor x = random_matrix(7, 100, 3) * 3 + 1;
  x[1].zero_();
  x[2] *= 1e-40;
  x[3].fill_(2.5);
  x[4] *= 1e30;
  torch::Tensor loops = torch::empty_like(x);
  for (const int bits : {4, 8})
    for (const bool symmetric : {false, true})
      for (const bool force_zero : {false, true})
        for (const int64_t group : {16, 48, 100}) {
          const GroupRule rule{bits, symmetric, force_zero, bits == 4 && group == 16};
          const torch::Tensor rows = rule.half_scale ? x.slice(0, 0, 4) : x;  // FP16 scales end at 65504
          quantize_rows(rows.data_ptr<float>(), rows.size(0), 100, group, rule, loops.data_ptr<float>());
          const torch::Tensor operations = operations::quantize_rows(rows.to(device), group, rule).cpu();
          EXPECT_TRUE(torch::equal(operations, loops.slice(0, 0, rows.size(0))))
              << bits << " bits, symmetric " << symmetric << ", zero " << force_zero << ", group " << group;
        }
}

TEST(Device, OperationsRoundAsTheLoopsDo) {
  expect_same_rows(torch::kCPU);
}

TEST(Device, GpuRoundsAsTheLoopsDo) {
  if (!has_gpu()) GTEST_SKIP() << "libtorch has no GPU";
  expect_same_rows(torch::kCUDA);
}

// Codes differ only where FP32 sums of another order meet a tie of rounding.
TEST(Device, GptqGivesTheSameCodes) {
  if (!has_gpu()) GTEST_SKIP() << "libtorch has no GPU";
  const torch::Tensor weight = random_matrix(96, 208, 1);
  const torch::Tensor x = random_matrix(600, 208, 2).matmul(random_matrix(208, 208, 3));
  const torch::Tensor hessian = x.t().matmul(x) / 600;
  for (int mode = 0; mode < 5; ++mode) {
    WeightFormat format;
    format.group = mode % 2 == 0 ? 0 : 16;
    format.residual_block = 16;
    format.residual_budget = mode >= 2 ? 0.1 : 0;
    format.clip = mode == 2;
    GptqOptions options;
    options.static_groups = mode != 3;
    options.act_order = mode == 4;
    const GptqResult cpu = quantize_gptq("m", weight, hessian, format, {}, options);
    const GptqResult gpu = quantize_gptq("m", weight.cuda(), hessian.cuda(), format, {}, options);
    size_t same = 0;
    for (size_t i = 0; i < cpu.planes.hi.size(); ++i) same += cpu.planes.hi[i] == gpu.planes.hi[i] ? 1 : 0;
    EXPECT_GE(same, cpu.planes.hi.size() * 98 / 100) << mode;
    EXPECT_NEAR(gpu.loss, cpu.loss, 0.01 * cpu.loss) << mode;
    if (options.static_groups) {
      EXPECT_EQ(cpu.planes.scale, gpu.planes.scale) << mode;
      EXPECT_EQ(cpu.planes.residual_index, gpu.planes.residual_index) << mode;
    }
  }
}

TEST(Device, GpuNamesWhatIsNotFinite) {
  if (!has_gpu()) GTEST_SKIP() << "libtorch has no GPU";
  torch::Tensor x = random_matrix(5, 64, 1);
  x[3][17] = NAN;
  fake_quantize(random_matrix(5, 64, 2).cuda(), {}, "first");
  fake_quantize(x.cuda(), {}, "second");
  try {
    settle_checks();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "second: the input is nan at token 3, channel 17");
  }
  settle_checks();  // said once
}

class DeviceModels : public TinyModels {
 protected:
  fs::path quantized(const std::string& model, const std::string& recipe, const std::string& device) {
    QuantizeOptions options;
    options.threads = 2;
    options.device = device;
    for (uint64_t s = 0; s < 8; ++s) options.samples.push_back(tokens(64, 10 + s));
    const fs::path out = directory_ / (model + "-" + recipe + "-" + device);
    quantize(models_ / model, load_recipe(recipe, {}), out, options);
    return out;
  }
};

TEST_F(DeviceModels, ReferenceAgrees) {
  if (!has_gpu()) GTEST_SKIP() << "libtorch has no GPU";
  for (const char* model : {"llama-gqa", "qwen3-qknorm", "gemma3-text", "qwen3-moe"}) {
    const std::vector<int32_t> ids = tokens(70, 1);
    const std::vector<float> cpu = ReferenceModel::load(models_ / model)->logits(ids);
    EXPECT_LT(relative_distance(ReferenceModel::load(models_ / model, 0, "cuda")->logits(ids), cpu), 1e-5)
        << model;
  }
}

// An artifact of the GPU is another rounding of the same sums: as far from the 16-bit model as the CPU's.
TEST_F(DeviceModels, ArtifactsAgree) {
  if (!has_gpu()) GTEST_SKIP() << "libtorch has no GPU";
  const std::vector<int32_t> ids = tokens(70, 2);
  const auto expect_alike = [&](const char* model, const char* recipe) {
    const std::vector<float> exact = ReferenceModel::load(models_ / model)->logits(ids);
    const double cpu =
        relative_distance(ReferenceModel::load(quantized(model, recipe, "cpu"))->logits(ids), exact);
    const double gpu =
        relative_distance(ReferenceModel::load(quantized(model, recipe, "cuda"))->logits(ids), exact);
    EXPECT_NEAR(gpu, cpu, 0.15 * cpu) << model << " " << recipe;
  };
  for (const char* recipe : {"quatrain", "quarot", "offq", "mosaicquant", "smoothquant"})
    expect_alike("llama-gqa", recipe);
  expect_alike("gemma3-text", "quatrain");
  expect_alike("qwen3-moe", "quatrain");
}

}  // namespace
}  // namespace quatrain
