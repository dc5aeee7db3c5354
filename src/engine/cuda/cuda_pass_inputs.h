// What a forward pass on the GPU is told: tokens, lengths, tiles of prompts, page table.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/paged_engine.h"
#include "ops/cuda/device_buffer.h"
#include "ops/cuda/kv_pages.h"

namespace quatrain {

/// Memory that the GPU copies from and to without the host's help.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// What the kernels of a pass follow from; rows of single tokens come first, tiles of prompts after them.
struct PassShape {
  int64_t rows = 0, sequences = 0, singles = 0, tiles = 0;
  int64_t max_pages = 0;  // of a row of the page table
  auto operator<=>(const PassShape&) const = default;
};

/// The inputs of one pass at a time, in pinned memory and on the GPU.
class PassInputs {
 public:
  /// Passes of up to `rows` tokens, sequences of up to `context`.
  PassInputs(int64_t rows, int64_t context);

  /// Writes the slices' inputs into pinned memory, which nothing may still read. The page table has room for
  /// `ahead` tokens more a sequence; `tiles`: slices long enough run as tiles. A page's number is its
  /// distance from `pages` in units of `page_bytes`.
  PassShape stage(std::span<const Slice> slices, int64_t ahead, bool tiles, const uint8_t* pages,
                  int64_t page_bytes);
  /// Copies them to the GPU.
  void upload(const PassShape& shape, cudaStream_t stream);

  // Of the last upload(), on the GPU.
  int32_t* tokens() { return tokens_; }
  int32_t* lengths() { return lengths_; }
  const ops::QueryTile* tiles() const { return tiles_; }
  ops::KvRows kv_rows(const PassShape& shape) const;

  /// The row of the last stage()'s token, counted through the slices.
  int64_t row_of(int64_t token) const { return row_of_token_[static_cast<size_t>(token)]; }
  /// The position of the last stage()'s row in its sequence; -1: there is no such row.
  int64_t position_of(int64_t row) const;

 private:
  int64_t max_pages_;
  PinnedBuffer staged_;
  ops::DeviceBuffer<int32_t> inputs_;
  std::vector<int64_t> row_of_token_, position_;
  int32_t *tokens_ = nullptr, *lengths_ = nullptr;
  const int32_t *sequence_of_ = nullptr, *table_ = nullptr;
  const ops::QueryTile* tiles_ = nullptr;
};

}  // namespace quatrain
