// Artifacts in other programs' layouts. That those programs load them is what scripts/test-exports shows;
// here the layouts are read back, and what they cannot express is refused or folded.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>

#include "checkpoint/artifact.h"
#include "engine/engine.h"
#include "formats/convert.h"
#include "model/inspect.h"
#include "support.h"

namespace quatrain {
namespace {

constexpr const char* kDown = "model.layers.0.mlp.down_proj";
constexpr const char* kUp = "model.layers.0.mlp.up_proj";

/// An artifact imported from a fixture, its planes and policies changed before it is written.
fs::path artifact(
    const std::string& source, const std::string& as,
    const std::function<void(std::map<std::string, NibblePlanes>&, QuantizationConfig&)>& change = {}) {
  const fs::path folder = fresh_folder(as);
  convert_format(fixture(source), folder / "imported", {.to = "artifact"});
  const ArtifactReader reader(folder / "imported");
  std::map<std::string, NibblePlanes> planes;
  QuantizationConfig config = reader.quantization();
  ArtifactWriter writer(folder / "artifact");
  for (const TensorInfo& tensor : reader.tensors().tensors()) {
    if (tensor.name.ends_with(".weight_hi")) {
      const std::string linear = tensor.name.substr(0, tensor.name.rfind('.'));
      planes[linear] = reader.planes(linear);
    } else if (tensor.name.find(".weight_") == std::string::npos) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      reader.tensors().read_rows(tensor, 0, values);
      writer.add_tensor(tensor.name, tensor.shape, values, tensor.type);
    }
  }
  if (change) change(planes, config);
  for (const auto& [linear, matrix] : planes) writer.add_planes(linear, matrix);
  writer.finish(reader.config(), config, "name = \"test\"\n", Json::object());
  return folder / "artifact";
}

std::vector<float> logits(const fs::path& model) {
  const auto engine = Engine::load(model, {.threads = 1});
  const std::vector<int32_t> ids{1, 7, 30, 64, 2, 95, 11};
  std::vector<float> last;
  const BatchItem item{engine->new_sequence(), ids, BatchItem::Logits::Last};
  engine->forward({&item, 1},
                  [&](int64_t, int64_t, std::span<const float> row) { last.assign(row.begin(), row.end()); });
  return last;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), norm += std::pow(b[i], 2);
  return std::sqrt(error / norm);
}

class Exported : public testing::TestWithParam<const char*> {};

TEST_P(Exported, ReadsBackAsTheSameModel) {
  const std::string to = GetParam();
  for (const char* source : {"gptq-sym", "gptq-8bit-rows"}) {
    const fs::path from = artifact(source, to + "-of-" + source);
    const fs::path out = from.parent_path() / (to == "gguf" ? "model.gguf" : "out");
    convert_format(from, out, {.to = to});
    const auto model = open_checkpoint(out), original = open_checkpoint(fixture(source));
    for (const LinearShape& linear : linears_of_layer(model->config(), 0)) {
      const std::string weight = linear.name + ".weight";
      const auto values = model->read(weight), expected = original->read(weight);
      ASSERT_EQ(values.size(), expected.size());
      // A scale of a row is FP32 in an artifact; GPTQ and GGUF keep FP16: 11 bits.
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], expected[i],
                    std::string(source) == "gptq-sym" ? 0 : std::fabs(expected[i]) * 0x1p-11)
            << weight << " " << i;
      EXPECT_TRUE(model->read_codes(weight, 0, 1).has_value()) << weight;
    }
    EXPECT_LT(relative_difference(logits(out), logits(from)), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Exported, testing::Values("gptq", "gptq-v2", "compressed-tensors", "gguf"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(CompressedTensors, EightBitActivationsStay) {
  const fs::path from = artifact("compressed-w8a8", "w8a8-out");
  convert_format(from, from.parent_path() / "out", {.to = "compressed-tensors"});
  const Json config = read_json(from.parent_path() / "out" / "config.json")["quantization_config"];
  EXPECT_EQ(config["format"], "int-quantized");
  const Json& group = config["config_groups"]["group_0"];
  EXPECT_EQ(group["input_activations"]["strategy"], "token");
  EXPECT_EQ(group["input_activations"]["num_bits"], 8);
  EXPECT_EQ(group["weights"]["strategy"], "channel");
  EXPECT_EQ(open_checkpoint(from.parent_path() / "out")->activation(kDown).bits, 8);
}

void add_transforms(std::map<std::string, NibblePlanes>&, QuantizationConfig& config) {
  config.linears[kDown] = config.linear(kDown);
  config.linears[kDown].input_transform = {
      .kind = "grouped-offset-hadamard", .order = 32, .seed = 9, .tensor = {}};
  config.kv.key_transform = {.kind = "hadamard", .order = 16, .seed = 3, .tensor = {}};
}

TEST(Fold, TransformsAreRefusedByNameOrMultipliedIn) {
  const fs::path from = artifact("gptq-sym", "transforms", add_transforms);
  for (const char* to : {"gptq", "compressed-tensors", "gguf", "safetensors"}) {
    const fs::path out =
        from.parent_path() / (std::string(to) == "gguf" ? "m.gguf" : std::string("out-") + to);
    expect_error([&] { convert_format(from, out, {.to = to}); }, {kDown, "layers 0", "--fold"});
    EXPECT_FALSE(fs::exists(out));
    convert_format(from, out, {.to = to, .fold = true});
    // Tensors that are not packed are rounded to 16 bits: 2^-11 each, of three layers in a row.
    EXPECT_LT(relative_difference(logits(out), logits(from)), 4e-3) << to;
  }
  convert_format(from, from.parent_path() / "exact", {.to = "safetensors", .dtype = "f32", .fold = true});
  EXPECT_LT(relative_difference(logits(from.parent_path() / "exact"), logits(from)), 1e-5);
  // GPTQ lists what it leaves in 16 bits.
  const Json config = read_json(from.parent_path() / "out-gptq" / "config.json")["quantization_config"];
  EXPECT_TRUE(config["dynamic"].contains("-:^model\\.layers\\.0\\.mlp\\.down_proj$")) << config;
}

TEST(Fold, PartialResidualsBecomeEightBitsForAllThatReadersFuse) {
  const auto add_block = [](std::map<std::string, NibblePlanes>& planes, QuantizationConfig&) {
    NibblePlanes& up = planes[kUp];
    up.residual_index = {1};
    up.lo.assign(static_cast<size_t>(kResidualRows * up.residual_block / 2), 0);
    up.lo[0] = 0x53;
  };
  const fs::path from = artifact("gptq-sym", "partial", add_block), out = from.parent_path() / "out";
  expect_error([&] { convert_format(from, out, {.to = "compressed-tensors"}); }, {kUp, "residual", "--fold"});
  convert_format(from, out, {.to = "compressed-tensors", .fold = true});
  const auto model = open_checkpoint(out);
  EXPECT_EQ(model->read_codes(std::string(kUp) + ".weight", 0, 1)->bits, 8);
  EXPECT_EQ(model->read_codes("model.layers.0.mlp.gate_proj.weight", 0, 1)->bits, 8);
  EXPECT_EQ(model->read_codes(std::string(kDown) + ".weight", 0, 1)->bits, 4);
  const NibblePlanes planes = ArtifactReader(from).planes(kUp);
  std::vector<float> row(static_cast<size_t>(planes.columns));
  planes.dequantize_row(16, row.data());
  EXPECT_EQ(model->read_rows(std::string(kUp) + ".weight", 16, 17), row);
  // GPTQ has one width: the two 8-bit matrices cannot be in one file with the others.
  expect_error([&] { convert_format(from, from.parent_path() / "gptq", {.to = "gptq"}); }, {kUp});
  convert_format(from, from.parent_path() / "gptq", {.to = "gptq", .fold = true});
  EXPECT_EQ(open_checkpoint(from.parent_path() / "gptq")->stored_type(std::string(kUp) + ".weight"), "F16");
}

TEST(Convert, UnknownFormatsAndModelsWithoutIntegers) {
  const fs::path from = artifact("gptq-sym", "unknown");
  EXPECT_THROW(convert_format(from, from.parent_path() / "x", {.to = "exl2"}), UsageError);
  expect_error([&] { convert_format(from, from.parent_path() / "x", {.to = "artifact"}); },
               {"artifact already"});
  convert_format(from, from.parent_path() / "plain", {.to = "safetensors", .dtype = "f32"});
  for (const char* to : {"gptq", "compressed-tensors"})
    expect_error([&] { convert_format(from.parent_path() / "plain", from.parent_path() / "x", {.to = to}); },
                 {"no integer weights"});
  EXPECT_FALSE(fs::exists(from.parent_path() / "x"));
}

// 4 bits, an FP16 scale and (in GPTQ) a 4-bit zero for every 32 columns, GPTQ's g_idx, compressed-tensors'
// shape.
TEST(Convert, BitsAreCountedFromTheFile) {
  const fs::path from = artifact("gptq-sym", "bits");
  const std::string query = "model.layers.0.self_attn.q_proj";  // 64 x 64
  const std::map<std::string, double> expected = {{"gptq", 4 + (16 + 4) / 32.0 + 64 * 32.0 / 4096},
                                                  {"compressed-tensors", 4 + 16 / 32.0 + 2 * 64.0 / 4096},
                                                  {"gguf", 4.5}};
  for (const auto& [to, bits] : expected) {
    const fs::path out = from.parent_path() / (to == "gguf" ? "m.gguf" : to);
    convert_format(from, out, {.to = to});
    const Json linear = inspect_model(out)["layers"][0]["linears"][0];
    EXPECT_EQ(linear["name"], query);
    EXPECT_DOUBLE_EQ(linear["bits_per_weight"].get<double>(), bits) << to;
  }
}

// A file-size limit stands for a full disk: write() fails in the same place.
TEST(Convert, AFullDiskLeavesNothing) {
  const fs::path from = artifact("gptq-sym", "full");
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{16 << 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (const char* to : {"gptq", "compressed-tensors", "gguf", "safetensors"}) {
    const fs::path out = from.parent_path() / (std::string(to) == "gguf" ? "m.gguf" : "out");
    EXPECT_THROW(convert_format(from, out, {.to = to}), Error) << to;
    EXPECT_FALSE(fs::exists(out)) << to;
    EXPECT_FALSE(fs::exists(fs::path(out) += ".partial")) << to;
  }
  EXPECT_THROW(convert_format(fixture("awq"), from.parent_path() / "a", {.to = "artifact"}), Error);
  EXPECT_FALSE(fs::exists(from.parent_path() / "a"));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace quatrain
