// How the tiles of one product are spread over the GPU: the zipper GEMM's table of heuristics.
#pragma once

#include <cstdint>

namespace quatrain::ops {

struct ZipperPlan {
  enum class Kernel { Decode, Gemm, Wide };
  Kernel kernel;
  int tile_tokens;  // decode: 8 or 16; GEMM: 16, 32, 64 or 128; wide: 128 or 256
  int workers;      // decode: CTAs; GEMM: CTAs, or pairs of them at 128 tokens; wide: pairs of CTAs
  int slices;       // decode: warps that share the columns of a strip
  bool stream_k;    // GEMM: workers take equal shares of all (tile, step) pairs; else whole tiles in turn
  // GEMM of up to 64 tokens, stream-K: as many CTAs are a cluster, which has whole tiles; shares of these
  // meet in its shared memory. 1: they meet in memory.
  int cluster = 1;
};

/// What a GPU runs at once, a CTA an SM. The CTAs of a cluster lie within a group of SMs (GPC), of 16 or 18.
struct ZipperSlots {
  int processors;   // SMs
  int clusters[3];  // of 2, 4 and 8 CTAs

  /// What any such GPU has: whole groups of 16 SMs.
  ZipperSlots(int processors)
      : processors(processors), clusters{processors / 2, processors / 16 * 4, processors / 16 * 2} {}
};

/// Decode: the strips of 16 rows are spread evenly over the SMs, and an SM's 16 warps over its strips.
ZipperPlan plan_decode(int64_t tokens, int64_t rows, int processors);
/// GEMM: token tile and schedule by what was measured.
ZipperPlan plan_gemm(int64_t tokens, int64_t tiles, int64_t steps, const ZipperSlots& slots);
/// Above these tokens the wide kernel is a choice.
inline constexpr int64_t kMostTileTokens = 64;
/// From then on, where the wide kernel takes the matrix: the cheapest by what tiles of 64 tokens and
/// wide ones of 128 and 256 were measured to cost, whole or in equal shares.
ZipperPlan plan_many(int64_t tokens, int64_t tiles, int64_t steps, const ZipperSlots& slots);
/// The fastest for `tokens` rows against a matrix of `rows` rows, tiles x steps chunks; `wide` says whether
/// the wide kernel takes the matrix.
ZipperPlan plan_zipper(int64_t tokens, int64_t rows, int64_t tiles, int64_t steps, const ZipperSlots& slots,
                       bool wide);

/// Room for sums that meet in a cluster: tiles that a CTA shares, and of each tile slices of 8 tokens, one
/// from every CTA that shares it for each slice that this one adds up.
constexpr int exchange_tiles(int tile_tokens) {
  return tile_tokens == 64 ? 2 : tile_tokens < 64 ? 1 : 0;
}
constexpr int exchange_slices(int tile_tokens) {
  return tile_tokens == 64 ? 9 : tile_tokens < 64 ? 4 : 0;
}
/// Whether `cluster` CTAs can have `tiles` tiles of `tile_tokens` tokens in equal shares.
bool cluster_fits(int tile_tokens, int cluster, int64_t tiles, int64_t steps);

/// A stretch of K of one output tile.
struct ZipperSegment {
  int row_tile;  // in units of the cluster's rows
  int token_tile;
  int first_step;
  int last_step;  // exclusive
  int tile;       // number of the output tile, for the partial sums
};

/// Whole quotients of numbers below 2^31 by one that the host knows: a division takes a GPU hundreds of
/// cycles.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(uint32_t by) {  // 2^(32 + shift) / by, rounded up, less 2^32
    while (uint64_t{1} << shift_ < by) ++shift_;
    multiplier_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - by) << 32) / by + 1);
  }
  __host__ __device__ int quotient(int number) const {
    const auto n = static_cast<uint32_t>(number);
    return static_cast<int>((static_cast<uint32_t>(uint64_t{n} * multiplier_ >> 32) + n) >> shift_);
  }

 private:
  uint32_t multiplier_ = 1;
  int shift_ = 0;
};

/// The workers of a cluster that share a tile, in the order of K, numbered within the cluster.
struct ZipperShares {
  int first, count;
  bool second;  // the first of them also shares the tile before
};

/// Which segments a worker computes, in order; the same arithmetic on every thread that needs it.
struct ZipperSchedule {
  int row_tiles, token_tiles, steps, workers;
  bool stream_k;
  int cluster;                      // divides the workers, and workers / cluster the tiles
  Divisor group_tiles, last_width;  // tiles of a group, token tiles of the last one

  // Tiles of up to 16 token tiles run together, so that a row tile's weights are read from memory once.
  static constexpr int kTokenGroup = 16;

  ZipperSchedule() = default;
  ZipperSchedule(int rows, int tokens, int k_steps, int worker_count, bool share, int share_cluster = 1)
      : row_tiles(rows),
        token_tiles(tokens),
        steps(k_steps),
        workers(worker_count),
        stream_k(share),
        cluster(share_cluster),
        group_tiles(static_cast<uint32_t>(kTokenGroup * rows)),
        last_width(static_cast<uint32_t>((tokens - 1) % kTokenGroup + 1)) {}

  __host__ __device__ int64_t total() const { return static_cast<int64_t>(row_tiles) * token_tiles * steps; }
  __host__ __device__ int64_t begin(int worker) const { return total() * worker / workers; }
  __host__ __device__ int worker_of(int64_t position) const {
    return static_cast<int>(((position + 1) * workers - 1) / total());
  }

  /// The workers that share a tile where stream_k, in the order of K.
  __host__ __device__ int first_worker(int tile) const {
    return worker_of(static_cast<int64_t>(tile) * steps);
  }
  __host__ __device__ int last_worker(int tile) const {
    return worker_of(static_cast<int64_t>(tile) * steps + steps - 1);
  }
  /// Which of a worker's two places for partial sums is this tile's: it shares at most the tile it starts in
  /// (0) and the one it ends in (1).
  __host__ __device__ int place_of(int tile, int worker) const {
    return begin(worker) / steps == tile ? 0 : 1;
  }

  /// The same in a cluster, which has equally many whole tiles as every other: 32 bits hold its steps.
  __host__ __device__ ZipperShares shares_of(int tile) const {
    const auto tiles = static_cast<unsigned>(row_tiles * token_tiles / (workers / cluster));
    const unsigned total = tiles * steps, begin = tile % tiles * steps;
    const unsigned first = ((begin + 1) * cluster - 1) / total,
                   last = ((begin + steps) * cluster - 1) / total;
    return {static_cast<int>(first), static_cast<int>(last - first + 1), total * first / cluster < begin};
  }
  __host__ __device__ bool whole(const ZipperSegment& of) const {
    return of.first_step == 0 && of.last_step == steps;
  }

  __host__ __device__ ZipperSegment segment(int tile, int first, int last) const {
    const int first_token_tile = group_tiles.quotient(tile) * kTokenGroup;
    const int within = tile - first_token_tile * row_tiles;
    const bool is_last = token_tiles - first_token_tile < kTokenGroup;
    const int width = is_last ? token_tiles - first_token_tile : kTokenGroup;
    const int row_tile = is_last ? last_width.quotient(within) : within / kTokenGroup;
    return {row_tile, first_token_tile + within - row_tile * width, first, last, tile};
  }

  /// Steps of all of a worker's segments.
  __host__ __device__ int64_t steps_of(int worker) const {
    if (stream_k) return begin(worker + 1) - begin(worker);
    const int tiles = row_tiles * token_tiles;
    return worker < tiles ? static_cast<int64_t>((tiles - 1 - worker) / workers + 1) * steps : 0;
  }

  /// Walks a worker's segments: `cursor` starts at start(worker); false at the end.
  __host__ __device__ int64_t start(int worker) const { return stream_k ? begin(worker) : worker; }
  __host__ __device__ bool next(int worker, int64_t& cursor, ZipperSegment& out) const {
    if (stream_k) {
      const int64_t end = begin(worker + 1);
      if (cursor >= end) return false;
      const int tile = static_cast<int>(cursor / steps), first = static_cast<int>(cursor % steps);
      const int64_t left = end - cursor;
      const int last = left < steps - first ? first + static_cast<int>(left) : steps;
      out = segment(tile, first, last);
      cursor += last - first;
      return true;
    }
    if (cursor >= static_cast<int64_t>(row_tiles) * token_tiles) return false;
    out = segment(static_cast<int>(cursor), 0, steps);
    cursor += workers;
    return true;
  }
};

}  // namespace quatrain::ops
