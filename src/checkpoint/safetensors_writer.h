// Streams tensors into a directory's safetensors shards and their index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace quatrain {

/// Writes model-0000N-of-0000M.safetensors and model.safetensors.index.json (one shard has an index too),
/// whose metadata hold the CRC-32C of every tensor. The directory is one that is not yet in use
/// (AtomicDirectory's): shards get their names in finish(). Shards are balanced: where the last of them would
/// be much smaller than the others, finish() deals the tensors anew, which copies them once more and needs
/// the room of one shard. Memory: one header; each shard's place for it is set aside and filled when the
/// shard ends.
class SafetensorsWriter {
 public:
  /// A shard ends where the bytes so far come nearest to a multiple of `shard_bytes`, so shards of a known
  /// total are balanced from the start: pass balanced(total, limit).
  SafetensorsWriter(fs::path directory, uint64_t shard_bytes);
  ~SafetensorsWriter();

  /// The size of equal shards near `limit` bytes or below for `total` bytes of tensors.
  static uint64_t balanced(uint64_t total, uint64_t limit);

  /// Starts a tensor of a safetensors type; its bytes follow in any number of write() calls.
  void begin(const std::string& name, std::string_view type, const std::vector<int64_t>& shape);
  void write(std::span<const std::byte> bytes);
  /// begin() and all bytes.
  void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
           std::span<const std::byte> bytes);

  /// Bytes of all tensors so far.
  uint64_t bytes() const;
  /// Ends the last shard, names all, writes the index. Nothing may follow.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quatrain
