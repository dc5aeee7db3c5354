// The operators of operators_bench, each with random data to call it on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "ops/embedding.h"
#include "ops/kv_cache.h"

namespace quatrain::bench {

struct OperatorShape {
  int64_t hidden, inner, heads, kv_heads, vocabulary;
};

struct Operator {
  std::string name;
  int64_t values = 0, bytes = 0, products = 0;  // of a call
  int64_t most = 0;                             // calls that find data of their own
  bool threaded = false;                        // shares its work among threads itself
  std::function<void(int64_t)> call;            // on data number i
};

/// What all operators read and write. Outlives them.
class OperatorData {
 public:
  /// `megabytes`: of each of inputs, results and KV pages.
  OperatorData(std::string_view shape, int64_t megabytes, ThreadPool& pool);
  std::vector<Operator> operators();

 private:
  void fill_pages();
  int64_t kv_width() const;
  // Rows of keys and values side by side.
  void append(std::byte* page, int64_t slot, int64_t count, const float* rows) const;
  Operator append_of(int64_t count) const;
  Operator attention_of(std::string name, int64_t tokens, int64_t position) const;
  Operator embedding_of(std::string name, ops::Embedding embedding) const;
  ops::Embedding dense_embedding();
  ops::Embedding nibble_embedding();

  OperatorShape shape_;
  int64_t size_;  // floats of inputs and of results
  ThreadPool& pool_;
  SplitMix64 random_{1};
  std::vector<std::shared_ptr<uint8_t>> memory_;
  float *in_ = nullptr, *out_ = nullptr;
  std::vector<float> cosine_, sine_;
  ops::KvLayout layout_;
  std::shared_ptr<uint8_t> page_memory_;
  std::vector<std::byte*> pages_;  // shuffled: an engine's pages do not follow each other
};

}  // namespace quatrain::bench
