#include "checkpoint/gguf.h"

#include <gtest/gtest.h>

#include <bit>

#include "checkpoint/element_type.h"
#include "checkpoint/files.h"
#include "support/shared.h"

namespace quatrain {
namespace {

std::string gguf_string(std::string_view text) {
  return bytes_of(uint64_t{text.size()}) + std::string(text);
}

template <typename T>
std::string key(std::string_view name, GgufType type, const T& value) {
  return gguf_string(name) + bytes_of(static_cast<uint32_t>(type)) + bytes_of(value);
}

std::string tensor(std::string_view name, const std::vector<uint64_t>& reversed, uint32_t type,
                   uint64_t offset) {
  return gguf_string(name) + bytes_of(static_cast<uint32_t>(reversed.size())) + bytes_of(reversed) +
         bytes_of(type) + bytes_of(offset);
}

// A file of these metadata keys and tensor records, its data aligned to 32 bytes.
std::string gguf(const std::vector<std::string>& keys, const std::vector<std::string>& tensors,
                 const std::string& data, uint32_t version = 3) {
  std::string file =
      "GGUF" + bytes_of(version) + bytes_of(uint64_t{tensors.size()}) + bytes_of(uint64_t{keys.size()});
  for (const std::string& text : keys) file += text;
  for (const std::string& text : tensors) file += text;
  if (!data.empty()) file.resize((file.size() + 31) / 32 * 32);
  return file + data;
}

void expect_refused(const std::string& file, std::initializer_list<std::string_view> parts) {
  const std::vector<std::byte> exact(as_bytes(file).begin(), as_bytes(file).end());
  expect_error([&] { GgufFile(exact, "FILE"); }, parts);
}

std::vector<float> read_all(const TensorSource& source, const TensorInfo& info) {
  std::vector<float> values(static_cast<size_t>(info.elements()));
  source.read_rows(info, 0, values);
  return values;
}

// The expected values are the `gguf` Python package's; its FP32 operations and their order are ggml's, so the
// bits must agree.
TEST(Gguf, DequantisesEveryTypeBitForBit) {
  const GgufFile file(QUATRAIN_SOURCE_DIR "/tests/checkpoint/data/types.gguf");
  const std::string expected = read_file(QUATRAIN_SOURCE_DIR "/tests/checkpoint/data/types.f32");
  ASSERT_EQ(file.tensors().size(), 14u);
  size_t offset = 0;
  for (const TensorInfo& info : file.tensors()) {
    const std::vector<float> values = read_all(file, info);
    ASSERT_LE(offset + values.size() * 4, expected.size());
    EXPECT_EQ(std::memcmp(values.data(), expected.data() + offset, values.size() * 4), 0) << info.name;
    offset += values.size() * 4;
    EXPECT_EQ(info.type, info.name);
    // One row alone gives the same values.
    std::vector<float> row(static_cast<size_t>(info.columns()));
    file.read_rows(info, info.rows() - 1, row);
    EXPECT_EQ(std::memcmp(row.data(), &values[values.size() - row.size()], row.size() * 4), 0) << info.name;
  }
  EXPECT_EQ(offset, expected.size());
}

TEST(Gguf, ReadsEveryMetadataType) {
  const GgufFile file(QUATRAIN_SOURCE_DIR "/tests/checkpoint/data/types.gguf");
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.get<int64_t>("test.u8"), 200);
  EXPECT_EQ(file.get<int64_t>("test.i8"), -100);
  EXPECT_EQ(file.get<int64_t>("test.u16"), 60000);
  EXPECT_EQ(file.get<int64_t>("test.i16"), -30000);
  EXPECT_EQ(file.get<int64_t>("test.u32"), 4000000000);
  EXPECT_EQ(file.get<int64_t>("test.i32"), -2000000000);
  EXPECT_EQ(file.get<double>("test.f32"), 0.15625);
  EXPECT_EQ(file.get<double>("test.u8"), 200.0);
  EXPECT_TRUE(file.get<bool>("test.bool"));
  EXPECT_EQ(file.get<std::string>("test.string"), "na\u00efve");
  EXPECT_EQ(file.get<int64_t>("test.i64"), -(int64_t{1} << 62));
  EXPECT_EQ(file.get<double>("test.f64"), 0.1);
  EXPECT_EQ(std::get<uint64_t>(file.find_metadata("test.u64")->data), ~uint64_t{0});
  EXPECT_EQ(file.get<std::vector<std::string>>("test.strings"),
            (std::vector<std::string>{"a", "", "\u2581b"}));
  EXPECT_EQ(file.get<std::vector<int64_t>>("test.ints"), (std::vector<int64_t>{3, -4, 5}));
  EXPECT_EQ(file.get<std::vector<double>>("test.floats"), (std::vector<double>{0.5, -1.5}));
  EXPECT_EQ(std::get<std::vector<bool>>(file.find_metadata("test.bools")->data),
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(file.get_or<int64_t>("test.none", 7), 7);
  EXPECT_EQ(file.find_metadata("test.none"), nullptr);
  expect_error([&] { file.get<int64_t>("test.none"); }, {"types.gguf", "test.none is missing"});
  expect_error([&] { file.get<int64_t>("test.string"); }, {"test.string is a string"});
  expect_error([&] { file.get<int64_t>("test.u64"); }, {"test.u64 is above 2^63"});
  expect_error([&] { file.get<std::string>("test.strings"); }, {"an array of strings"});
}

TEST(Gguf, ReadsVersion2NestedArraysAndReversedShapes) {
  const std::string nested = gguf_string("n") + bytes_of(uint32_t{9}) + bytes_of(uint32_t{9}) +
                             bytes_of(uint64_t{2}) + bytes_of(uint32_t{0}) + bytes_of(uint64_t{1}) + "\x05" +
                             bytes_of(uint32_t{8}) + bytes_of(uint64_t{0});
  const std::string bytes =
      gguf({nested}, {tensor("b", {3, 2}, 0, 32), tensor("a", {}, 24, 0)},
           "\x07" + std::string(31, '\0') + bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6}), 2);
  const GgufFile file(as_bytes(bytes), "FILE");
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(read_all(file, *file.find("a")), std::vector<float>{7});
  EXPECT_EQ(file.find("b")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read_all(file, *file.find("b")), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  const auto& outer = std::get<std::vector<GgufValue>>(file.find_metadata("n")->data);
  EXPECT_EQ(std::get<std::vector<uint64_t>>(outer.at(0).data), std::vector<uint64_t>{5});
  EXPECT_TRUE(std::get<std::vector<std::string>>(outer.at(1).data).empty());
}

TEST(Gguf, RefusesUnreadableTypesOnlyWhenRead) {
  const std::string bytes = gguf({}, {tensor("x", {256}, 16, 0)}, std::string(66, 'a'));
  const GgufFile file(as_bytes(bytes), "FILE");
  std::vector<float> values(256);
  expect_error([&] { file.read_rows(file.tensors()[0], 0, values); }, {"FILE", "tensor x", "IQ2_XXS"});
}

TEST(Gguf, OpensFilesWithoutTensors) {
  const std::string bytes = gguf({key("k", GgufType::U8, uint8_t{1})}, {}, "");
  EXPECT_TRUE(GgufFile(as_bytes(bytes), "FILE").tensors().empty());
}

TEST(Gguf, OpensTheVocabularyFilesOfTheFixtures) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "large fixtures are not here";
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(*shared / "data/tokenizers")) {
    if (entry.path().extension() != ".gguf") continue;
    const GgufFile file(entry.path());
    const auto tokens = file.get<std::vector<std::string>>("tokenizer.ggml.tokens");
    EXPECT_GT(tokens.size(), 1000u) << entry.path();
    EXPECT_EQ(file.get<std::vector<int64_t>>("tokenizer.ggml.token_type").size(), tokens.size());
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string file =
      gguf({key("k", GgufType::F32, 1.0f), gguf_string("s") + bytes_of(uint32_t{9}) + bytes_of(uint32_t{8}) +
                                               bytes_of(uint64_t{2}) + gguf_string("ab") + gguf_string("c")},
           {tensor("x", {2}, 0, 0)}, "abcdefgh");
  EXPECT_EQ(GgufFile(as_bytes(file), "FILE").tensors().size(), 1u);
  for (size_t size = 0; size < file.size(); ++size) expect_refused(file.substr(0, size), {"FILE"});
}

TEST(Gguf, RefusesLyingHeaders) {
  const std::string tail(64, '\0');
  expect_refused("GGML" + bytes_of(uint32_t{3}) + tail, {"no GGUF file"});
  expect_refused("GGUF" + bytes_of(uint32_t{1}) + tail, {"version 1", "convert"});
  expect_refused("GGUF" + bytes_of(uint32_t{3} << 24) + tail, {"big-endian"});
  expect_refused("GGUF" + bytes_of(uint32_t{3}) + bytes_of(~uint64_t{0}) + tail, {"number of tensors"});
  expect_refused("GGUF" + bytes_of(uint32_t{3}) + bytes_of(uint64_t{0}) + bytes_of(uint64_t{1} << 60) + tail,
                 {"number of metadata keys"});
  expect_refused(gguf({bytes_of(~uint64_t{0}) + "abcdefgh"}, {}, ""), {"string of 18446744073709551615"});
  expect_refused(gguf({key("k", static_cast<GgufType>(13), uint64_t{0})}, {}, ""), {"k", "value type 13"});
  expect_refused(gguf({key("k", GgufType::Bool, uint8_t{2})}, {}, ""), {"k", "truth value"});
  expect_refused(gguf({key("k", GgufType::U8, uint8_t{2}), key("k", GgufType::U8, uint8_t{2})}, {}, ""),
                 {"k occurs twice"});
  expect_refused(
      gguf({gguf_string("k") + bytes_of(uint32_t{9}) + bytes_of(uint32_t{8}) + bytes_of(uint64_t{1} << 61)},
           {}, ""),
      {"k is 2305843009213693952"});
  std::string deep = gguf_string("k");
  for (int i = 0; i < 1000; ++i) deep += bytes_of(uint32_t{9}) + bytes_of(uint64_t{1});
  expect_refused(gguf({deep}, {}, ""), {"k"});
  expect_refused(gguf({key("general.alignment", GgufType::U32, uint32_t{0})}, {}, ""), {"alignment 0"});
  expect_refused(gguf({key("general.alignment", GgufType::U32, uint32_t{24})}, {}, ""), {"alignment 24"});
  expect_refused(gguf({key("general.alignment", GgufType::F32, 32.0f)}, {}, ""), {"a float"});
  expect_refused(gguf({key("split.count", GgufType::U16, uint16_t{3})}, {}, ""), {"split GGUF"});
}

TEST(Gguf, RefusesLyingTensors) {
  const std::string data(64, 'a');
  expect_refused(gguf({}, {tensor("x", {1, 1, 1, 1, 1}, 0, 0)}, data), {"tensor x", "5 dimensions"});
  expect_refused(gguf({}, {gguf_string("x") + bytes_of(uint32_t{0xFFFFFFFF})}, data), {"4294967295 dim"});
  expect_refused(gguf({}, {tensor("x", {4}, 77, 0)}, data), {"tensor x", "type 77"});
  expect_refused(gguf({}, {tensor("x", {4}, 4, 0)}, data), {"tensor x", "type 4"});
  expect_refused(gguf({}, {tensor("x", {uint64_t{1} << 63}, 0, 0)}, data), {"tensor x", "negative"});
  expect_refused(gguf({}, {tensor("x", {uint64_t{1} << 62, 4}, 0, 0)}, data), {"tensor x", "2^63"});
  expect_refused(gguf({}, {tensor("x", {uint64_t{1} << 61}, 28, 0)}, data), {"tensor x", "2^63"});
  expect_refused(gguf({}, {tensor("x", {48}, 2, 0)}, data), {"tensor x", "48 columns", "blocks of 32"});
  expect_refused(gguf({}, {tensor("x", {4}, 0, 4)}, data), {"tensor x", "offset 4"});
  expect_refused(gguf({}, {tensor("x", {17}, 0, 0)}, data), {"tensor x", "68 bytes"});
  expect_refused(gguf({}, {tensor("x", {4}, 0, uint64_t{0} - 32)}, data), {"tensor x", "truncated"});
  expect_refused(gguf({}, {tensor("x", {9}, 0, 0), tensor("y", {4}, 0, 32)}, data), {"tensor y overlaps"});
  expect_refused(gguf({}, {tensor("x", {4}, 0, 0), tensor("x", {4}, 0, 32)}, data),
                 {"tensor x occurs twice"});
}

TEST(Gguf, TypeNumbersAndNamesAgree) {
  for (uint32_t number = 0; number < 64; ++number) {
    const std::string_view name = gguf_type_name(number);
    if (name.empty()) continue;
    EXPECT_EQ(gguf_type_number(name), number);
    EXPECT_NE(find_element_type(name), nullptr) << name;
  }
  EXPECT_EQ(gguf_type_name(14), "Q6_K");
  EXPECT_EQ(gguf_type_number("U8"), std::nullopt);
  EXPECT_EQ(gguf_type_number(""), std::nullopt);
}

}  // namespace
}  // namespace quatrain
