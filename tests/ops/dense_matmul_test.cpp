#include "ops/dense_matmul.h"

#include <cfloat>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

std::vector<float> rounded(std::vector<float> values, WeightType type) {
  for (float& value : values) {
    if (type == WeightType::BF16) value = bf16_to_float(float_to_bf16(value));
    if (type == WeightType::F16) value = fp16_to_float(float_to_fp16(value));
  }
  return values;
}

RowReader reader_of(const std::vector<float>& weights, int64_t columns) {
  return [&weights, columns](int64_t begin, int64_t end, float* out) {
    std::copy(weights.begin() + begin * columns, weights.begin() + end * columns, out);
  };
}

TEST(DenseMatmul, MatchesDoublePrecisionForEveryTypeAndShape) {
  ThreadPool pool(2);
  each_isa([&] {
    for (const WeightType type : {WeightType::F32, WeightType::BF16, WeightType::F16})
      for (const int64_t rows : {1, 7, 16, 33, 300})
        for (const int64_t columns : {1, 5, 64, 131})
          for (const int64_t tokens : {1, 2, 5, 12, 13, 40}) {
            const auto w = rounded(random_values(rows * columns, 1), type);
            const auto bias = rows == 7 ? std::vector<float>{} : random_values(rows, 2);
            const int64_t x_stride = columns + 3, y_stride = rows + 1;
            const auto x = random_values(tokens * x_stride, 3);
            const DenseMatrix matrix(rows, columns, reader_of(w, columns), bias, pool);
            ASSERT_EQ(matrix.type(), type);
            std::vector<float> y(static_cast<size_t>(tokens * y_stride), -99.0f);
            dense_matmul(matrix, x.data(), tokens, x_stride, pool, y.data(), y_stride);
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t o = 0; o < rows; ++o) {
                double sum = bias.empty() ? 0 : bias[static_cast<size_t>(o)], magnitude = std::fabs(sum);
                for (int64_t k = 0; k < columns; ++k) {
                  const double product = static_cast<double>(w[static_cast<size_t>(o * columns + k)]) *
                                         x[static_cast<size_t>(t * x_stride + k)];
                  sum += product;
                  magnitude += std::fabs(product);
                }
                // columns + 1 roundings, each at most half an ulp of a partial sum below `magnitude`
                const double bound = (static_cast<double>(columns) + 2) * FLT_EPSILON * magnitude;
                ASSERT_NEAR(y[static_cast<size_t>(t * y_stride + o)], sum, bound)
                    << rows << "x" << columns << " tokens " << tokens;
              }
              ASSERT_EQ(y[static_cast<size_t>(t * y_stride + rows)], -99.0f) << "wrote past the row";
            }
          }
  });
}

TEST(DenseMatmul, ARowDoesNotDependOnItsBatch) {
  each_isa([] {
    ThreadPool one(1), two(2);
    const int64_t rows = 75, columns = 200, tokens = 29;
    const auto w = random_values(rows * columns, 4), x = random_values(tokens * columns, 5);
    const DenseMatrix matrix(rows, columns, reader_of(w, columns), {}, two);
    std::vector<float> together(static_cast<size_t>(tokens * rows)), alone(static_cast<size_t>(rows));
    dense_matmul(matrix, x.data(), tokens, columns, two, together.data(), rows);
    for (int64_t t = 0; t < tokens; ++t) {
      dense_matmul(matrix, x.data() + t * columns, 1, columns, one, alone.data(), rows);
      for (int64_t o = 0; o < rows; ++o)
        ASSERT_EQ(alone[static_cast<size_t>(o)], together[static_cast<size_t>(t * rows + o)]);
    }
  });
}

TEST(DenseMatmul, RowsComeBackExactly) {
  ThreadPool pool(2);
  each_isa([&] {
    for (const WeightType type : {WeightType::F32, WeightType::BF16, WeightType::F16}) {
      const int64_t rows = 150, columns = 37;
      const auto w = rounded(random_values(rows * columns, 6), type);
      const DenseMatrix matrix(rows, columns, reader_of(w, columns), {}, pool);
      std::vector<float> row(static_cast<size_t>(columns));
      for (int64_t r = 0; r < rows; ++r) {
        matrix.row(r, row.data());
        for (int64_t k = 0; k < columns; ++k)
          ASSERT_EQ(row[static_cast<size_t>(k)], w[static_cast<size_t>(r * columns + k)]);
      }
      const int64_t padded = (rows + 31) / 32 * 32;  // at most: panels have 8, 16 or 32 rows
      EXPECT_LE(matrix.bytes(), padded * columns * (type == WeightType::F32 ? 4 : 2));
    }
  });
}

TEST(DenseMatmul, OneValueThatDoesNotFitMakesTheMatrixFp32) {
  ThreadPool pool(1);
  auto w = rounded(random_values(400 * 10, 7), WeightType::BF16);
  w[3999] = 1.0f + FLT_EPSILON;
  const DenseMatrix matrix(400, 10, reader_of(w, 10), {}, pool);
  EXPECT_EQ(matrix.type(), WeightType::F32);
  std::vector<float> row(10);
  matrix.row(399, row.data());
  EXPECT_EQ(row[9], 1.0f + FLT_EPSILON);
}

TEST(DenseMatmul, RefusesImpossibleShapes) {
  ThreadPool pool(1);
  const std::vector<float> w(12, 1.0f);
  EXPECT_THROW(DenseMatrix(0, 4, reader_of(w, 4), {}, pool), Error);
  EXPECT_THROW(DenseMatrix(3, 4, reader_of(w, 4), {1, 2}, pool), Error);
  const DenseMatrix matrix(3, 4, reader_of(w, 4), {}, pool);
  std::vector<float> y(6);
  EXPECT_THROW(dense_matmul(matrix, w.data(), 2, 3, pool, y.data(), 3), Error);
  EXPECT_THROW(dense_matmul(matrix, w.data(), 2, 4, pool, y.data(), 2), Error);
}

}  // namespace
}  // namespace quatrain::ops
