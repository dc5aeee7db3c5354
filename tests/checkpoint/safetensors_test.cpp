#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/crc32c.h"
#include "base/half.h"
#include "checkpoint/files.h"
#include "support/shared.h"

namespace quatrain {
namespace {

std::vector<float> read_all(const TensorSource& source, std::string_view name) {
  const TensorInfo* tensor = source.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> values(static_cast<size_t>(tensor->elements()));
  source.read_rows(*tensor, 0, values);
  return values;
}

std::string one_tensor(const std::string& entry, const std::string& data) {
  return safetensors_file("{\"w\":" + entry + "}", data);
}

void expect_refused(const std::string& file, std::initializer_list<std::string_view> parts) {
  // A heap block of the exact size, so that a sanitizer sees every read past the end.
  const std::vector<std::byte> exact(as_bytes(file).begin(), as_bytes(file).end());
  expect_error([&] { parse_safetensors(exact, "FILE"); }, parts);
}

TEST(Safetensors, ConvertsEveryNumberType) {
  struct Case {
    const char* type;
    std::string bytes;
    std::vector<float> values;
  };
  const std::vector<Case> cases = {
      {"F64", bytes_of(std::vector<double>{1.5, -1e300}), {1.5f, -std::numeric_limits<float>::infinity()}},
      {"F32", bytes_of(std::vector<float>{0.1f, -3e38f}), {0.1f, -3e38f}},
      {"F16", bytes_of(std::vector<uint16_t>{0x3C00, 0x0001}), {1.0f, 0x1p-24f}},
      {"BF16", bytes_of(std::vector<uint16_t>{0x3F80, 0xC2F7}), {1.0f, -123.5f}},
      {"I64", bytes_of(std::vector<int64_t>{-5, int64_t{1} << 40}), {-5.0f, 0x1p40f}},
      {"I32", bytes_of(std::vector<int32_t>{-7, 1 << 24}), {-7.0f, 16777216.0f}},
      {"I16", bytes_of(std::vector<int16_t>{-32768, 9}), {-32768.0f, 9.0f}},
      {"I8", bytes_of(std::vector<int8_t>{-128, 127}), {-128.0f, 127.0f}},
      {"U8", bytes_of(std::vector<uint8_t>{0, 255}), {0.0f, 255.0f}},
      {"BOOL", bytes_of(std::vector<uint8_t>{0, 1}), {0.0f, 1.0f}},
  };
  for (const Case& c : cases) {
    TempDir dir;
    write_file(dir / "model.safetensors",
               one_tensor(fmt::format(R"({{"dtype":"{}","shape":[2],"data_offsets":[0,{}]}})", c.type,
                                      c.bytes.size()),
                          c.bytes));
    const auto source = open_safetensors(dir.path());
    EXPECT_EQ(read_all(*source, "w"), c.values) << c.type;
    EXPECT_EQ(source->tensors()[0].type, c.type);
  }
}

TEST(Safetensors, KeepsFileOrderAndReadsRows) {
  TempDir dir;
  std::vector<float> values(14);
  std::iota(values.begin(), values.end(), 0.0f);
  write_file(dir / "any.safetensors", safetensors_file(R"({"__metadata__":{"format":"pt"},
               "a":{"dtype":"F32","shape":[2,2,3],"data_offsets":[4,52]},
               "b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
               "e":{"dtype":"F32","shape":[3,0],"data_offsets":[52,52]},
               "z":{"dtype":"F32","shape":[1],"data_offsets":[52,56]}}   )",
                                                       bytes_of(values)));
  const auto source = open_safetensors(dir / "any.safetensors");
  std::vector<std::string> names;
  for (const TensorInfo& tensor : source->tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"b", "a", "e", "z"}));
  const TensorInfo& a = *source->find("a");
  EXPECT_EQ(a.rows(), 4);
  EXPECT_EQ(a.columns(), 3);
  std::vector<float> rows(6);
  source->read_rows(a, 1, rows);
  EXPECT_EQ(rows, (std::vector<float>{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(source->raw(a).size(), 48u);
  EXPECT_EQ(read_all(*source, "b"), std::vector<float>{0});
  EXPECT_TRUE(read_all(*source, "e").empty());
  EXPECT_EQ(source->find("c"), nullptr);
  expect_error([&] { source->read_rows(a, 3, rows); }, {"any.safetensors", "tensor a", "4 rows of 3"});
  expect_error([&] { source->read_rows(a, -1, rows); }, {"tensor a"});
  expect_error([&] { source->read_rows(a, 0, std::span(rows).first(4)); }, {"tensor a"});
}

TEST(Safetensors, RefusesTypesWithoutNumbersOnlyWhenRead) {
  TempDir dir;
  write_file(dir / "f.safetensors",
             one_tensor(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})", "abcd"));
  const auto source = open_safetensors(dir / "f.safetensors");
  std::vector<float> values(4);
  expect_error([&] { source->read_rows(source->tensors()[0], 0, values); }, {"tensor w", "F8_E4M3"});
}

TEST(Safetensors, RefusesDamagedHeaders) {
  const std::string good = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string file = one_tensor(good, "abcd");
  EXPECT_EQ(parse_safetensors(as_bytes(file), "FILE").size(), 1u);
  for (size_t size = 0; size < file.size(); ++size) expect_refused(file.substr(0, size), {"FILE"});
  expect_refused(std::string(200, '\0'), {"length 0 is impossible"});
  expect_refused(bytes_of(~uint64_t{0}) + file.substr(8), {"impossible", "truncated"});
  expect_refused(bytes_of(uint64_t{1} << 63) + file.substr(8), {"impossible"});
  expect_refused(safetensors_file("[1, 2]", ""), {"begin with"});
  expect_refused(safetensors_file("{\"a\":", ""), {"not valid JSON"});
  expect_refused(safetensors_file("{\"a\":\"\xff\"}", ""), {"not valid JSON"});
  expect_refused(safetensors_file("{\"a\":" + std::string(100000, '['), ""), {"nested"});
  expect_refused(file + "x", {"1 bytes at the end"});
}

TEST(Safetensors, RefusesLyingEntries) {
  expect_refused(one_tensor("7", ""), {"tensor w", "dtype, shape"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", "abcd"), {"data_offsets"});
  expect_refused(one_tensor(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", "abcd"), {"F31"});
  expect_refused(one_tensor(R"({"dtype":"Q4_0","shape":[32],"data_offsets":[0,18]})", std::string(18, 'a')),
                 {"Q4_0"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "abcd"), {"need 8"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "abcd"), {"dimension"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", "abcd"), {"dimension"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", ""),
                 {"more than 2^63"});
  expect_refused(one_tensor(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", ""),
                 {"more than 2^63"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[0,9223372036854775807,9],"data_offsets":[0,0]})", ""),
                 {"more than 2^63"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "abcd"), {"4 to 0"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[2,6]})", "abcd"), {"2 to 6"});
  expect_refused(one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]})", "abcd"),
                 {"first offset"});
}

TEST(Safetensors, RefusesGapsOverlapsAndDuplicates) {
  const auto two = [](const char* first, const char* second) {
    return safetensors_file(fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":{}}},)"
                                        R"("b":{{"dtype":"U8","shape":[2],"data_offsets":{}}}}})",
                                        first, second),
                            "abcd");
  };
  EXPECT_EQ(parse_safetensors(as_bytes(two("[2,4]", "[0,2]")), "FILE").front().info.name, "b");
  expect_refused(two("[0,2]", "[1,3]"), {"tensor b begins at byte 1, but 2"});
  expect_refused(two("[0,2]", "[0,2]"), {"tensor"});
  expect_refused(two("[0,2]", "[2,4]") + "abcd", {"4 bytes at the end"});
  expect_refused(safetensors_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                  R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                  "ab"),
                 {"tensor a occurs twice"});
}

class Shards : public testing::Test {
 protected:
  void SetUp() override {
    write("model-00001-of-00002.safetensors", "a");
    write("model-00002-of-00002.safetensors", "b");
  }
  void write(const std::string& file, const std::string& tensor) {
    write_file(
        dir_ / file,
        safetensors_file("{\"" + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  }
  void index(const std::string& map) {
    write_file(dir_ / "model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
  }
  void expect_fails(std::initializer_list<std::string_view> parts) {
    expect_error([&] { open_safetensors(dir_.path()); }, parts);
  }
  TempDir dir_;
};

TEST_F(Shards, OpenWithAndWithoutIndex) {
  EXPECT_EQ(open_safetensors(dir_.path())->tensors().size(), 2u);
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  EXPECT_EQ(read_all(*open_safetensors(dir_.path()), "b"), std::vector<float>{'x'});
}

TEST_F(Shards, IndexAndShardsMustAgree) {
  index(R"({"a":"model-00001-of-00002.safetensors"})");
  write("model-00001-of-00002.safetensors", "b");
  expect_fails({"not in their shards", "model-00001-of-00002.safetensors:a"});
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  write("model-00001-of-00002.safetensors", "a");
  write("model-00002-of-00002.safetensors", "a");
  expect_fails({"tensor a occurs twice"});
  index(R"({"a":"model-00002-of-00002.safetensors","b":"model-00001-of-00002.safetensors"})");
  write("model-00002-of-00002.safetensors", "b");
  expect_fails({"does not place there", "model-00001-of-00002.safetensors:a"});
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00003-of-00003.safetensors"})");
  expect_fails({"missing", "model-00003-of-00003.safetensors"});
  index(R"({"a":"../a.safetensors"})");
  expect_fails({"tensor a", "not the name of a file"});
  index(R"({"a":7})");
  expect_fails({"not a string"});
  index("{}");
  expect_fails({"names no tensor"});
  write_file(dir_ / "model.safetensors.index.json", "[]");
  expect_fails({"weight_map"});
}

TEST_F(Shards, ChecksumsOfTheIndexAreCompared) {
  const std::string map =
      R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})";
  const auto with = [&](const std::string& checksums) {
    write_file(dir_ / "model.safetensors.index.json",
               R"({"metadata":{"crc32c":)" + checksums + R"(},"weight_map":)" + map + "}");
  };
  const std::string text = "x";
  const auto sum = std::to_string(crc32c(std::as_bytes(std::span(text.data(), 1))));
  with(R"({"a":)" + sum + R"(,"b":7})");
  const auto source = open_safetensors(dir_.path());
  EXPECT_EQ(read_all(*source, "a"), std::vector<float>{'x'});
  for (int times = 0; times < 2; ++times) {
    expect_error([&] { read_all(*source, "b"); },
                 {"model-00002-of-00002.safetensors", "tensor b", "CRC-32C"});
    expect_error([&] { source->raw(*source->find("b")); }, {"tensor b", "CRC-32C"});
  }
  with(R"({"a":)" + sum + "}");  // the other has none
  EXPECT_EQ(read_all(*open_safetensors(dir_.path()), "b"), std::vector<float>{'x'});
  with(R"({"c":1})");
  expect_fails({"crc32c", "tensor c", "weight_map lacks"});
  with("[]");
  expect_fails({"crc32c", "no object"});
  for (const char* wrong : {"-1", "4294967296", "1.5", "\"1\""}) {
    with(R"({"a":)" + std::string(wrong) + "}");
    expect_fails({"crc32c of a", "below 2^32"});
  }
}

TEST_F(Shards, AllMustBeThere) {
  fs::remove(dir_ / "model-00001-of-00002.safetensors");
  expect_fails({"model-00001-of-00002.safetensors is missing"});
  write("model-00001-of-00001.safetensors", "c");
  expect_fails({"two numberings"});
  TempDir empty;
  expect_error([&] { open_safetensors(empty.path()); }, {"no model.safetensors"});
  expect_error([&] { open_safetensors(empty / "none"); }, {"no such file"});
}

TEST(Safetensors, ReadsTheHadamardMatricesOfTheFixtures) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "large fixtures are not here";
  const auto source = open_safetensors(*shared / "data/models/hadamard/hadamards.safetensors");
  ASSERT_FALSE(source->tensors().empty());
  for (const TensorInfo& tensor : source->tensors()) {
    const std::vector<float> values = read_all(*source, tensor.name);
    for (const float value : values) ASSERT_EQ(std::fabs(value), 1.0f) << tensor.name;
  }
}

TEST(Safetensors, OpensTheTinyModelsOfTheFixtures) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "large fixtures are not here";
  for (const auto& entry : fs::directory_iterator(*shared / "fixtures/tiny-models")) {
    const auto source = open_safetensors(entry.path());
    double square = 0;
    for (const TensorInfo& tensor : source->tensors())
      for (const float value : read_all(*source, tensor.name)) square += static_cast<double>(value) * value;
    EXPECT_TRUE(std::isfinite(square) && square > 0) << entry.path();
  }
}

}  // namespace
}  // namespace quatrain
