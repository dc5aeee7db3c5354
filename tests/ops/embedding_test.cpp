#include "ops/embedding.h"

#include "each_isa.h"

namespace quatrain::ops {
namespace {

NibblePlanes random_planes(int64_t rows, int64_t columns, int64_t group, int64_t block, uint64_t seed) {
  SplitMix64 random(seed);
  NibblePlanes planes;
  planes.rows = rows;
  planes.columns = columns;
  planes.weight_group = group;
  planes.residual_block = block;
  planes.hi.resize(static_cast<size_t>(rows * ((columns + 1) / 2)));
  for (uint8_t& byte : planes.hi) byte = static_cast<uint8_t>(random.next());
  for (int64_t i = 0; i < rows * planes.groups(); ++i)
    planes.scale.push_back(0.5f + static_cast<float>(random.below(512)) / 512);
  for (int64_t b = 0; b < planes.block_rows() * planes.block_columns(); ++b)
    if (random.below(3) == 0) planes.residual_index.push_back(static_cast<int32_t>(b));
  planes.lo.resize(planes.residual_index.size() * static_cast<size_t>(kResidualRows * ((block + 1) / 2)));
  for (uint8_t& byte : planes.lo) byte = static_cast<uint8_t>(random.next());
  return planes;
}

TEST(Embedding, PlanesGiveTheRowsThatTheFormatDefines) {
  for (const auto& [rows, columns, group, block] :
       {std::array<int64_t, 4>{50, 64, 0, 128}, {33, 96, 32, 64}, {16, 130, 0, 32}, {100, 576, 64, 64}}) {
    const NibblePlanes planes = random_planes(rows, columns, group, block, 21);
    ThreadPool pool(1);
    const Embedding embedding(planes), packed(pack_nibble_matrix(planes, 32, pool));
    EXPECT_EQ(embedding.rows(), rows);
    EXPECT_EQ(packed.rows(), rows);
    EXPECT_EQ(packed.columns(), columns);
    EXPECT_EQ(embedding.columns(), columns);
    std::vector<float> expected(static_cast<size_t>(columns)), row(static_cast<size_t>(columns));
    for (int64_t r = 0; r < rows; ++r) {
      planes.dequantize_row(r, expected.data());
      embedding.look_up(r, 1.0f, row.data());
      ASSERT_EQ(row, expected) << "row " << r;
      packed.look_up(r, 1.0f, row.data());
      ASSERT_EQ(row, expected) << "packed row " << r;
      embedding.look_up(r, 3.0f, row.data());
      for (int64_t k = 0; k < columns; ++k)
        ASSERT_EQ(row[static_cast<size_t>(k)], 3.0f * expected[static_cast<size_t>(k)]);
    }
  }
}

TEST(Embedding, MatrixRowsAreScaled) {
  ThreadPool pool(1);
  const auto values = random_values(40 * 24, 22);
  const auto read = [&](int64_t begin, int64_t end, float* out) {
    std::copy(values.begin() + begin * 24, values.begin() + end * 24, out);
  };
  const Embedding embedding(std::make_shared<DenseMatrix>(40, 24, read, std::vector<float>{}, pool));
  std::vector<float> row(24);
  embedding.look_up(39, 2.0f, row.data());
  for (int64_t k = 0; k < 24; ++k)
    EXPECT_EQ(row[static_cast<size_t>(k)], 2.0f * values[static_cast<size_t>(39 * 24 + k)]);
}

}  // namespace
}  // namespace quatrain::ops
