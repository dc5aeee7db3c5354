// How the CTAs of a cluster that share a tile add up their sums: in each other's shared memory.
//
// A tile's sums are cut into slices of 8 tokens, four results of every math thread. Of the n CTAs that share
// it the i-th adds up slices i, i + n, ... and stores them; each CTA, itself too, sends it its sums of these.
// A barrier of the receiver's counts their bytes. So nobody waits before sending, and a CTA that has all that
// it is sent may leave: nobody writes to it any more.
#pragma once

#include "ops/cuda/zipper_pipeline.cuh"

namespace quatrain::ops::zipper {

struct Exchange {
  uint32_t sums;     // [exchange_tiles][exchange_slices][math threads] of 16 bytes
  uint32_t arrived;  // the barrier, of one arrival: what says how many bytes will come
};

template <typename S>
struct Slices {
  static constexpr int kAll = S::kTokens / 8, kBytes = 16 * S::kMathThreads;
  ZipperShares shares;
  int count;  // those with tokens

  __device__ Slices(const Params& p, const ZipperSegment& segment)
      : shares(p.schedule.shares_of(segment.tile)),
        count(min(kAll, (p.tokens - segment.token_tile * S::kTokens + 7) / 8)) {}
  /// Where the sharing CTA `number` finds this tile's slices in its shared memory: a CTA shares at most the
  /// tile it starts in and the one it ends in.
  __device__ uint32_t at(const Exchange& exchange, int number) const {
    const bool second = S::kExchangeTiles > 1 && number == 0 && shares.second;
    return exchange.sums + (second ? S::kExchangeSlices * kBytes : 0);
  }
};

// One lane: how many bytes this CTA will be sent. They may arrive before it says so.
template <typename S>
__device__ void expect_sums(const Params& p, const Exchange& exchange, int worker) {
  const int rank = worker % p.schedule.cluster;
  uint32_t bytes = 0;
  ZipperSegment segment;
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    if (p.schedule.whole(segment)) continue;
    const Slices<S> slices(p, segment);
    const int n = slices.shares.count, own = rank - slices.shares.first;
    if (own < slices.count) bytes += (slices.count - own + n - 1) / n * n * Slices<S>::kBytes;
  }
  ptx::barrier_arrive_expect(exchange.arrived, bytes);
}

// All math threads: sums of a share of a tile, to those that add them up.
template <typename S>
__device__ void send_sums(const Params& p, const Exchange& exchange, const ZipperSegment& segment, int worker,
                          const float (&sums)[S::kResults]) {
  const Slices<S> slices(p, segment);
  const int n = slices.shares.count, own = worker % p.schedule.cluster - slices.shares.first;
  int to = 0, place = own;
#pragma unroll
  for (int i = 0; i < Slices<S>::kAll; ++i) {
    if (i < slices.count) {
      const int rank = slices.shares.first + to;
      const uint32_t at = slices.at(exchange, to) + place * Slices<S>::kBytes + threadIdx.x * 16;
      ptx::store_cluster(ptx::cluster_address(at, rank),
                         make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]),
                         ptx::cluster_address(exchange.arrived, rank));
    }
    if (++to == n) {
      to = 0;
      place += n;
    }
  }
}

// All math threads, when everything has arrived: adds up this CTA's slices of a tile in the order of K.
// store(slice, sums) takes them.
template <typename S, typename Store>
__device__ void add_sums(const Params& p, const Exchange& exchange, const ZipperSegment& segment, int worker,
                         const Store& store) {
  const Slices<S> slices(p, segment);
  const int n = slices.shares.count, own = worker % p.schedule.cluster - slices.shares.first;
  uint32_t from = slices.at(exchange, own) + threadIdx.x * 16;
  for (int slice = own; slice < slices.count; slice += n) {
    float sums[4] = {};
#pragma unroll 4
    for (int i = 0; i < n; ++i, from += Slices<S>::kBytes) {
      const float4 v = ptx::load_shared<float4>(from);
      sums[0] += v.x;
      sums[1] += v.y;
      sums[2] += v.z;
      sums[3] += v.w;
    }
    store(slice, sums);
  }
}

}  // namespace quatrain::ops::zipper
