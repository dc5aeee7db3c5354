#include "operators.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/nibble_memory.h"
#include "ops/gated_activation.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quatrain::bench {
namespace {

constexpr int64_t kRows = 16;  // of a call: with either shape they stay in the second-level cache
constexpr int64_t kDim = 64, kHalf = kDim / 2;
constexpr int64_t kEmbeddingRows = 32768;

OperatorShape shape_of(std::string_view name) {
  if (name == "smollm2") return {576, 1536, 9, 3, 49152};
  if (name == "llama-1b") return {2048, 8192, 32, 8, 128256};
  fail("--shape: {} is not smollm2 or llama-1b", name);
}

}  // namespace

OperatorData::OperatorData(std::string_view name, int64_t megabytes, ThreadPool& pool)
    : shape_(shape_of(name)), size_(megabytes * 1'000'000 / 4), pool_(pool) {
  const auto bytes = static_cast<size_t>(size_) * sizeof(float);
  memory_ = {ops::allocate_packed(bytes), ops::allocate_packed(bytes)};
  in_ = reinterpret_cast<float*>(memory_[0].get());
  out_ = reinterpret_cast<float*>(memory_[1].get());
  constexpr int64_t kPeriod = 1'000'003;
  for (int64_t i = 0; i < size_; ++i)
    in_[i] = i < kPeriod ? static_cast<float>(random_.normal()) : in_[i - kPeriod];
  std::memcpy(out_, in_, bytes);
  std::vector<float> frequencies(kHalf);
  for (int64_t i = 0; i < kHalf; ++i)
    frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(kHalf));
  cosine_.resize(kRows * kHalf);
  sine_.resize(kRows * kHalf);
  for (int64_t row = 0; row < kRows; ++row)
    ops::rope_factors(1000 + row, frequencies, 1, cosine_.data() + row * kHalf, sine_.data() + row * kHalf);
  fill_pages();
}

void OperatorData::fill_pages() {
  layout_ = ops::kv_layout(shape_.kv_heads, kDim, 4, 0, false);
  const auto page_bytes = static_cast<int64_t>(layout_.bytes());
  page_memory_ = ops::allocate_packed(static_cast<size_t>(size_) * 4);
  for (int64_t at = 0; at + page_bytes <= size_ * 4; at += page_bytes) {
    auto* page = reinterpret_cast<std::byte*>(page_memory_.get() + at);
    append(page, 0, ops::kPageTokens, in_ + random_.below(size_ - 2 * ops::kPageTokens * kv_width()));
    pages_.push_back(page);
  }
  for (size_t i = pages_.size(); i > 1; --i) std::swap(pages_[i - 1], pages_[random_.below(i)]);
}

int64_t OperatorData::kv_width() const {
  return shape_.kv_heads * kDim;
}

void OperatorData::append(std::byte* page, int64_t slot, int64_t count, const float* rows) const {
  for (int64_t head = 0; head < shape_.kv_heads; ++head)
    require(ops::kv_append(layout_, page, head, slot, count, rows + head * kDim,
                           rows + head * kDim + kv_width(), 2 * kv_width()),
            "kv_append failed");
}

Operator OperatorData::append_of(int64_t count) const {
  const int64_t values = 2 * kv_width() * count;
  return {.name = fmt::format("kv_append, tokens: {}", count),
          .values = values,
          .bytes = values * 4 + static_cast<int64_t>(layout_.bytes()) * count / ops::kPageTokens,
          .most = std::min(std::ssize(pages_), size_ / values),
          .call = [=, this](int64_t i) {
            append(pages_[i], i * 37 % (ops::kPageTokens + 1 - count), count, in_ + i * values);
          }};
}

Operator OperatorData::attention_of(std::string name, int64_t tokens, int64_t position) const {
  const int64_t width = shape_.heads * kDim, depth = position + tokens;
  const int64_t used = (depth + ops::kPageTokens - 1) / ops::kPageTokens;
  const int64_t seen = tokens * position + tokens * (tokens + 1) / 2;  // keys, over all queries
  return {.name = std::move(name),
          .bytes = static_cast<int64_t>(layout_.bytes()) * depth / ops::kPageTokens + 2 * tokens * width * 4,
          .products = ops::active_isa() == ops::Isa::Avx512Vnni ? 3 * shape_.heads * kDim * 2 * seen : 0,
          .most = std::min(std::ssize(pages_) / used, size_ / (tokens * width)),
          .threaded = true,
          .call = [=, this](int64_t i) {
            const ops::AttentionShape attention{
                .heads = shape_.heads, .scale = 0.125f, .query_stride = width, .out_stride = width};
            const int64_t at = i * tokens * width;
            const ops::AttentionSequence sequence{in_ + at, out_ + at, tokens, position,
                                                  pages_.data() + i * used};
            ops::attention(layout_, attention, {&sequence, 1}, pool_);
          }};
}

Operator OperatorData::embedding_of(std::string name, ops::Embedding embedding) const {
  const int64_t values = kRows * shape_.hidden;
  return {.name = std::move(name),
          .values = values,
          .bytes = kRows * embedding.row_bytes() + values * 4,
          .most = std::min(size_ / values, kEmbeddingRows / kRows),
          .call = [=, this](int64_t i) {
            for (int64_t row = 0; row < kRows; ++row)
              embedding.look_up((i * kRows + row) * 20011 % kEmbeddingRows, 1,
                                out_ + i * values + row * shape_.hidden);
          }};
}

ops::Embedding OperatorData::dense_embedding() {
  const auto read = [this](int64_t begin, int64_t end, float* to) {
    for (int64_t i = begin * shape_.hidden; i < end * shape_.hidden; ++i)
      *to++ = std::bit_cast<float>(std::bit_cast<uint32_t>(in_[i % size_]) & 0xFFFF0000u);  // BF16
  };
  return ops::Embedding(
      std::make_shared<ops::DenseMatrix>(kEmbeddingRows, shape_.hidden, read, std::vector<float>{}, pool_));
}

ops::Embedding OperatorData::nibble_embedding() {
  NibblePlanes planes;
  planes.rows = kEmbeddingRows;
  planes.columns = shape_.hidden;
  planes.residual_block = 64;
  planes.hi.resize(kEmbeddingRows * shape_.hidden / 2);
  for (uint8_t& byte : planes.hi) byte = static_cast<uint8_t>(random_.next());
  planes.lo = planes.hi;
  planes.scale.assign(kEmbeddingRows, 0.015625f);
  for (int64_t b = 0; b < planes.block_rows() * planes.block_columns(); ++b)
    planes.residual_index.push_back(static_cast<int32_t>(b));
  return ops::Embedding(ops::pack_nibble_matrix(planes, 0, pool_));
}

std::vector<Operator> OperatorData::operators() {
  std::vector<Operator> all;
  const auto add = [&](std::string name, int64_t values, int64_t bytes, int64_t floats, auto call) {
    all.push_back({.name = std::move(name),
                   .values = values,
                   .bytes = bytes,
                   .most = size_ / floats,
                   .call = [=](int64_t i) { call(i * floats); }});
  };
  const int64_t hidden = kRows * shape_.hidden, inner = kRows * shape_.inner;
  add(fmt::format("rms_norm, {} rows", kRows), hidden, hidden * 8, hidden, [=, this](int64_t at) {
    ops::rms_norm(in_ + at, kRows, shape_.hidden, shape_.hidden, in_, 1e-5f, out_ + at, shape_.hidden);
  });
  const int64_t heads = shape_.heads + shape_.kv_heads, turned = kRows * heads * kDim;
  add(fmt::format("rope, {} rows of {} heads", kRows, heads), turned, turned * 8, turned,
      [=, this](int64_t at) {
        for (int64_t row = 0; row < kRows; ++row)
          ops::rope(in_ + at + row * heads * kDim, heads, kDim, kHalf, cosine_.data() + row * kHalf,
                    sine_.data() + row * kHalf);
      });
  add(fmt::format("gated_activation, {} rows", kRows), inner, inner * 12, 2 * inner, [=, this](int64_t at) {
    ops::gated_activation(ops::GateFunction::Silu, in_ + at, in_ + at + inner, inner, out_ + at);
  });
  all.push_back(append_of(1));
  all.push_back(append_of(ops::kPageTokens));
  for (const int64_t depth : {512, 2048, 8192})
    all.push_back(attention_of(fmt::format("attention, decode at {}", depth), 1, depth - 1));
  all.push_back(attention_of("attention, prefill of 512", 512, 0));
  add("argmax", shape_.vocabulary, shape_.vocabulary * 4, shape_.vocabulary, [=, this](int64_t at) {
    require(ops::argmax({in_ + at, static_cast<size_t>(shape_.vocabulary)}) < shape_.vocabulary, "argmax");
  });
  all.push_back(embedding_of(fmt::format("embedding BF16, {} rows", kRows), dense_embedding()));
  all.push_back(embedding_of(fmt::format("embedding 8-bit, {} rows", kRows), nibble_embedding()));
  return all;
}

}  // namespace quatrain::bench
