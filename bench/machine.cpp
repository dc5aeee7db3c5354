#include "machine.h"

#include <atomic>

#include "ops/cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quatrain::bench {
namespace {

using ops::Isa;

std::atomic<uint64_t> sink{0};  // keeps loops from being optimised away

#if defined(__x86_64__)

__attribute__((target("avx512f"))) uint64_t read_512(const uint8_t* data, int64_t size) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 256 <= size; i += 256) {
    a = _mm512_or_si512(a, _mm512_load_si512(data + i));
    b = _mm512_or_si512(b, _mm512_load_si512(data + i + 64));
    c = _mm512_or_si512(c, _mm512_load_si512(data + i + 128));
    d = _mm512_or_si512(d, _mm512_load_si512(data + i + 192));
  }
  alignas(64) uint64_t any[8];
  _mm512_store_si512(any, _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d)));
  return any[0] | any[7];
}

constexpr int64_t kIterations = 20000;

// 16 independent chains at 512 bits, 12 at 256: enough to cover the latency of either.
__attribute__((target("avx512f,avx512vnni"))) int64_t dots_512() {
  __m512i acc[16];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  const __m512i x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(-5);
  for (int64_t i = 0; i < kIterations; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      __m512i a = acc[j];  // a variable of its own: an array element as operand pins the array to memory
      asm volatile("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(x), "v"(w));
      acc[j] = a;
    }
  for (int j = 1; j < 16; ++j) acc[0] = _mm512_add_epi32(acc[0], acc[j]);
  sink += static_cast<uint64_t>(_mm512_cvtsi512_si32(acc[0]));
  return kIterations * 16 * 64 * 2;
}

__attribute__((target("avx2,avxvnni"))) int64_t dots_256() {
  __m256i acc[12];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(-5);
  for (int64_t i = 0; i < kIterations; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      __m256i a = acc[j];
      asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(a) : "x"(x), "x"(w));
      acc[j] = a;
    }
  for (int j = 1; j < 12; ++j) acc[0] = _mm256_add_epi32(acc[0], acc[j]);
  sink += static_cast<uint64_t>(_mm256_extract_epi32(acc[0], 0));
  return kIterations * 12 * 32 * 2;
}

__attribute__((target("avx2"))) int64_t dots_madd() {
  __m256i acc[10];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  __m256i x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(-5);
  for (int64_t i = 0; i < kIterations; ++i)
#pragma GCC unroll 10
    for (int j = 0; j < 10; ++j) {
      __m256i pairs;
      asm volatile("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(x), "x"(w));
      acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(pairs, w));
    }
  for (int j = 1; j < 10; ++j) acc[0] = _mm256_add_epi32(acc[0], acc[j]);
  sink += static_cast<uint64_t>(_mm256_extract_epi32(acc[0], 0));
  return kIterations * 10 * 32 * 2;
}

#endif

uint64_t read_chunk(const uint8_t* data, int64_t size) {
#if defined(__x86_64__)
  if (ops::has_isa(Isa::Avx512Vnni)) return read_512(data, size);
#endif
  uint64_t any = 0;
  for (int64_t i = 0; i + 8 <= size; i += 8) any |= *reinterpret_cast<const uint64_t*>(data + i);
  return any;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

void read_all(const uint8_t* data, int64_t size, ThreadPool& pool) {
  constexpr int64_t kChunk = 64 << 10;
  pool.parallel_for((size + kChunk - 1) / kChunk, 1, [&](int64_t begin, int64_t end, int) {
    sink += read_chunk(data + begin * kChunk, std::min(end * kChunk, size) - begin * kChunk);
  });
}

double dot_peak(ThreadPool& pool) {
  int64_t (*dots)() = nullptr;
#if defined(__x86_64__)
  if (ops::active_isa() == Isa::Avx512Vnni) dots = dots_512;
  if (ops::active_isa() == Isa::AvxVnni) dots = dots_256;
  if (ops::active_isa() == Isa::Avx2) dots = dots_madd;
#endif
  if (dots == nullptr) return 0;
  std::atomic<int64_t> operations{0};
  const double time = seconds([&] {
    pool.parallel_for(pool.threads() * 4, 1, [&](int64_t, int64_t, int) { operations += dots(); });
  });
  return static_cast<double>(operations.load()) / time;
}

}  // namespace quatrain::bench
