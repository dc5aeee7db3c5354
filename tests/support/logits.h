// Logits of an engine, and how far two lists of them are apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace quatrain {

/// All logits of `ids` in a sequence of its own, fed in pieces of `piece` tokens.
inline std::vector<float> all_logits(Engine& engine, std::span<const int32_t> ids, int64_t piece) {
  const int64_t sequence = engine.new_sequence();
  std::vector<float> all;
  for (int64_t first = 0; first < std::ssize(ids); first += piece) {
    const int64_t count = std::min(piece, std::ssize(ids) - first);
    const BatchItem item{sequence, ids.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                         BatchItem::Logits::All};
    engine.forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> row) {
      all.insert(all.end(), row.begin(), row.end());
    });
  }
  EXPECT_EQ(engine.length(sequence), std::ssize(ids));
  engine.free_sequence(sequence);
  EXPECT_EQ(engine.pages_in_use(), 0);
  return all;
}

/// |a - b| / |b|
template <typename A, typename B>
double relative_distance(const A& a, const B& b) {
  EXPECT_EQ(std::size(a), std::size(b));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(std::size(a), std::size(b)); ++i) {
    const double wanted = b[i], delta = a[i] - wanted;
    difference += delta * delta;
    norm += wanted * wanted;
  }
  return std::sqrt(difference / norm);
}

}  // namespace quatrain
