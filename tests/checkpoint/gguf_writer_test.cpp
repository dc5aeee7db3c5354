#include "checkpoint/gguf_writer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "checkpoint/element_type.h"
#include "checkpoint/files.h"

namespace quatrain {
namespace {

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

// data/encode.f32 holds values, data/encode.TYPE the `gguf` Python package's blocks of them.
TEST(Gguf, EncodesBitForBit) {
  const std::vector<float> values =
      floats(read_file(QUATRAIN_SOURCE_DIR "/tests/checkpoint/data/encode.f32"));
  for (const char* name : {"F16", "BF16", "Q8_0", "Q4_0", "Q4_1"}) {
    const std::vector<std::byte> bytes = encode_values(*find_element_type(name), values, name);
    const std::string expected =
        read_file(fmt::format(QUATRAIN_SOURCE_DIR "/tests/checkpoint/data/encode.{}", name));
    ASSERT_EQ(bytes.size(), expected.size()) << name;
    for (size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i], static_cast<std::byte>(expected[i])) << name << " byte " << i;
  }
}

TEST(Gguf, EncodingRefusesWhatATypeCannotHold) {
  std::vector<float> values(32, 1.0f);
  values[5] = 1e30f;
  for (const char* name : {"F16", "Q8_0", "Q4_0", "Q4_1"})
    expect_error([&] { encode_values(*find_element_type(name), values, "T"); }, {"T", "too large for"});
  EXPECT_EQ(encode_values(*find_element_type("BF16"), values, "T").size(), 64u);
  values[5] = NAN;
  for (const char* name : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"})
    expect_error([&] { encode_values(*find_element_type(name), values, "T"); }, {"value 5", "not finite"});
  expect_error([&] { encode_values(*find_element_type("Q4_K"), values, "T"); },
               {"Q4_K", "cannot be written"});
  expect_error([] { encode_values(*find_element_type("Q4_0"), std::vector<float>(33), "T"); },
               {"whole blocks"});
  // Values so small that their scale is zero in FP16 become zeros, not garbage.
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1"}) {
    const ElementType& type = *find_element_type(name);
    const std::vector<std::byte> bytes = encode_values(type, std::vector<float>(32, -1e-44f), "T");
    std::vector<float> back(32);
    type.decode(bytes.data(), 1, back.data());
    for (const float value : back) EXPECT_EQ(value, 0.0f) << name;
  }
}

TEST(GgufWriter, ReadsBackWhatWasWritten) {
  TempDir dir;
  SplitMix64 random(7);
  std::vector<float> values(6 * 64);
  for (float& value : values) value = static_cast<float>(random.normal());
  const std::vector<std::string> types = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};
  {
    GgufWriter writer(dir / "m.gguf");
    writer.set_string("general.architecture", "llama");
    writer.set_u32("u32", 4000000000);
    writer.set_f32("f32", 0.1f);
    writer.set_bool("bool", true);
    writer.set_strings("strings", {"a", "", "\xff\x00"});
    writer.set_i32s("i32s", {-1, 2});
    writer.set_f32s("f32s", {0.5f, -1e30f});
    writer.set("u8", {GgufType::U8, uint64_t{255}});
    writer.set("i16", {GgufType::I16, int64_t{-32768}});
    writer.set("u64s", {GgufType::U64, std::vector<uint64_t>{~uint64_t{0}}});
    writer.set("bools", {GgufType::Bool, std::vector<bool>{true, false}});
    writer.set("nested", {GgufType::Array, std::vector<GgufValue>{{GgufType::I8, std::vector<int64_t>{-3}}}});
    writer.declare("odd", {3}, "F32");
    for (const std::string& type : types) writer.declare(type, {2, 3, 64}, type);
    writer.declare("scalar", {}, "F16");
    writer.write("odd", std::vector<float>{1, 2, 3});
    for (const std::string& type : types) {
      writer.write(type, std::span(values).first(64));
      writer.write(type, std::span(values).subspan(64));
    }
    writer.write("scalar", std::vector<float>{9});
    EXPECT_FALSE(fs::exists(dir / "m.gguf"));
    writer.finish();
  }
  const GgufFile file(dir / "m.gguf");
  EXPECT_EQ(file.get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(file.get<int64_t>("u32"), 4000000000);
  EXPECT_EQ(file.get<double>("f32"), 0.1f);
  EXPECT_TRUE(file.get<bool>("bool"));
  EXPECT_EQ(file.get<std::vector<std::string>>("strings"), (std::vector<std::string>{"a", "", "\xff\x00"}));
  EXPECT_EQ(file.get<std::vector<int64_t>>("i32s"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file.get<std::vector<double>>("f32s"), (std::vector<double>{0.5, -1e30f}));
  EXPECT_EQ(file.get<int64_t>("u8"), 255);
  EXPECT_EQ(file.find_metadata("u8")->type, GgufType::U8);
  EXPECT_EQ(file.get<int64_t>("i16"), -32768);
  EXPECT_EQ(std::get<std::vector<uint64_t>>(file.find_metadata("u64s")->data).at(0), ~uint64_t{0});
  EXPECT_EQ(std::get<std::vector<bool>>(file.find_metadata("bools")->data), (std::vector<bool>{true, false}));
  const auto& nested = std::get<std::vector<GgufValue>>(file.find_metadata("nested")->data);
  EXPECT_EQ(std::get<std::vector<int64_t>>(nested.at(0).data), std::vector<int64_t>{-3});
  for (const std::string& name : types) {
    const ElementType& type = *find_element_type(name);
    const TensorInfo& info = *file.find(name);
    EXPECT_EQ(info.type, name);
    EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 3, 64}));
    const auto raw = file.raw(info);
    EXPECT_EQ(std::vector<std::byte>(raw.begin(), raw.end()), encode_values(type, values, name));
  }
  std::vector<float> scalar(1);
  file.read_rows(*file.find("scalar"), 0, scalar);
  EXPECT_EQ(scalar[0], 9.0f);
}

TEST(GgufWriter, CopiesTheMetadataOfAFileExactly) {
  TempDir dir;
  const GgufFile original(QUATRAIN_SOURCE_DIR "/tests/checkpoint/data/types.gguf");
  {
    GgufWriter writer(dir / "copy.gguf");
    for (const auto& [key, value] : original.metadata()) writer.set(key, value);
    writer.finish();
  }
  const GgufFile copy(dir / "copy.gguf");
  ASSERT_EQ(copy.metadata().size(), original.metadata().size());
  for (const auto& [key, value] : original.metadata()) {
    ASSERT_NE(copy.find_metadata(key), nullptr) << key;
    EXPECT_EQ(copy.find_metadata(key)->type, value.type) << key;
    EXPECT_EQ(copy.find_metadata(key)->data.index(), value.data.index()) << key;
  }
  EXPECT_EQ(copy.get<std::string>("test.string"), original.get<std::string>("test.string"));
  EXPECT_EQ(copy.get<double>("test.f64"), 0.1);
}

TEST(GgufWriter, RefusesWrongUseAndLeavesNothing) {
  TempDir dir;
  {
    GgufWriter writer(dir / "m.gguf");
    expect_error([&] { writer.set("k", {GgufType::U8, uint64_t{256}}); }, {"256 does not fit 8 bits"});
  }
  {
    GgufWriter writer(dir / "m.gguf");
    expect_error([&] { writer.set("k", {GgufType::I8, int64_t{-129}}); }, {"-129 does not fit 8 bits"});
  }
  {
    GgufWriter writer(dir / "m.gguf");
    expect_error([&] { writer.declare("x", {48}, "Q4_0"); }, {"tensor x", "48 columns"});
    expect_error([&] { writer.declare("x", {256}, "Q4_K"); }, {"tensor x", "Q4_K"});
    expect_error([&] { writer.declare(std::string(64, 'x'), {1}, "F32"); }, {"63 bytes"});
    expect_error([&] { writer.declare("x", {1, 1, 1, 1, 1}, "F32"); }, {"5 dimensions"});
    writer.declare("a", {2, 2}, "F32");
    writer.declare("b", {2}, "F32");
    expect_error([&] { writer.declare("a", {1}, "F32"); }, {"tensor a", "twice"});
    const std::vector<float> values(6);
    expect_error([&] { writer.write("b", std::span(values).first(2)); }, {"tensor b", "turn of a"});
    expect_error([&] { writer.write("a", std::span(values).first(3)); }, {"tensor a", "whole rows"});
    expect_error([&] { writer.write("a", values); }, {"tensor a", "more rows"});
    writer.write("a", std::span(values).first(4));
    expect_error([&] { writer.finish(); }, {"incomplete: 16 of 40"});
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(GgufWriter, LeavesNothingOnAFullDisk) {
  for (const rlim_t limit : {100u, 4096u, 7000u}) {  // in the header, at the first rows, between rows
    TempDir dir;
    EXPECT_TRUE(fails_on_full_disk(limit, [&] {
      GgufWriter writer(dir / "m.gguf");
      writer.set_string("general.architecture", std::string(1000, 'x'));
      writer.declare("a", {64, 64}, "F32");
      for (int row = 0; row < 64; ++row) writer.write("a", std::vector<float>(64));
      writer.finish();
    })) << limit;
    EXPECT_TRUE(fs::is_empty(dir.path())) << limit;
  }
}

}  // namespace
}  // namespace quatrain
