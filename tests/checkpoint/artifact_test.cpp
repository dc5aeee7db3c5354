#include "checkpoint/artifact.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "base/half.h"
#include "base/rng.h"
#include "checkpoint/artifact_planes.h"
#include "checkpoint/example_config.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors_writer.h"

namespace quatrain {
namespace {

// Random planes; every second block has a residual. Nibbles past the edge are zero.
NibblePlanes random_planes(int64_t rows, int64_t columns, int64_t group, int64_t block, uint64_t seed,
                           bool residual = true, bool bias = false) {
  SplitMix64 random(seed);
  NibblePlanes planes;
  planes.rows = rows;
  planes.columns = columns;
  planes.weight_group = group;
  planes.residual_block = block;
  for (int64_t i = 0; i < rows * columns / 2; ++i) planes.hi.push_back(static_cast<uint8_t>(random.next()));
  for (int64_t i = 0; i < rows * planes.groups(); ++i) {
    const auto scale = static_cast<float>(0.01 + random.uniform());
    planes.scale.push_back(group == 0 ? scale : fp16_to_float(float_to_fp16(scale)));
  }
  if (residual) {
    for (int64_t b = 0; b < planes.block_rows() * planes.block_columns(); b += 2) {
      planes.residual_index.push_back(static_cast<int32_t>(b));
      const int64_t row0 = b / planes.block_columns() * kResidualRows;
      const int64_t column0 = b % planes.block_columns() * block;
      for (int64_t row = row0; row < row0 + kResidualRows; ++row)
        for (int64_t column = column0; column < column0 + block; column += 2)
          planes.lo.push_back(row < rows && column < columns ? static_cast<uint8_t>(random.next()) : 0);
    }
  }
  if (bias)
    for (int64_t i = 0; i < rows; ++i) planes.bias.push_back(static_cast<float>(random.normal()));
  return planes;
}

void expect_equal(const NibblePlanes& a, const NibblePlanes& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.columns, b.columns);
  EXPECT_EQ(a.weight_group, b.weight_group);
  EXPECT_EQ(a.residual_block, b.residual_block);
  EXPECT_EQ(a.hi, b.hi);
  EXPECT_EQ(a.scale, b.scale);
  EXPECT_EQ(a.residual_index, b.residual_index);
  EXPECT_EQ(a.lo, b.lo);
  EXPECT_EQ(a.bias, b.bias);
}

// One linear, the norm and a small embedding, ready for finish().
void fill(ArtifactWriter& writer) {
  writer.add_planes("model.embed_tokens", random_planes(40, 64, 0, 128, 1));
  writer.add_planes("lm_head", random_planes(40, 64, 0, 128, 2));
  writer.add_planes("model.layers.0.mlp.down_proj", random_planes(33, 192, 64, 64, 3, true, true));
  writer.add_tensor("model.norm.weight", {64}, std::vector<float>(64, 1.0f), "BF16");
}

TEST(Artifact, ReadsBackWhatWasWritten) {
  TempDir dir;
  const NibblePlanes grouped = random_planes(33, 192, 64, 64, 3, true, true);
  const NibblePlanes narrow = random_planes(17, 100, 0, 128, 4);       // one block, narrower than 128
  const NibblePlanes plain = random_planes(16, 64, 32, 64, 5, false);  // no residual
  {
    ArtifactWriter writer(dir / "out", 4000);  // several shards
    writer.add_planes("a", grouped);
    writer.add_planes("b.c", narrow);
    writer.add_planes("d", plain);
    writer.add_tensor("model.norm.weight", {3}, std::vector<float>{1, 2.5f, -3}, "F16");
    writer.add_tensor("a.matrix", {2, 2}, std::vector<float>{0, 1, 1, 0}, "F32");
    EXPECT_FALSE(fs::exists(dir / "out"));
    write_file(writer.staging() / "tokenizer.json", "{}");
    QuantizationConfig config;
    config.recipe = "test";
    config.defaults = {
        .activation = {4, 64, false}, .input_transform = {}, .weight_group = 64, .residual_block = 64};
    config.linears["a"] = config.defaults;
    config.linears["a"].input_transform = {"matrix", 0, 0, "a.matrix"};
    writer.finish({{"hidden_size", 64}}, config, "name = \"test\"\n", {{"layers", Json::array()}});
  }
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
  EXPECT_TRUE(is_artifact(dir / "out"));
  EXPECT_EQ(read_file(dir / "out/recipe.toml"), "name = \"test\"\n");
  EXPECT_TRUE(fs::exists(dir / "out/tokenizer.json"));
  const ArtifactReader reader(dir / "out");
  EXPECT_EQ(reader.config()["hidden_size"], 64);
  expect_equal(reader.planes("a"), grouped);
  expect_equal(reader.planes("b.c"), narrow);
  expect_equal(reader.planes("d"), plain);
  EXPECT_TRUE(reader.has_planes("d"));
  EXPECT_FALSE(reader.has_planes("model.norm"));
  EXPECT_EQ(reader.quantization().unquantized, std::vector<std::string>{"model.norm"});
  expect_error([&] { reader.planes("model.norm"); }, {"model.norm", "not a quantised linear"});

  // By hand: hi, scale, lo and index of each and the transform a.matrix, over all weights; neither norm nor
  // bias.
  const double bytes = (33 * 96 + 33 * 3 * 2 + 5 * (16 * 32 + 4)) + (17 * 50 + 17 * 4 + (16 * 64 + 4)) +
                       (16 * 32 + 16 * 2 * 2) + 2 * 2 * 4;
  EXPECT_DOUBLE_EQ(reader.quantization().bits_per_weight, 8 * bytes / (33 * 192 + 17 * 100 + 16 * 64));

  std::vector<float> norm(3);
  reader.tensors().read_rows(*reader.tensors().find("model.norm.weight"), 0, norm);
  EXPECT_EQ(norm, (std::vector<float>{1, 2.5f, -3}));
  expect_error([&] { ArtifactWriter(dir / "out"); }, {"exists"});
}

TEST(Artifact, CodesMeanTheSameAfterTheFile) {
  TempDir dir;
  const NibblePlanes planes = random_planes(20, 96, 32, 64, 8);
  ArtifactWriter writer(dir / "out");
  writer.add_planes("w", planes);
  writer.finish(Json::object(), QuantizationConfig(), "", Json::object());
  // Unpacked here from the file's bytes by the format's own words: c = 16 hi + lo, w = scale c / 16.
  const ArtifactReader reader(dir / "out");
  const TensorSource& tensors = reader.tensors();
  const auto hi = tensors.raw(*tensors.find("w.weight_hi"));
  const auto lo = tensors.raw(*tensors.find("w.weight_lo"));
  const auto index = tensors.raw(*tensors.find("w.weight_lo_index"));
  std::vector<float> scales(20 * 3);
  tensors.read_rows(*tensors.find("w.weight_scale"), 0, scales);
  std::vector<float> row(96);
  const NibblePlanes read = reader.planes("w");
  for (int64_t o = 0; o < 20; ++o) {
    read.dequantize_row(o, row.data());
    for (int64_t i = 0; i < 96; ++i) {
      const int nibble = std::to_integer<int>(hi[o * 48 + i / 2]) >> (4 * (i % 2)) & 15;
      int code = 16 * (nibble < 8 ? nibble : nibble - 16);
      for (size_t b = 0; b * 4 < index.size(); ++b) {
        int32_t number;
        std::memcpy(&number, index.data() + 4 * b, 4);
        if (number / 2 == o / 16 && number % 2 == i / 64)
          code += std::to_integer<int>(lo[(b * 16 + o % 16) * 32 + i % 64 / 2]) >> (4 * (i % 2)) & 15;
      }
      ASSERT_EQ(row[i], scales[o * 3 + i / 32] * static_cast<float>(code) / 16) << o << " " << i;
    }
  }
}

TEST(Artifact, RefusesUnsoundPlanes) {
  const auto refused = [](const std::function<void(NibblePlanes&)>& spoil,
                          std::initializer_list<std::string_view> parts, int64_t group = 64) {
    NibblePlanes planes = random_planes(33, 192, group, 128, 3, true, true);
    check_planes(planes, "W");
    spoil(planes);
    expect_error([&] { check_planes(planes, "W"); }, parts);
  };
  refused([](auto& p) { p.columns = 191; }, {"W", "even"});
  refused([](auto& p) { p.rows = 0; }, {"positive"});
  refused([](auto& p) { p.residual_block = 0; }, {"residual block 0"});
  refused([](auto& p) { p.residual_block = 63; }, {"residual block 63"});
  refused([](auto& p) { p.hi.pop_back(); }, {"weight_hi"});
  refused([](auto& p) { p.lo.pop_back(); }, {"weight_lo"});
  refused([](auto& p) { p.bias.pop_back(); }, {"bias"});
  refused([](auto& p) { p.scale.pop_back(); }, {"weight_scale"});
  refused([](auto& p) { p.scale[4] = NAN; }, {"weight_scale: row 1, group 1 is nan"});
  refused([](auto& p) { p.scale[4] = 0; }, {"row 1, group 1 is 0"});
  refused([](auto& p) { p.scale[4] = -INFINITY; }, {"is -inf"});
  refused([](auto& p) { p.scale[4] = INFINITY; }, {"is inf"});
  refused([](auto& p) { p.scale[4] = 1.0001f; }, {"no FP16 number"});
  refused([](auto& p) { p.bias[7] = NAN; }, {"bias: row 7"});
  refused([](auto& p) { std::swap(p.residual_index[0], p.residual_index[1]); }, {"0 after 2", "ascend"});
  refused([](auto& p) { p.residual_index[1] = p.residual_index[0]; }, {"ascend"});
  refused([](auto& p) { p.residual_index[0] = -1; }, {"weight_lo_index: -1"});
  refused([](auto& p) { p.residual_index.back() = 6; }, {"block 6 of a matrix of 6"});
  // Block 4 is the last rows' first: its second row lies past the edge. Block 1 ends at column 64 of 128.
  refused([](auto& p) { p.lo[2 * 16 * 64 + 64] = 1; }, {"block 4", "row 1, column 0"});
  refused(
      [](auto& p) {
        p.residual_index[0] = 1;
        std::fill(p.lo.begin(), p.lo.begin() + 16 * 64, 0);
        p.lo[32] = 0x10;
      },
      {"block 1", "row 0, column 64"});
  check_planes(random_planes(33, 192, 0, 128, 3), "W");  // row scales need not be FP16
}

// An artifact of two linears whose files a test spoils.
class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    ArtifactWriter writer(dir_ / "out");
    fill(writer);
    writer.finish({{"model_type", "llama"}}, example_config(), "", Json::object());
  }
  // Writes the same tensors again, as `change` gives them: {} leaves one out.
  using Change = std::function<bool(TensorInfo&, std::vector<std::byte>&)>;
  void rewrite(const Change& change, const std::function<void(SafetensorsWriter&)>& extra = {}) {
    fs::create_directories(dir_ / "new");
    {
      const auto source = open_safetensors(dir_ / "out");
      SafetensorsWriter writer(dir_ / "new", 1 << 20);
      for (TensorInfo info : source->tensors()) {
        const auto raw = source->raw(info);
        std::vector<std::byte> bytes(raw.begin(), raw.end());
        if (change(info, bytes)) writer.add(info.name, info.type, info.shape, bytes);
      }
      if (extra) extra(writer);
      writer.finish();
    }
    for (const auto& entry : fs::directory_iterator(dir_ / "new"))
      fs::rename(entry.path(), dir_ / "out" / entry.path().filename());
  }
  void expect_planes_refused(const Change& change, std::initializer_list<std::string_view> parts) {
    rewrite(change);
    const ArtifactReader reader(dir_ / "out");
    expect_error([&] { reader.planes(kDown); }, parts);
  }
  static constexpr const char* kDown = "model.layers.0.mlp.down_proj";
  TempDir dir_;
};

TEST_F(Damaged, ListsEveryMissingAndUnexpectedTensorAtOnce) {
  rewrite(
      [](TensorInfo& info, auto&) {
        return info.name != "lm_head.weight_hi" && info.name != "lm_head.weight_scale" &&
               info.name != std::string(kDown) + ".weight_lo_index" && info.name != "model.norm.weight";
      },
      [](SafetensorsWriter& writer) {
        const std::vector<std::byte> byte(1);
        writer.add("model.embed_tokens.weight", "U8", {1}, byte);
        writer.add("stranger", "U8", {1}, byte);
      });
  expect_error([&] { ArtifactReader(dir_ / "out"); },
               {"lm_head.weight_hi", "lm_head.weight_scale", "down_proj.weight_lo_index", "model.norm.weight",
                "missing", "unexpected: ", "model.embed_tokens.weight", "stranger"});
}

TEST_F(Damaged, RefusesMisshapenAndMistypedPlanes) {
  const auto named = [](const TensorInfo& info, const char* suffix) {
    return info.name == std::string(kDown) + "." + suffix;
  };
  expect_planes_refused(
      [&](TensorInfo& info, auto&) {
        if (named(info, "weight_scale")) info.type = "BF16";
        return true;
      },
      {"down_proj.weight_scale is BF16 [33, 3]", "F16 [33, 3]"});
  expect_planes_refused(
      [&](TensorInfo& info, auto&) {
        if (named(info, "weight_scale")) info.type = "F16", info.shape = {99, 1};
        return true;
      },
      {"F16 [99, 1]"});
  expect_planes_refused(
      [&](TensorInfo& info, auto&) {
        if (named(info, "weight_scale")) info.shape = {33, 3};
        if (named(info, "weight_hi")) info.shape = {33 * 96};
        return true;
      },
      {"weight_hi is U8 [3168]"});
  expect_planes_refused(
      [&](TensorInfo& info, auto&) {
        if (named(info, "weight_hi")) info.shape = {33, 96};
        if (named(info, "weight_lo")) info.shape = {info.shape[0], 8, 64};
        return true;
      },
      {"weight_lo"});
  expect_planes_refused(
      [&](TensorInfo& info, auto& bytes) {
        if (named(info, "weight_lo")) info.shape = {info.shape[0], 16, 32};
        if (named(info, "bias")) info.shape = {32}, bytes.resize(128);
        return true;
      },
      {"bias is [32]"});
}

TEST_F(Damaged, RefusesPoisonedValues) {
  const auto poison = [&](const char* suffix, size_t offset, std::vector<uint8_t> with,
                          std::initializer_list<std::string_view> parts) {
    rewrite([&](TensorInfo& info, auto& bytes) {
      if (info.name == std::string(kDown) + "." + suffix)
        for (size_t i = 0; i < with.size(); ++i)
          std::swap(bytes[offset + i], reinterpret_cast<std::byte&>(with[i]));
      return true;
    });
    expect_error([&] { ArtifactReader(dir_ / "out").planes(kDown); }, parts);
    rewrite([&](TensorInfo& info, auto& bytes) {  // back to the sound file
      if (info.name == std::string(kDown) + "." + suffix)
        for (size_t i = 0; i < with.size(); ++i) bytes[offset + i] = static_cast<std::byte>(with[i]);
      return true;
    });
    ArtifactReader(dir_ / "out").planes(kDown);
  };
  poison("weight_scale", 2, {0x00, 0x7E}, {"down_proj", "weight_scale: row 0, group 1 is nan"});
  poison("weight_scale", 2, {0x00, 0x00}, {"weight_scale: row 0, group 1 is 0"});
  poison("weight_scale", 2, {0x00, 0xFC}, {"is -inf"});
  poison("weight_lo_index", 4, {0, 0, 0, 0}, {"weight_lo_index", "ascend"});
  poison("weight_lo_index", 16, {100, 0, 0, 0}, {"weight_lo_index", "block 100"});
  poison("bias", 0, {0, 0, 0x80, 0x7F}, {"bias: row 0 is inf"});
}

// Any bit of any shard, which no other check would see.
TEST_F(Damaged, AFlippedBitIsFound) {
  const fs::path shard = dir_ / "out" / "model-00001-of-00001.safetensors";
  const std::string whole = read_file(shard);
  ArtifactReader(dir_ / "out").verify();
  const std::string name = std::string(kDown) + ".weight_hi";
  const auto reader = std::make_unique<ArtifactReader>(dir_ / "out");
  const TensorInfo* tensor = reader->tensors().find(name);
  const size_t begin = whole.size() - 1;
  for (const size_t from_end : {size_t{0}, size_t{17}}) {
    std::string flipped = whole;
    flipped[begin - from_end] ^= 4;
    write_file(shard, flipped);
    expect_error([&] { ArtifactReader(dir_ / "out").verify(); },
                 {"model-00001-of-00001.safetensors", "tensor", "damaged"});
  }
  ASSERT_NE(tensor, nullptr);
  const std::string bytes(reinterpret_cast<const char*>(reader->tensors().raw(*tensor).data()), 16);
  std::string flipped = whole;
  flipped[whole.find(bytes)] ^= 1;
  write_file(shard, flipped);
  expect_error([&] { ArtifactReader(dir_ / "out").planes(kDown); },
               {"model-00001-of-00001.safetensors", name});
  // An artifact of a version that wrote no checksums: the flip goes unseen, and it loads.
  const fs::path index_path = dir_ / "out" / "model.safetensors.index.json";
  Json index = read_json(index_path);
  index["metadata"].erase("crc32c");
  write_file(index_path, index.dump());
  ArtifactReader(dir_ / "out").planes(kDown);
}

TEST_F(Damaged, RefusesDirectoriesThatAreNoArtifacts) {
  write_file(dir_ / "out/config.json", R"({"model_type": "llama"})");
  EXPECT_FALSE(is_artifact(dir_ / "out"));
  expect_error([&] { ArtifactReader(dir_ / "out"); }, {"config.json", "not quantised"});
  write_file(dir_ / "out/config.json", R"({"quantization_config": {"quant_method": "gptq"}})");
  EXPECT_FALSE(is_artifact(dir_ / "out"));
  expect_error([&] { ArtifactReader(dir_ / "out"); }, {"quant_method"});
  write_file(dir_ / "out/config.json", "{");
  EXPECT_FALSE(is_artifact(dir_ / "out"));
  expect_error([&] { ArtifactReader(dir_ / "out"); }, {"config.json", "not valid JSON"});
  expect_error([&] { ArtifactReader(dir_ / "none"); }, {"none", "config.json"});
  EXPECT_FALSE(is_artifact(dir_ / "none"));
}

TEST(ArtifactWriter, FindsPoliciesWithoutPlanes) {
  TempDir dir;
  {
    ArtifactWriter writer(dir / "out");
    writer.add_planes("lm_head", random_planes(16, 64, 0, 128, 2));
    expect_error([&] { writer.finish(Json::object(), example_config(), "", Json::object()); },
                 {"missing", "model.embed_tokens.weight_hi", "down_proj.weight_hi"});
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(ArtifactWriter, RefusesValuesThatTheTypeCannotHold) {
  TempDir dir;
  ArtifactWriter writer(dir / "out");
  expect_error(
      [&] {
        writer.add_tensor("x", {2}, std::vector<float>{1, 70000}, "F16");
      },
      {"tensor x", "value 1 (70000)", "too large for F16"});
  expect_error([&] { writer.add_tensor("x", {2}, std::vector<float>{NAN, 1}, "F32"); }, {"not finite"});
  expect_error([&] { writer.add_tensor("x", {3}, std::vector<float>{1, 1}, "F32"); }, {"8 bytes", "12"});
}

TEST(ArtifactWriter, ReplacesWhatAKilledRunLeft) {
  TempDir dir;
  fs::create_directories(dir / "out.partial");
  write_file(dir / "out.partial/model-00001-of-00009.safetensors", "old");
  write_file(dir / "out.partial/shard-00004.safetensors.tmp", "old");
  write_file(dir / "out.partial/journal", "kept");
  ArtifactWriter writer(dir / "out");
  fill(writer);
  writer.finish(Json::object(), example_config(), "", Json::object());
  EXPECT_FALSE(fs::exists(dir / "out/model-00001-of-00009.safetensors"));
  EXPECT_FALSE(fs::exists(dir / "out/shard-00004.safetensors.tmp"));
  EXPECT_TRUE(fs::exists(dir / "out/journal"));
}

TEST(ArtifactWriter, LeavesNothingOnAFullDisk) {
  for (const rlim_t limit : {3000u, 9000u, 300u << 10}) {
    TempDir dir;
    EXPECT_TRUE(fails_on_full_disk(limit, [&] {
      ArtifactWriter writer(dir / "out");
      for (int i = 0; i < 8; ++i)
        writer.add_planes(fmt::format("w{}", i), random_planes(256, 512, 64, 64, 3));
      writer.finish(Json::object(), QuantizationConfig(), "", Json::object());
    })) << limit;
    EXPECT_TRUE(fs::is_empty(dir.path())) << limit;
  }
}

TEST(ArtifactWriter, LeavesNothingUnderTheFinalNameWhenKilled) {
  TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    ArtifactWriter writer(dir / "out", 10000);
    for (int i = 0;; ++i) {
      writer.add_planes(fmt::format("w{}", i), random_planes(64, 128, 64, 64, 3));
      if (i == 5 && write(ready[1], "x", 1) != 1) _exit(1);
    }
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
  EXPECT_FALSE(fs::exists(dir / "out"));
  // What is left under the working name is no model.
  EXPECT_FALSE(is_artifact(dir / "out.partial"));
  ArtifactWriter writer(dir / "out");  // and does not stand in the way
  fill(writer);
  writer.finish(Json::object(), example_config(), "", Json::object());
  ArtifactReader(dir / "out").planes("lm_head");
}

}  // namespace
}  // namespace quatrain
