// Weights packed by AutoGPTQ, GPTQModel, AutoAWQ, compressed-tensors and PyPI's gguf, against what those
// programs unpack themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/artifact.h"
#include "engine/engine.h"
#include "formats/convert.h"
#include "support.h"

namespace quatrain {
namespace {

struct Case {
  const char* name;
  int bits;  // of its matrices in an artifact
  int activation_bits = 16;
};

class Packed : public testing::TestWithParam<Case> {};

std::vector<std::string> linears_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const LinearShape& linear : linears_of_layer(config, layer)) names.push_back(linear.name);
  return names;
}

std::vector<float> expected_weights(const std::string& name, const std::string& linear) {
  const fs::path file = fs::path(QUATRAIN_SOURCE_DIR) / "tests/formats/data" / name / "expected.safetensors";
  const auto source = open_safetensors(file);
  const TensorInfo* tensor = source->find(linear + ".weight");
  std::vector<float> values(static_cast<size_t>(tensor->elements()));
  source->read_rows(*tensor, 0, values);
  return values;
}

TEST_P(Packed, WeightsAreThoseOfTheProgramThatPackedThem) {
  const auto model = open_checkpoint(fixture(GetParam().name));
  for (const std::string& linear : linears_of(model->config())) {
    const std::vector<float> expected = expected_weights(GetParam().name, linear);
    EXPECT_EQ(model->read(linear + ".weight"), expected) << linear;
    // Rows from the middle on: every layout seeks in its own way.
    const int64_t width = model->shape(linear + ".weight")[1];
    EXPECT_EQ(model->read_rows(linear + ".weight", 5, 8),
              std::vector<float>(expected.begin() + 5 * width, expected.begin() + 8 * width))
        << linear;
  }
}

TEST_P(Packed, AnArtifactKeepsEveryWeight) {
  const fs::path folder = fresh_folder(std::string("artifact-of-") + GetParam().name) / "a";
  convert_format(fixture(GetParam().name), folder, {.to = "artifact"});
  const ArtifactReader artifact(folder);
  const auto model = open_checkpoint(fixture(GetParam().name));
  for (const std::string& linear : linears_of(model->config())) {
    const std::vector<float> expected = model->read(linear + ".weight");
    ASSERT_EQ(artifact.has_planes(linear), GetParam().bits < 16) << linear;
    EXPECT_EQ(artifact.quantization().linear(linear).activation.bits, GetParam().activation_bits);
    if (GetParam().bits == 16) continue;
    const NibblePlanes planes = artifact.planes(linear);
    EXPECT_EQ(planes.residual_index.empty(), GetParam().bits == 4);
    std::vector<float> row(static_cast<size_t>(planes.columns));
    for (int64_t r = 0; r < planes.rows; ++r) {
      planes.dequantize_row(r, row.data());
      for (int64_t k = 0; k < planes.columns; ++k)
        ASSERT_EQ(row[static_cast<size_t>(k)], expected[static_cast<size_t>(r * planes.columns + k)])
            << linear << " " << r << "," << k;
    }
  }
}

TEST_P(Packed, RunsAsTheArtifactDoes) {
  if (GetParam().activation_bits < 16) GTEST_SKIP() << "the artifact quantises activations";
  const fs::path folder = fresh_folder(std::string("run-") + GetParam().name) / "a";
  convert_format(fixture(GetParam().name), folder, {.to = "artifact"});
  const std::vector<int32_t> ids{1, 7, 30, 64, 2};
  std::vector<std::vector<float>> results;
  for (const fs::path& path : {fixture(GetParam().name), folder}) {
    const auto engine = Engine::load(path, {.threads = 1});
    const BatchItem item{engine->new_sequence(), ids, BatchItem::Logits::Last};
    engine->forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> logits) {
      results.emplace_back(logits.begin(), logits.end());
    });
  }
  // 16-bit matrices of the artifact are rounded once more; the others are the same numbers.
  const float tolerance = GetParam().bits == 16 ? 0.02f : 0;
  for (size_t i = 0; i < results[0].size(); ++i)
    EXPECT_NEAR(results[0][i], results[1][i], tolerance * std::fabs(results[0][i]) + tolerance) << i;
}

INSTANTIATE_TEST_SUITE_P(All, Packed,
                         testing::Values(Case{"gptq-sym", 4}, Case{"gptq-asym-order", 16},
                                         Case{"gptq-8bit-rows", 8}, Case{"gptq-v2", 4},
                                         Case{"gptq-v2-asym", 8}, Case{"awq", 8}, Case{"compressed-w4a16", 4},
                                         Case{"compressed-w4a16-asym", 8}, Case{"compressed-w8a8", 8, 8},
                                         Case{"gguf-q4_0", 4}, Case{"gguf-q8_0", 8}, Case{"gguf-q4_1", 16}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

using Tensors = std::map<std::string, RawTensor>;
constexpr const char* kLinear = "model.layers.0.self_attn.q_proj";

void put(RawTensor& tensor, size_t index, uint32_t word) {
  std::memcpy(tensor.bytes.data() + index * 4, &word, 4);
}

// Opening must fail with these words.
void refused(const std::string& name, const std::function<void(Tensors&, Json&)>& change,
             const std::vector<std::string>& words) {
  const fs::path folder = changed_fixture(
      name, std::string("refused-") + testing::UnitTest::GetInstance()->current_test_info()->name(), change);
  expect_error([&] { open_checkpoint(folder); }, words);
}

TEST(PackedErrors, GroupOutOfRange) {
  for (const int32_t group : {2, -1, 1 << 30})
    refused("gptq-asym-order",
            [&](Tensors& tensors, Json&) {
              put(tensors[std::string(kLinear) + ".g_idx"], 7, static_cast<uint32_t>(group));
            },
            {kLinear, "g_idx", "input 7", std::to_string(group)});
}

TEST(PackedErrors, ZerosOfAnotherShape) {
  refused("gptq-sym",
          [](Tensors& tensors, Json&) {
            RawTensor& zeros = tensors[std::string(kLinear) + ".qzeros"];
            zeros.shape = {zeros.shape[1], zeros.shape[0]};
          },
          {kLinear, "qzeros", "not I32"});
}

TEST(PackedErrors, MissingPart) {
  for (const char* part : {"qzeros", "scales"})
    refused("awq", [&](Tensors& tensors, Json&) { tensors.erase(std::string(kLinear) + "." + part); },
            {kLinear, part, "missing"});
  refused("compressed-w4a16",
          [](Tensors& tensors, Json&) { tensors.erase(std::string(kLinear) + ".weight_scale"); },
          {kLinear, "weight_scale", "missing"});
}

TEST(PackedErrors, ConfigThatLiesAboutBits) {
  refused("gptq-sym", [](Tensors&, Json& config) { config["quantization_config"]["bits"] = 8; },
          {"down_proj", "8 bits", "wrong"});
  refused("compressed-w4a16",
          [](Tensors&, Json& config) {
            config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 8;
          },
          {"down_proj", "8 bits", "weight_shape"});
  refused("awq", [](Tensors&, Json& config) { config["quantization_config"]["bits"] = 8; }, {"8 bits"});
}

TEST(PackedErrors, ConfigThatLiesAboutGroups) {
  for (const char* name : {"gptq-sym", "awq"})
    refused(name, [](Tensors&, Json& config) { config["quantization_config"]["group_size"] = 16; },
            {"down_proj", "group"});
}

TEST(PackedErrors, ConfigThatLiesAboutSymmetry) {
  refused("gptq-asym-order", [](Tensors&, Json& config) { config["quantization_config"]["sym"] = true; },
          {"down_proj", "symmetric"});
  refused("compressed-w4a16",
          [](Tensors&, Json& config) {
            config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = false;
          },
          {"down_proj", "weight_zero_point"});
}

TEST(Compressed, ZerosOfASymmetricMatrixMustBeZero) {
  for (const int8_t zero : {int8_t{0}, int8_t{3}}) {
    const fs::path folder = changed_fixture("compressed-w8a8", "zeros", [&](Tensors& tensors, Json&) {
      std::vector<std::byte> bytes(64);
      bytes[5] = static_cast<std::byte>(zero);
      tensors[std::string(kLinear) + ".weight_zero_point"] = {"I8", {64, 1}, bytes};
    });
    if (zero == 0)
      EXPECT_NO_THROW(open_checkpoint(folder));
    else
      expect_error([&] { open_checkpoint(folder); }, {kLinear, "row 5", "symmetric"});
  }
}

// Before they were packed, zeros lay one a byte.
TEST(Compressed, ZerosAByteEach) {
  const fs::path folder = changed_fixture("compressed-w4a16-asym", "bytes", [](Tensors& tensors, Json&) {
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with("weight_zero_point")) continue;
      const int64_t rows = 8 * tensor.shape[0], groups = tensor.shape[1];
      std::vector<std::byte> bytes(static_cast<size_t>(rows * groups));
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t g = 0; g < groups; ++g) {
          uint32_t word;
          std::memcpy(&word, tensor.bytes.data() + (row / 8 * groups + g) * 4, 4);
          bytes[static_cast<size_t>(row * groups + g)] =
              static_cast<std::byte>(static_cast<int8_t>(static_cast<int>(word >> (4 * (row % 8)) & 15) - 8));
        }
      tensor = {"I8", {rows, groups}, bytes};
    }
  });
  const std::string weight = std::string(kLinear) + ".weight";
  EXPECT_EQ(open_checkpoint(folder)->read(weight),
            open_checkpoint(fixture("compressed-w4a16-asym"))->read(weight));
}

TEST(PackedErrors, OtherMethodsAndLayoutsAreNamed) {
  const auto with = [](Json quantization) {
    return [quantization](Tensors&, Json& config) { config["quantization_config"].update(quantization); };
  };
  refused("gptq-sym", with({{"quant_method", "bitsandbytes"}}), {"bitsandbytes"});
  refused("gptq-sym", with({{"checkpoint_format", "marlin"}}), {"marlin"});
  refused("gptq-sym", with({{"bits", 3}}), {"3 bits"});
  refused("awq", with({{"version", "gemv"}}), {"gemv"});
  refused("compressed-w4a16", with({{"format", "nvfp4-pack-quantized"}}), {"nvfp4-pack-quantized"});
  refused("compressed-w4a16", with({{"kv_cache_scheme", {{"num_bits", 8}}}}), {"kv_cache_scheme"});
  refused("compressed-w4a16", with({{"transform_config", {{"config_groups", {{"R1", 1}}}}}}),
          {"transform_config"});
}

TEST(PackedErrors, UnexpectedScaleOfAnotherProgram) {
  refused("compressed-w8a8",
          [](Tensors& tensors, Json&) {
            tensors["model.layers.0.self_attn.k_scale"] = {"F32", {1}, std::vector<std::byte>(4)};
          },
          {"k_scale", "unexpected"});
}

TEST(PackedErrors, ScaleThatIsNotFinite) {
  const fs::path folder = changed_fixture("gptq-sym", "nan-scale", [](Tensors& tensors, Json&) {
    const uint16_t nan = 0x7E00;
    std::memcpy(tensors[std::string(kLinear) + ".scales"].bytes.data() + 2 * 3, &nan, 2);
  });
  const auto model = open_checkpoint(folder);
  expect_error([&] { model->read(std::string(kLinear) + ".weight"); }, {kLinear, "row 3"});
  expect_error([&] { convert_format(folder, folder / "a", {.to = "artifact"}); }, {kLinear});
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST(PackedErrors, TruncatedFile) {
  const fs::path folder = changed_fixture("awq", "truncated", [](Tensors&, Json&) {});
  const fs::path file = folder / "model-00001-of-00001.safetensors";
  const auto size = fs::file_size(file);
  for (const uintmax_t left : {size - 1, size / 2, uintmax_t{9}, uintmax_t{0}}) {
    fs::resize_file(file, left);
    EXPECT_THROW(open_checkpoint(folder), Error) << left;
  }
}

// Some writers put version 2 zeros under the version 1 label: what a symmetric file holds decides.
TEST(Gptq, ZerosOfTheOtherVersionAreSeen) {
  const fs::path folder = changed_fixture("gptq-sym", "mislabelled", [](Tensors&, Json& config) {
    config["quantization_config"]["checkpoint_format"] = "gptq_v2";
  });
  const std::string weight = std::string(kLinear) + ".weight";
  EXPECT_EQ(open_checkpoint(folder)->read(weight), open_checkpoint(fixture("gptq-sym"))->read(weight));
}

TEST(Gptq, SettingsBesideTheConfig) {
  const fs::path folder = changed_fixture(
      "gptq-sym", "beside", [](Tensors&, Json& config) { config.erase("quantization_config"); });
  const Json settings = read_json(fixture("gptq-sym") / "config.json")["quantization_config"];
  write_file(folder / "quantize_config.json", settings.dump());
  const std::string weight = std::string(kLinear) + ".weight";
  EXPECT_EQ(open_checkpoint(folder)->read(weight), open_checkpoint(fixture("gptq-sym"))->read(weight));
  const fs::path both = changed_fixture("gptq-sym", "both", [](Tensors&, Json&) {});
  Json other = settings;
  other["group_size"] = 64;
  write_file(both / "quantize_config.json", other.dump());
  expect_error([&] { open_checkpoint(both); }, {"quantize_config.json", "32", "64"});
}

TEST(Import, AModelThatIsNotQuantisedIsRefused) {
  const fs::path folder = fresh_folder("not-quantised");
  convert_format(fixture("gptq-sym"), folder / "plain", {.to = "safetensors", .dtype = "f32"});
  expect_error([&] { convert_format(folder / "plain", folder / "a", {.to = "artifact"}); },
               {"quatrain quantize"});
  EXPECT_FALSE(fs::exists(folder / "a"));
}

}  // namespace
}  // namespace quatrain
