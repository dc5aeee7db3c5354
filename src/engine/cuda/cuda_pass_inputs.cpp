#include "engine/cuda/cuda_pass_inputs.h"

#include <algorithm>
#include <bit>

#include "ops/cuda/error.h"

namespace quatrain {
namespace {

constexpr int64_t kLeastTile = 8;   // shorter slices run token by token
constexpr int64_t kLeastPages = 4;  // of a row of the page table, so that graphs are few

}  // namespace

PinnedBuffer::PinnedBuffer(size_t bytes) {
  ops::cuda_check(cudaMallocHost(&data_, std::max<size_t>(bytes, 8)), "cudaMallocHost");
}

PinnedBuffer::~PinnedBuffer() {
  cudaFreeHost(data_);
}

PassInputs::PassInputs(int64_t rows, int64_t context)
    : max_pages_(std::max(kLeastPages, (context + ops::kKvPageTokens - 1) / ops::kKvPageTokens)),
      staged_(static_cast<size_t>(rows * (3 + 4 + max_pages_)) * 4),
      inputs_(static_cast<size_t>(rows * (3 + 4 + max_pages_))) {}

// They lie one after the other: tokens, lengths and sequence of every row, tiles, page table.
PassShape PassInputs::stage(std::span<const Slice> slices, int64_t ahead, bool tiles, const uint8_t* pages,
                            int64_t page_bytes) {
  const auto is_tile = [&](const Slice& slice) { return tiles && std::ssize(slice.tokens) >= kLeastTile; };
  PassShape shape;
  shape.sequences = std::ssize(slices);
  int64_t longest = 0;
  for (const Slice& slice : slices) {
    const int64_t count = std::ssize(slice.tokens);
    shape.rows += count;
    if (is_tile(slice))
      shape.tiles += (count + int64_t{ops::kQueryTile} - 1) / int64_t{ops::kQueryTile};
    else
      shape.singles += count;
    longest = std::max(longest, slice.position + count + ahead);
  }
  const int64_t most_pages = (longest + ops::kKvPageTokens - 1) / ops::kKvPageTokens;
  shape.max_pages =
      std::min(max_pages_,
               static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(most_pages, kLeastPages)))));

  auto* tokens = staged_.as<int32_t>();
  int32_t* lengths = tokens + shape.rows;
  int32_t* sequence_of = lengths + shape.rows;
  int32_t* tile_entries = sequence_of + shape.rows;
  int32_t* table = tile_entries + 4 * shape.tiles;
  row_of_token_.clear();
  position_.assign(static_cast<size_t>(shape.rows), 0);
  int64_t single = 0, tile_row = shape.singles, tile = 0, counted = 0;
  for (int64_t s = 0; s < shape.sequences; ++s) {
    const Slice& slice = slices[static_cast<size_t>(s)];
    const int64_t count = std::ssize(slice.tokens);
    int64_t& next = is_tile(slice) ? tile_row : single;
    if (is_tile(slice))
      for (int64_t first = 0; first < count; first += int64_t{ops::kQueryTile}, ++tile) {
        const ops::QueryTile entry{static_cast<int32_t>(next + first),
                                   static_cast<int32_t>(std::min(int64_t{ops::kQueryTile}, count - first)),
                                   static_cast<int32_t>(slice.position + first), static_cast<int32_t>(s)};
        std::copy_n(reinterpret_cast<const int32_t*>(&entry), 4, tile_entries + 4 * tile);
      }
    for (int64_t t = 0; t < count; ++t, ++next, ++counted) {
      tokens[next] = slice.tokens[static_cast<size_t>(t)];
      lengths[next] = static_cast<int32_t>(slice.position + t + 1);
      sequence_of[next] = static_cast<int32_t>(s);
      row_of_token_.push_back(next);
      position_[static_cast<size_t>(next)] = slice.position + t;
    }
    const std::vector<std::byte*>& pages_of = slice.sequence->pages;
    for (int64_t i = 0; i < std::min(shape.max_pages, std::ssize(pages_of)); ++i)
      table[s * shape.max_pages + i] = static_cast<int32_t>(
          (reinterpret_cast<const uint8_t*>(pages_of[static_cast<size_t>(i)]) - pages) / page_bytes);
    for (int64_t i = std::ssize(pages_of); i < shape.max_pages; ++i) table[s * shape.max_pages + i] = 0;
  }
  return shape;
}

void PassInputs::upload(const PassShape& shape, cudaStream_t stream) {
  tokens_ = inputs_.data();
  lengths_ = tokens_ + shape.rows;
  sequence_of_ = lengths_ + shape.rows;
  tiles_ = reinterpret_cast<const ops::QueryTile*>(sequence_of_ + shape.rows);
  table_ = sequence_of_ + shape.rows + 4 * shape.tiles;
  const int64_t count = 3 * shape.rows + 4 * shape.tiles + shape.sequences * shape.max_pages;
  ops::cuda_check(cudaMemcpyAsync(inputs_.data(), staged_.as<int32_t>(), static_cast<size_t>(count) * 4,
                                  cudaMemcpyHostToDevice, stream),
                  "copy of a pass's inputs");
}

ops::KvRows PassInputs::kv_rows(const PassShape& shape) const {
  return {static_cast<int>(shape.rows), static_cast<int>(shape.max_pages), table_, lengths_, sequence_of_};
}

int64_t PassInputs::position_of(int64_t row) const {
  return row >= 0 && row < std::ssize(position_) ? position_[static_cast<size_t>(row)] : -1;
}

}  // namespace quatrain
