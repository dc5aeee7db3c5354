#include "ops/attention.h"

#include <cfloat>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

// Pages with `tokens` random keys and values around `middle`.
struct Cache {
  KvLayout layout;
  std::vector<AlignedBuffer<std::byte>> memory;
  std::vector<const std::byte*> pages;

  Cache(const KvLayout& kv, int64_t tokens, uint64_t seed, float middle = 0) : layout(kv) {
    const int64_t width = kv.kv_heads * kv.head_dim;
    auto rows = random_values(tokens * 2 * width, seed);
    for (float& value : rows) value += middle;
    for (int64_t first = 0; first < tokens; first += kPageTokens) {
      auto& page = memory.emplace_back(layout.offset + layout.bytes());
      std::fill_n(page.data(), page.size(), std::byte{0});
      for (int64_t head = 0; head < kv.kv_heads; ++head) {
        const float* key = rows.data() + first * 2 * width + head * kv.head_dim;
        EXPECT_TRUE(kv_append(layout, page.data(), head, 0, std::min(kPageTokens, tokens - first), key,
                              key + width, 2 * width));
      }
    }
    for (const auto& page : memory) pages.push_back(page.data());
  }
};

// One query head in double precision; cache_of(t) holds token t.
template <typename CacheOf>
std::vector<double> naive(const CacheOf& cache_of, int64_t head, const float* query, int64_t position,
                          int64_t window, float scale) {
  const int64_t dim = cache_of(0).layout.head_dim,
                first = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
  std::vector<double> scores, out(static_cast<size_t>(dim), 0.0);
  std::vector<std::vector<float>> values;
  double top = -1e300, sum = 0;
  for (int64_t t = first; t <= position; ++t) {
    std::vector<float> key(static_cast<size_t>(dim)), value(static_cast<size_t>(dim));
    const Cache& cache = cache_of(t);
    kv_read(cache.layout, cache.pages[static_cast<size_t>(t / kPageTokens)], head, t % kPageTokens,
            key.data(), value.data());
    double score = 0;
    for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(key[static_cast<size_t>(d)]) * query[d];
    scores.push_back(score * scale);
    values.push_back(value);
    top = std::max(top, scores.back());
  }
  for (double& score : scores) sum += score = std::exp(score - top);
  for (size_t t = 0; t < scores.size(); ++t)
    for (size_t d = 0; d < out.size(); ++d) out[d] += scores[t] / sum * values[t][d];
  return out;
}

TEST(Attention, MatchesDoublePrecision) {
  ThreadPool pool(2);
  each_isa([&] {
    for (const int bits : {16, 8, 4})
      for (const int64_t head_dim : {8, 20, 64, 80, 96, 128, 256})
        for (const int64_t group : {1, 3, 8})
          for (const int64_t window : {0, 1, 50, 300}) {
            if (head_dim != 64 && (group != 3 || window % 300 != 0)) continue;  // enough of the product
            const int64_t kv_heads = 2, heads = kv_heads * group, context = 700, tokens = 3;
            const Cache cache(kv_layout(kv_heads, head_dim, bits, head_dim % 3 == 0 ? 32 : 0, false), context,
                              11);
            const AttentionShape shape{heads, 0.3f, window, 0, 0, heads * head_dim + 1, heads * head_dim + 2};
            for (const int64_t position : {0, 62, 254, 697}) {
              const auto query = random_values(tokens * shape.query_stride, 12);
              std::vector<float> out(static_cast<size_t>(tokens * shape.out_stride), -99.0f);
              const AttentionSequence sequence{query.data(), out.data(), tokens, position,
                                               cache.pages.data()};
              attention(cache.layout, shape, {&sequence, 1}, pool);
              for (int64_t t = 0; t < tokens; ++t) {
                for (int64_t h = 0; h < heads; ++h) {
                  const auto expected = naive([&](int64_t) -> const Cache& { return cache; }, h / group,
                                              query.data() + t * shape.query_stride + h * head_dim,
                                              position + t, window, shape.scale);
                  for (int64_t d = 0; d < head_dim; ++d)
                    // Scores of |q.k| * 0.3 up to ~50 round to 50 * head_dim * eps / 2 in the exponent at
                    // worst and far less by averaging; values are up to ~4: 2e-4 covers both with room. Codes
                    // may meet queries and weights of 24 bits, which round by less.
                    ASSERT_NEAR(out[static_cast<size_t>(t * shape.out_stride + h * head_dim + d)],
                                expected[static_cast<size_t>(d)], 2e-4)
                        << "bits " << bits << " dim " << head_dim << " group " << group << " window "
                        << window << " position " << position + t;
                }
                ASSERT_EQ(out[static_cast<size_t>(t * shape.out_stride + heads * head_dim)], -99.0f);
              }
            }
          }
  });
}

// Keys and values whose zeros are no bytes, of both signs, and near the ends of 16 bits. Their offsets make
// no difference to what a score or a value is, but to FP32's rounding of it: 2^-24 of the sum of |q| |k| and
// of the largest value, a few times.
TEST(Attention, KeepsLargeZeros) {
  ThreadPool pool(2);
  each_isa([&] {
    for (const int bits : {8, 4})
      for (const float middle : {-40.0f, 30.0f, 5000.0f}) {
        const int64_t dim = 64, context = 300, group = 3;
        const Cache cache(kv_layout(1, dim, bits, 0, false), context, 21, middle);
        const float scale = 0.2f / std::fabs(middle);
        const AttentionShape shape{group, scale, 0, 0, 0, group * dim, group * dim};
        const auto query = random_values(group * dim, 22);
        std::vector<float> out(query.size());
        const AttentionSequence sequence{query.data(), out.data(), 1, context - 1, cache.pages.data()};
        attention(cache.layout, shape, {&sequence, 1}, pool);
        for (int64_t h = 0; h < group; ++h) {
          const auto expected = naive([&](int64_t) -> const Cache& { return cache; }, 0,
                                      query.data() + h * dim, context - 1, 0, scale);
          for (int64_t d = 0; d < dim; ++d)
            ASSERT_NEAR(out[static_cast<size_t>(h * dim + d)], expected[static_cast<size_t>(d)],
                        1e-4 + 2e-6 * std::fabs(middle))
                << "bits " << bits << " middle " << middle << " head " << h << " column " << d;
        }
      }
  });
}

// A query reads the first and the last tokens from unquantised pages, the others from codes, each once.
TEST(Attention, ReadsFirstAndLastTokensUnquantised) {
  ThreadPool pool(2);
  each_isa([&] {
    for (const int64_t window : {0, 100, 400})
      for (const auto& [sink, recent] :
           {std::pair<int64_t, int64_t>{4, 0}, {0, 1}, {0, 130}, {70, 64}, {300, 500}}) {
        const int64_t dim = 64, kv_heads = 2, heads = 6, context = 700, tokens = 3;
        const Cache codes(kv_layout(kv_heads, dim, 4, 0, false), context, 11);
        const Cache exact(kv_layout(kv_heads, dim, 16, 0, false), context, 11);
        AttentionShape shape{.heads = heads, .scale = 0.3f, .window = window, .sink = sink, .recent = recent};
        shape.query_stride = shape.out_stride = heads * dim;
        for (const int64_t position : {0, 3, 62, 130, 254, 697}) {
          const auto query = random_values(tokens * heads * dim, 12);
          std::vector<float> out(query.size());
          const AttentionSequence sequence{query.data(), out.data(),         tokens,
                                           position,     codes.pages.data(), exact.pages.data()};
          attention(codes.layout, shape, {&sequence, 1}, pool, &exact.layout);
          for (int64_t t = 0; t < tokens; ++t)
            for (int64_t h = 0; h < heads; ++h) {
              const auto from = [&](int64_t token) -> const Cache& {
                return token < sink || token > position + t - recent ? exact : codes;
              };
              const auto expected =
                  naive(from, h / 3, query.data() + (t * heads + h) * dim, position + t, window, 0.3f);
              for (int64_t d = 0; d < dim; ++d)
                ASSERT_NEAR(out[static_cast<size_t>((t * heads + h) * dim + d)],
                            expected[static_cast<size_t>(d)], 2e-4)
                    << "window " << window << " sink " << sink << " recent " << recent << " position "
                    << position + t;
            }
        }
      }
  });
}

// The same token alone, in chunks, with other sequences, on one thread or three: the same bits.
TEST(Attention, FollowsFromThePositionAlone) {
  each_isa([] {
    for (const auto& [bits, sink, recent] :
         {std::tuple<int, int64_t, int64_t>{16, 0, 0}, {4, 0, 0}, {4, 5, 0}, {4, 70, 130}})
      for (const int64_t window : {0, 300}) {
        const int64_t kv_heads = 1, group = 3, dim = 64, heads = kv_heads * group, context = 600;
        const KvLayout layout = kv_layout(kv_heads, dim, bits, 0, false);
        const KvLayout unquantised = kv_layout(kv_heads, dim, 16, 0, false);
        const Cache cache(layout, context, 13), other(layout, context, 14);
        const Cache exact(unquantised, context, 13), other_exact(unquantised, context, 14);
        const AttentionShape shape{heads, 0.125f, window, sink, recent, heads * dim, heads * dim};
        const auto query = random_values(context * heads * dim, 15);
        std::vector<float> whole(query.size()), parts(query.size()), mixed(query.size()), rest(query.size());
        ThreadPool one(1), three(3);
        const auto run = [&](std::vector<float>& out, int64_t first, int64_t tokens, ThreadPool& pool,
                             bool company) {
          std::vector<AttentionSequence> batch = {{query.data() + first * heads * dim,
                                                   out.data() + first * heads * dim, tokens, first,
                                                   cache.pages.data(), exact.pages.data()}};
          if (company) {
            batch.push_back(
                {query.data(), rest.data(), 7, 500, other.pages.data(), other_exact.pages.data()});
            batch.insert(batch.begin(), {query.data(), rest.data() + 7 * heads * dim, 1, 3,
                                         other.pages.data(), other_exact.pages.data()});
          }
          attention(layout, shape, batch, pool, &unquantised);
        };
        run(whole, 0, context, three, false);
        for (int64_t first = 0; first < context;) {
          const int64_t tokens = std::min<int64_t>(1 + first % 97, context - first);
          run(parts, first, tokens, one, false);
          run(mixed, first, tokens, three, true);
          first += tokens;
        }
        ASSERT_EQ(whole, parts) << bits << " " << window;
        ASSERT_EQ(whole, mixed) << bits << " " << window;
        for (int64_t t = 560; t < context; ++t) run(parts, t, 1, three, false);  // decode, split over threads
        ASSERT_EQ(whole, parts) << bits << " " << window;
      }
  });
}

TEST(Attention, RefusesHeadsThatDoNotShareEvenly) {
  ThreadPool pool(1);
  const KvLayout layout = kv_layout(2, 8, 16, 0, false);
  const AttentionShape shape{3, 1.0f, 0, 0, 0, 24, 24};
  EXPECT_THROW(attention(layout, shape, {}, pool), Error);
}

}  // namespace
}  // namespace quatrain::ops
