#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/files.h"
#include "checkpoint/npy.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tensor_source.h"

namespace quatrain {
namespace {

std::vector<std::byte> pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(seed));
  return bytes;
}

std::vector<fs::path> shards_of(const fs::path& directory) {
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
  return shards;
}

TEST(SafetensorsWriter, WritesBalancedShardsThatReadBack) {
  TempDir dir;
  const uint64_t total = 100 * 1000;
  SafetensorsWriter writer(dir.path(), SafetensorsWriter::balanced(total, 30000));
  for (int i = 0; i < 100; ++i) {
    const std::vector<std::byte> bytes = pattern(1000, i);
    writer.begin(fmt::format("t{}", i), "F16", {5, 100});
    writer.write(std::span(bytes).first(1));
    writer.write(std::span(bytes).subspan(1));
  }
  EXPECT_EQ(writer.bytes(), total);
  writer.finish();
  const std::vector<fs::path> shards = shards_of(dir.path());
  EXPECT_EQ(shards.size(), 4u);
  for (const fs::path& shard : shards) {
    EXPECT_NEAR(static_cast<double>(open_safetensors(shard)->tensors().size()), 25, 1) << shard;
  }
  const auto source = open_safetensors(dir.path());
  ASSERT_EQ(source->tensors().size(), 100u);
  for (int i = 0; i < 100; ++i) {
    const TensorInfo* info = source->find(fmt::format("t{}", i));
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->shape, (std::vector<int64_t>{5, 100}));
    const auto raw = source->raw(*info);
    EXPECT_EQ(std::vector<std::byte>(raw.begin(), raw.end()), pattern(1000, i));
  }
  EXPECT_EQ(read_json(dir / "model.safetensors.index.json")["metadata"]["total_size"], total);
}

// Where the total was not known before, the last shard would hold what is left over.
TEST(SafetensorsWriter, BalancesShardsOfAnUnknownTotal) {
  for (const int tensors : {29, 31, 59, 61, 65, 90}) {
    TempDir dir;
    SafetensorsWriter writer(dir.path(), 30000);
    for (int i = 0; i < tensors; ++i) writer.add(fmt::format("t{}", i), "F16", {5, 100}, pattern(1000, i));
    writer.finish();
    const std::vector<fs::path> shards = shards_of(dir.path());
    EXPECT_EQ(std::ssize(shards), (tensors + 29) / 30);
    for (const fs::path& shard : shards)
      EXPECT_NEAR(static_cast<double>(open_safetensors(shard)->tensors().size()),
                  static_cast<double>(tensors) / static_cast<double>(shards.size()), 1)
          << shard;
    const auto source = open_safetensors(dir.path());
    ASSERT_EQ(std::ssize(source->tensors()), tensors);
    for (int i = 0; i < tensors; ++i) {
      const TensorInfo* info = source->find(fmt::format("t{}", i));
      ASSERT_NE(info, nullptr);
      EXPECT_EQ(info->shape, (std::vector<int64_t>{5, 100}));
      const auto raw = source->raw(*info);
      EXPECT_EQ(std::vector<std::byte>(raw.begin(), raw.end()), pattern(1000, i));
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()),
              std::ssize(shards) + 1);  // the shards and their index
  }
}

TEST(SafetensorsWriter, HandlesTensorsWiderThanAShardAndFullHeaders) {
  TempDir dir;
  SafetensorsWriter writer(dir.path(), 1000);
  writer.add("small", "U8", {10}, pattern(10, 0));
  writer.add("wide", "U8", {5000}, pattern(5000, 1));
  writer.add("empty", "F32", {0}, {});
  writer.add("scalar", "F32", {}, pattern(4, 2));
  for (int i = 0; i < 200; ++i)
    writer.add(fmt::format("{:0100}", i), "U8", {1}, pattern(1, i));  // > 4 KiB of names
  writer.finish();
  const auto source = open_safetensors(dir.path());
  EXPECT_EQ(source->tensors().size(), 204u);
  EXPECT_EQ(source->raw(*source->find("wide")).size(), 5000u);
  EXPECT_GT(shards_of(dir.path()).size(), 5u);
}

TEST(SafetensorsWriter, EscapesNamesAndWritesEmptyModels) {
  TempDir dir;
  SafetensorsWriter writer(dir.path(), 1000);
  writer.add("quote\"and\\slash\xc3\xa9", "U8", {1}, pattern(1, 0));
  writer.finish();
  EXPECT_NE(open_safetensors(dir.path())->find("quote\"and\\slash\xc3\xa9"), nullptr);
  TempDir none;
  SafetensorsWriter empty(none.path(), 1000);
  empty.finish();
  EXPECT_TRUE(open_safetensors(none / "model-00001-of-00001.safetensors")->tensors().empty());
}

TEST(SafetensorsWriter, RefusesWrongUse) {
  TempDir dir;
  SafetensorsWriter writer(dir.path(), 1000);
  expect_error([&] { writer.begin("x", "Q4_0", {32}); }, {"tensor x", "Q4_0"});
  expect_error([&] { writer.begin("y", "F32", {-1}); }, {"tensor y", "negative"});
  expect_error([&] { writer.begin(std::string(100000, 'n'), "U8", {1}); }, {"too long"});
  writer.begin("a", "U8", {2});
  expect_error([&] { writer.write(pattern(3, 0)); }, {"tensor a", "more bytes"});
  expect_error([&] { writer.begin("b", "U8", {2}); }, {"before a is complete"});
  expect_error([&] { writer.finish(); }, {"tensor a is incomplete"});
  writer.write(pattern(2, 0));
  expect_error([&] { writer.begin("a", "U8", {2}); }, {"tensor a", "twice"});
}

TEST(Npy, WritesTheFormatNumpyDocuments) {
  TempDir dir;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  write_npy(dir / "a.npy", {2, 3}, values);
  const std::string file = read_file(dir / "a.npy");
  ASSERT_EQ(file.size(), 128 + 24u);
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_EQ(file.substr(8, 2), bytes_of(uint16_t{118}));
  EXPECT_EQ(file.substr(10, 61), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, ), }");
  EXPECT_EQ(file[127], '\n');
  EXPECT_EQ(file.substr(128), bytes_of(values));
  expect_error([&] { write_npy(dir / "b.npy", {2, 2}, values); }, {"b.npy", "6 values"});
  EXPECT_FALSE(fs::exists(dir / "b.npy"));
}

TEST(Npy, FailsOnAFullDevice) {
  // /dev/full takes no byte; the working name lies beside the final one, so only the directory can be full.
  expect_error([] { write_npy("/dev/full/a.npy", {1}, std::vector<float>{1}); }, {"a.npy", "cannot create"});
}

}  // namespace
}  // namespace quatrain
